"""What is captured, and what is refused with the line that is the reason."""

import inspect
import re
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import Executor, Symbol, capture, trace  # noqa: E402


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
    with pytest.raises(ValueError, match="Attribute last of Keeping is changed, which a graph"):
        trace(Keeping())
    trace(Keeping(), capture=False)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0
        self.log = []

    def forward(self, x):
        self.step += 1
        return x * min(1.0, self.step / 10)


class Logging(Counted):
    def forward(self, x):
        self.log.append("called")
        return x * 2


SEEN = []


def logging(x):
    SEEN.append(1)
    return x * 2


def closed(value):
    def run(x):
        value["last"] = x * 2
        return x

    return run


def counter():
    count = 0

    def run(x):
        nonlocal count
        count += 1
        return x * count

    return run


class Keeper:
    last = None


def through(keeper):
    def run(x):
        keeper.last = x * 2
        return keeper.last

    return run


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Counted(), "Attribute step of Counted is changed"),
        (nn.Sequential(Counted()), "Attribute step of 0 is changed"),
        (Logging(), "Attribute log of Logging is changed"),
        (logging, "Variable SEEN outside of logging is changed"),
        (closed({}), "Variable value outside of closed.* is changed"),
        (counter(), "Variable count outside of counter.* is changed"),
        (through(Keeper()), "What mul stands for is kept beyond the call"),
    ],
    ids=["attribute", "of a part", "list", "global", "closure", "nonlocal", "object"],
)
def test_changes_of_python_state(target, words):
    with pytest.raises(ValueError, match=f"cannot be captured as a graph: {words}"):
        trace(target)


def test_hooks_of_the_module_itself():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    module.register_forward_hook(lambda module, given, output: output * 3)
    executor = trace(module).simple_bind("cpu", input=(4, 3))
    x = torch.randn(4, 3)
    assert torch.equal(executor.forward(input=x)[0], module(x))


def test_a_forward_of_its_own():
    module = nn.Sequential(nn.Linear(3, 2))
    module.forward = lambda x: x * 2
    assert trace(module).simple_bind("cpu", x=(3,)).forward(x=torch.ones(3))[0].tolist() == [2] * 3
    module.forward = lambda x: module[0](x)  # the original's layers, not the copy's
    with pytest.raises(ValueError, match="cannot be captured as a graph"):
        trace(module)


def test_hooks_on_the_way_back():
    module = nn.Sequential(nn.Sequential(nn.Linear(3, 2)))
    module[0][0].register_full_backward_hook(lambda module, grads, outputs: None)
    trace(module)
    module[0].register_full_backward_hook(lambda module, grads, outputs: None)
    with pytest.raises(ValueError, match="backward hooks of module Sequential would be lost"):
        trace(module)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x, scale):
        return x * scale * self.scale


def test_inputs_with_the_names_of_others():
    module = Scaled()
    with pytest.raises(ValueError, match="Input scale of module Scaled must have another name"):
        trace(module)
    module.forward = lambda mask: mask
    with pytest.raises(ValueError, match="Input mask of module Scaled must have another name"):
        trace(module, capture=False)


def test_inputs_with_the_names_of_parameters_of_methods():
    methods = (Executor.forward, Executor.step, Executor.reshape)
    for method in (*methods, Symbol.simple_bind, Symbol.infer_shape):
        for parameter in inspect.signature(method).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                namespace = {}
                exec(f"def run({parameter.name}): return {parameter.name} * 2", namespace)
                with pytest.raises(ValueError, match=f"Input {parameter.name} of function run"):
                    trace(namespace["run"])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x


@torch.fx.wrap
def square(x):
    return Square.apply(x)


def test_custom_functions_that_are_left_as_they_are():
    executor = trace(lambda x: square(x) + 1).simple_bind("cpu", "null", x=(2,))
    assert executor.forward(x=torch.tensor([2.0, 3]))[0].tolist() == [5, 10]


def test_lines_of_packages_with_similar_names_are_told():
    neighbour = torch.__file__.replace("__init__.py", "").rstrip("/\\") + "vision/ops.py"
    assert not neighbour.startswith(capture._NOT_THE_USERS)
    assert torch.nn.functional.__file__.startswith(capture._NOT_THE_USERS)


def test_custom_functions_are_told():
    with pytest.raises(ValueError, match=r"within the forward of a torch\.autograd\.Function"):
        trace(lambda x: Square.apply(x))


def test_what_cannot_be_copied():
    module = nn.Sequential(nn.Linear(3, 2))
    module.result = module(torch.ones(1, 3))
    with pytest.raises(ValueError, match="module Sequential cannot be copied, which an executor"):
        trace(module)


def test_other_threads_go_on():
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    x = torch.randn(2, 3)
    failed = []
    done = threading.Event()

    def until_done(work):
        try:
            while not done.is_set():
                work()
        except Exception as error:  # noqa: BLE001
            failed.append(error)

    works = [lambda: module(x), lambda: trace(Net()).simple_bind("cpu", x=(2, 3)).forward()]
    threads = [threading.Thread(target=until_done, args=(work,)) for work in works * 2]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            trace(module)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []


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
