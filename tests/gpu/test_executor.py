"""What an executor promises on a CUDA device: replayed steps, right and fast."""

from __future__ import annotations

import copy
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402
from crumpets_like.torch.executor.graphs import WARM_UPS  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} finds no CUDA device on this machine",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_is_up():
    """What CUDA opens once for the whole process is no leak of the first test."""
    matrix = torch.ones(8, 8, device="cuda", requires_grad=True)
    torch.mm(matrix, matrix).sum().backward()
    torch.cuda.synchronize()


class Loss(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.network(x), y)


def deep():
    layers = [layer for _ in range(10) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return Loss(nn.Sequential(*layers)).to("cuda")


def bound(module, cuda_graph):
    reqs = dict.fromkeys(dict(module.named_parameters()), "write")
    dtype = {"y": torch.int64}
    shapes = {"x": (64, 256), "y": (64,)}
    return trace(module).simple_bind("cuda", reqs, dtype, cuda_graph=cuda_graph, **shapes)


def mini_batch():
    return {"x": torch.randn(64, 256), "y": torch.randint(256, (64,))}


def test_replayed_steps_are_those_of_eager_pytorch():
    torch.manual_seed(0)
    module = deep()
    plain = copy.deepcopy(module)
    executor = bound(module, cuda_graph=True)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for step in range(3 * WARM_UPS):
        batch = mini_batch()
        (loss,) = executor.step(optimizer, **batch)
        expected = plain(**{name: value.cuda() for name, value in batch.items()})
        other.zero_grad()
        expected.backward()
        other.step()
        assert torch.equal(loss, expected), step
        assert all(map(torch.equal, module.parameters(), plain.parameters())), step


def test_replays_allocate_nothing():
    executor = bound(deep(), cuda_graph=True)
    batch = {name: value.cuda() for name, value in mini_batch().items()}

    def allocated():
        return torch.cuda.memory_stats()["allocation.all.allocated"]

    for _ in range(WARM_UPS + 2):
        executor.forward(is_train=True, **batch)
        executor.backward()
    before = allocated()
    for _ in range(10):
        executor.forward(is_train=True, **batch)
    assert allocated() == before


def test_dropout_draws_anew_at_each_replay():
    module = nn.Sequential(nn.Identity(), nn.Dropout(0.5))
    executor = trace(module).simple_bind("cuda", "null", cuda_graph=True, input=(1000,))
    ones = torch.ones(1000)
    for _ in range(WARM_UPS + 1):
        executor.forward(is_train=True, input=ones)
    first = executor.outputs[0].clone()
    assert not torch.equal(executor.forward(is_train=True)[0], first)


def test_what_asks_for_a_value_runs_with_one_warning():
    def reads(x):
        return x * x.sum().item()

    executor = trace(reads, capture=False).simple_bind("cuda", "null", cuda_graph=True, x=(4,))
    for _ in range(WARM_UPS):
        executor.forward(x=torch.ones(4))
    with pytest.warns(RuntimeWarning, match="cannot be replayed as a CUDA graph"):
        executor.forward(x=torch.ones(4))
    assert executor.forward(x=torch.full((4,), 2.0))[0].tolist() == [16] * 4


def test_pinned_sources_may_be_dropped_at_once():
    executor = trace(lambda x: x.sum(1)).simple_bind("cuda", "null", x=(1000, 10_000))
    for number in range(20):
        executor.forward(x=torch.full((1000, 10_000), float(number)).pin_memory())
        assert executor.outputs[0][-1].item() == 10_000 * number


def test_faster_than_eager_pytorch():
    """No step waits for the device, as in a training loop."""
    module = deep()
    plain = copy.deepcopy(module)
    executor = bound(module, cuda_graph=True)
    batch = {name: value.cuda() for name, value in mini_batch().items()}

    def replayed():
        executor.forward(is_train=True, **batch)
        executor.backward()

    def eager():
        plain.zero_grad()
        plain(**batch).backward()

    def seconds(step):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(200):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    for step in (replayed, eager):
        seconds(step)
    rounds = [(seconds(eager), seconds(replayed)) for _ in range(5)]
    ratios = sorted(slow / fast for slow, fast in rounds)
    assert ratios[2] >= 1.5
