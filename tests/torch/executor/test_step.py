"""A step is what eager PyTorch does, to the last bit, and on the same memory each time."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402

STEPS = 50


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x):
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)), inplace=True)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 5)

    def forward(self, x):
        return self.second(F.dropout(F.relu(self.first(x)), 0.5, self.training))


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 5)).bfloat16()

    def forward(self, x):
        return self.layers(x)


MODELS = {
    "residual": (Residual, (4, 3, 10, 10)),
    "lstm": (Recurrent, (4, 7, 6)),
    "transformer": (Transformer, (4, 7, 8)),
    "dropout": (Dropping, (4, 6)),
    "bfloat16": (Perceptron, (4, 6)),
}


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_eager_autograd(name, capture):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    module, plain = make(), make()
    plain.load_state_dict(module.state_dict())
    dtype = next(module.parameters()).dtype
    executor = trace(module, capture).simple_bind("cpu", dtype=dtype, x=shape)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    other = torch.optim.SGD(plain.parameters(), 0.05)
    for step in range(STEPS):
        x = torch.randn(shape).to(dtype)
        head = torch.randn(4, 5).to(dtype)
        torch.manual_seed(step)
        (output,) = executor.forward(is_train=True, x=x)
        executor.backward(head)
        optimizer.step()
        torch.manual_seed(step)
        x.requires_grad_()
        expected = plain(x)
        other.zero_grad()
        expected.backward(head)
        other.step()
        assert torch.equal(output, expected)
        assert torch.equal(executor.grad_dict["x"], x.grad)
        for parameter, own in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(parameter.grad, own.grad)
            assert torch.equal(parameter, own)
        assert all(map(torch.equal, module.buffers(), plain.buffers()))
    plain.eval()
    with torch.no_grad():
        expected = plain(x)
    torch.testing.assert_close(executor.forward(x=x)[0], expected)


def test_nothing_is_allocated_again():
    module = Residual()
    executor = trace(module).simple_bind("cpu", x=(4, 3, 10, 10))
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    mini_batch = {"x": torch.randn(4, 3, 10, 10)}

    def step():
        executor.forward(is_train=True, **mini_batch)
        executor.backward(torch.ones(4, 5))
        optimizer.step()

    def places():
        arrays = [*executor.arg_arrays, *executor.grad_arrays, *executor.outputs]
        arrays += [*executor.aux_arrays, *[p.grad for p in module.parameters()]]
        return [array.data_ptr() for array in arrays]

    for _ in range(5):
        step()
    before = places()
    kept = [kept_by(step, times) for times in (1, 2, 6)]
    assert kept[1] == kept[2]  # (a profiler does not know what was there before the first one)
    optimizer.zero_grad()
    step()
    assert places() == before


def kept_by(step, times):
    """Bytes that steps allocate and do not give back."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        for _ in range(times):
            step()
    return sum(event.self_cpu_memory_usage for event in profile.key_averages())
