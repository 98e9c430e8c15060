"""Gradients that linear layers compute in the bound arrays are those of PyTorch."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import direct, trace  # noqa: E402


class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.first = nn.Linear(5, 7, bias=bias)
        self.second = nn.Linear(7, 3, bias=bias)

    def forward(self, x):
        return self.second(F.relu(self.first(x), inplace=True))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 5)

    def forward(self, x):
        return self.fc(self.fc(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class Read(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(x) + self.fc.weight.sum()


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x.t())


def layers(executor):
    modules = executor._step.program.root.modules()
    return [module for module in modules if isinstance(module, direct.DirectLinear)]


def compare(module, x, grad_req="write", steps=3):
    torch.manual_seed(0)
    executor = trace(module).simple_bind("cpu", grad_req, x=tuple(x.shape))
    expected = dict.fromkeys(executor.arg_dict, 0)
    for _ in range(steps):
        (output,) = executor.forward(is_train=True, x=x)
        head = torch.randn_like(output)
        for _ in range(2):
            executor.backward(head)
        leaf = x.detach().requires_grad_()
        plain = [leaf, *module.parameters()]
        own = torch.autograd.grad(module(leaf), plain, head)
        for name, gradient in zip(expected, own, strict=True):
            if grad_req == "add":
                expected[name] = expected[name] + gradient + gradient
            else:
                expected[name] = gradient
            assert torch.equal(executor.grad_dict[name], expected[name]), name
    return executor


@pytest.mark.parametrize("bias", [True, False])
def test_the_same_bits(bias):
    executor = compare(Net(bias), torch.randn(6, 5))
    assert len(layers(executor)) == 2


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.second(self.first(x))


def test_single_rows_and_columns():
    compare(Net(), torch.randn(1, 5))
    compare(Narrow(), torch.randn(3, 1))
    compare(Narrow(), torch.randn(1, 1))


@pytest.mark.parametrize("module", [Twice(), Tied(), Read()], ids=["twice", "tied", "read"])
def test_weights_with_several_gradients_are_left_alone(module):
    executor = compare(module, torch.randn(6, 5))
    assert layers(executor) == []


class OftenInInference(Twice):
    def forward(self, x):
        return self.fc(x) if self.training else self.fc(self.fc(x))


class WithinAnother(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 1, 4, batch_first=True, dropout=0)

    def forward(self, x):
        return self.encoder(x.unsqueeze(0)).squeeze(0) + self.encoder.linear1(x)


@pytest.mark.parametrize("is_train", [False, True])
@pytest.mark.parametrize("make", [OftenInInference, WithinAnother])
def test_weights_that_one_mode_reads_twice(make, is_train):
    module = make()
    shape = (6, 4 if make is WithinAnother else 5)
    executor = trace(module).simple_bind("cpu", x=shape)
    assert layers(executor) == []
    x = torch.randn(shape)
    (output,) = executor.forward(is_train=is_train, x=x)
    executor.backward(torch.ones_like(output))
    plain = dict(module.train(is_train).named_parameters())
    expected = torch.autograd.grad(module(x).sum(), list(plain.values()))
    for name, gradient in zip(plain, expected, strict=True):
        torch.testing.assert_close(executor.grad_dict[name], gradient)


class Penalty(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x):
        inner = self.first(x)
        loss = self.second(inner).tanh().sum()
        (gradient,) = torch.autograd.grad(loss, inner, create_graph=True)
        return loss + gradient.square().sum()


def test_gradients_of_gradients():
    module = Penalty()
    executor = compare(module, torch.randn(3, 5))
    assert layers(executor) == []


def test_without_memory():
    executor = trace(Net()).simple_bind("meta", x=(6, 5))
    executor.forward(is_train=True)
    executor.backward(torch.ones(6, 3, device="meta"))
    assert executor.grad_dict["first.weight"].is_meta


def test_gradients_that_are_added_are_left_alone():
    assert layers(compare(Net(), torch.randn(6, 5), "add")) == []


@pytest.mark.parametrize("shape", [(2, 6, 5), (5,)])
def test_what_is_no_matrix(shape):
    compare(Net(), torch.randn(shape))


def test_columns():
    compare(Transposed(), torch.randn(4, 6))


def test_gradients_lie_in_the_bound_arrays():
    executor = trace(Net()).simple_bind("cpu", x=(6, 5))
    before = executor.grad_dict["first.weight"].data_ptr()
    executor.forward(is_train=True, x=torch.randn(6, 5))
    executor.backward(torch.ones(6, 3))
    assert executor.grad_dict["first.weight"].data_ptr() == before
    assert layers(executor)[0].arrays["first.weight"].data_ptr() == before


def test_under_autocast():
    module = Net()
    executor = trace(module).simple_bind("cpu", x=(6, 5))
    x = torch.randn(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        (output,) = executor.forward(is_train=True, x=x)
        executor.backward(torch.ones(6, 3))
        expected = module(x)
        expected.backward(torch.ones(6, 3, dtype=torch.bfloat16))
    assert torch.equal(output, expected)


def test_overwritten_inputs_are_noticed():
    executor = trace(Net()).simple_bind("cpu", x=(6, 5))
    executor.forward(is_train=True)
    executor.arg_dict["x"].fill_(1)
    with pytest.raises(ValueError, match="have been written to since the forward"):
        executor.backward(torch.ones(6, 3))


def test_a_layer_that_nothing_comes_back_to():
    class Cut(Net):
        def forward(self, x):
            return self.second(F.relu(self.first(x))).detach() + x.sum()

    executor = trace(Cut()).simple_bind("cpu", x=(6, 5))
    executor.grad_dict["first.weight"].fill_(7)
    executor.forward(is_train=True)
    executor.backward(torch.ones(6, 3))
    assert executor.grad_dict["first.weight"].abs().sum() == 0


def test_inputs_that_the_network_itself_overwrites_are_noticed():
    class Overwriting(Net):
        def forward(self, x):
            inner = self.first(x).tanh()
            output = self.second(inner)
            return output + inner.detach().fill_(2).sum()

    executor = trace(Overwriting()).simple_bind("cpu", x=(6, 5))
    executor.forward(is_train=True)
    with pytest.raises(ValueError, match="changed what they need, in place"):
        executor.backward(torch.ones(6, 3))


def test_hooks_of_parameters_see_their_gradients_and_change_them():
    module = Net()
    module.first.weight.register_hook(lambda gradient: 2 * gradient)
    module.second.bias.register_hook(lambda gradient: gradient + 1)
    compare(module, torch.randn(6, 5))


def test_a_bias_whose_gradient_is_added():
    requests = {"first.bias": "add", "second.bias": "null"}
    executor = trace(Net()).simple_bind("cpu", requests | {"first.weight": "write"}, x=(6, 5))
    for _ in range(2):
        executor.forward(is_train=True, x=torch.ones(6, 5))
        executor.backward(torch.ones(6, 3))
    twice = executor.grad_dict["first.bias"] / 2
    weight = executor.grad_dict["first.weight"]
    torch.testing.assert_close(weight, twice[:, None].expand(7, 5))  # x is one everywhere
    assert executor.grad_dict["second.bias"] is None
