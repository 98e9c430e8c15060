"""What is captured, and what is refused with the line that is the reason."""

import re

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=2.0):
        return F.dropout(self.norm(self.fc(x)), 0.5, self.training) * scale


def branches(x):
    if x.sum() > 0:
        return x
    return -x


def noisy(x):
    return x + torch.rand(3)


class Branching(nn.Module):
    def forward(self, x):
        return branches(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


class Keeping(nn.Module):
    def forward(self, x):
        self.last = x * 2
        return self.last


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        with torch.no_grad():
            return self.fc(x)


def cast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


def drawn(x):
    return x + torch.rand(3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (Frozen(), "return self.fc(x)"),
        (cast, "return x @ x"),
        (drawn, "return x + torch.rand(3, generator=torch.Generator().manual_seed(0))"),
        (branches, "if x.sum() > 0:"),
        (Branching(), "if x.sum() > 0:"),
        (noisy, "return x + torch.rand(3)"),
        (Counting(), "self.count = self.count + 1"),
    ],
    ids=["no_grad", "autocast", "generator", "function", "module", "noise", "buffer"],
)
def test_what_cannot_be_captured_names_the_line(target, line):
    with pytest.raises(ValueError, match="cannot be captured as a graph") as caught:
        trace(target)
    assert re.search(rf"test_capture\.py:\d+: `{re.escape(line)}`", str(caught.value))
    assert "capture=False" in str(caught.value)


def test_assigned_attributes():
    with pytest.raises(ValueError, match="Attribute last of Keeping is assigned, which a graph"):
        trace(Keeping())
    trace(Keeping(), capture=False)


def test_under_a_mode_of_the_callers():
    with torch.no_grad():
        symbol = trace(Net())
    assert symbol.graphs is not None


def test_without_capture_it_runs_as_it_is():
    executor = trace(branches, capture=False).bind(
        "cpu", {"x": torch.tensor([-1.0, -2.0])}, {"x": torch.zeros(2)}
    )
    assert executor.forward(is_train=True)[0].tolist() == [1, 2]
    executor.backward(torch.ones(2))
    assert executor.grad_dict["x"].tolist() == [-1, -1]
    executor.forward(x=torch.tensor([3.0, 4.0]))
    assert executor.output_dict["branches_output"].tolist() == [3, 4]


def test_numbers_drawn_without_capture_are_new_ones():
    executor = trace(noisy, capture=False).simple_bind("cpu", x=(3,))
    first = executor.forward()[0].clone()
    assert not torch.equal(first, executor.forward()[0])


def test_the_callers_random_numbers_and_module_stay_as_they_are():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    module = Net().eval()
    torch.manual_seed(3)
    attributes = set(vars(module))
    trace(module).simple_bind("cpu", x=(2, 3))
    assert torch.equal(torch.rand(2), expected)
    assert set(vars(module)) == attributes
    assert not module.training
    assert module.fc.weight.grad is not None  # what optimizers look at


@pytest.mark.parametrize("target", [lambda *x: x, lambda x, /: x, lambda **x: x])
def test_inputs_without_a_name(target):
    with pytest.raises(ValueError, match="must have names, got"):
        trace(target)


def test_what_is_no_function():
    with pytest.raises(TypeError, match="takes a function or a module, got int"):
        trace(3)


def test_keyword_inputs_and_defaults():
    def scaled(x, *, y, scale=3.0):
        return x * scale + y

    symbol = trace(scaled)
    assert symbol.list_arguments() == ["x", "y"]
    executor = symbol.simple_bind("cpu", x=(1,), y=(1,))
    assert executor.forward(x=torch.ones(1), y=torch.ones(1))[0].item() == 4


def test_constants_of_the_code():
    def shifted(x):
        return x + torch.arange(3) * torch.tensor([1.0, 2.0, 3.0])

    executor = trace(shifted).simple_bind("cpu", x=(3,))
    assert executor.forward()[0].tolist() == [0, 2, 6]
