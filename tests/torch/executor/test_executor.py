"""What the executor promises: values that were measured on MXNet 1.9.1, and what it refuses."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import Executor, softmax_output, trace  # noqa: E402


def total(a, b):
    return 2 * a + b


def product(x, w):
    return F.linear(x, w)


def classifier(data, weight, bias, label):
    return softmax_output(F.relu(F.linear(data, weight, bias)), label)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        return self.norm(self.conv(x)).mean()


def bound(grad_req="write"):
    return trace(total).simple_bind("cpu", grad_req, a=(2,), b=(2,))


def test_a_classifier():
    shapes = {"data": (1, 4), "weight": (6, 4), "bias": (6,), "label": (1,)}
    executor = trace(classifier).simple_bind("cpu", **shapes)
    executor.arg_dict["weight"][:] = 1
    executor.arg_dict["bias"][:] = torch.tensor([1.0, 4, 4, 4, 5, 6])
    executor.forward(is_train=True, data=np.ones((1, 4)), label=np.array([1]))
    p = [0.00378404, 0.07600445, 0.07600445, 0.07600445, 0.20660152, 0.5616011]
    np.testing.assert_allclose(executor.outputs[0].numpy(), [p], rtol=1e-6)
    executor.backward()
    p[1] = -0.92399555
    weight = np.repeat(np.array(p)[:, np.newaxis], 4, axis=1)
    np.testing.assert_allclose(executor.grad_dict["weight"].numpy(), weight, rtol=1e-6)
    np.testing.assert_allclose(executor.grad_dict["bias"].numpy(), p, rtol=1e-6)
    assert executor.grad_dict["label"].tolist() == [0]


@pytest.mark.parametrize(
    ("grad_req", "expected"), [("write", [[2, 2, 2]]), ("add", [[6, 6, 6]]), ("null", [[9, 9, 9]])]
)
@pytest.mark.parametrize("forwards", [1, 3])
def test_three_backwards(grad_req, expected, forwards):
    args = {"x": torch.ones(2, 3), "w": torch.tensor([[1.0, 2, 3]])}
    grad = torch.full((1, 3), 9.0 if grad_req == "null" else 0.0)
    executor = trace(product).bind("cpu", args, {"w": grad}, grad_req)
    for number in range(3):
        if number < forwards:
            executor.forward(is_train=True)
        executor.backward(torch.ones(2, 1))
    assert grad.tolist() == expected
    if grad_req == "add":
        grad.zero_()
        executor.backward(torch.ones(2, 1))
        assert grad.tolist() == [[2, 2, 2]]


def test_three_passes_add():
    executor = bound("add")
    for expected in ([2, 20], [4, 40], [6, 60]):
        executor.forward(is_train=True)
        executor.backward(torch.tensor([1.0, 10.0]))
        assert executor.grad_dict["a"].tolist() == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([3, 250], np.uint8), [3, 250]),
        (np.array([1.5, 2.5]), [1.5, 2.5]),
        (np.array([1, 0], bool), [1, 0]),
        (np.array([[1.0, 9.0], [2.0, 9.0]])[:, 0], [1, 2]),
        (np.array([1.0, 2.0])[::-1], [2, 1]),
        (np.broadcast_to(np.float32(3), 2), [3, 3]),
        (torch.tensor([3, 4]), [3, 4]),
        (torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True), [0.5, 1.5]),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [1, 2]),
    ],
)
def test_values_are_cast_to_the_bound_dtype(value, expected):
    executor = bound()
    array = executor.arg_dict["a"]
    executor.forward(a=value)
    assert executor.arg_dict["a"] is array
    assert array.dtype == torch.float32
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"a": np.ones(3)},
            ValueError,
            r"^Shape not match! Argument a, need: \(2,\), received: \(3,\)$",
        ),
        ({"zz": np.ones(2)}, TypeError, "^Unknown argument zz$"),
        ({"a": [1.0, 2.0]}, ValueError, "^only accept keyword argument of .* got list for a$"),
        ({"a": 1.0}, ValueError, "^only accept keyword argument of .* got float for a$"),
        (
            {"a": np.array(["x", "y"])},
            ValueError,
            "only accept keyword argument of .* ndarray for a",
        ),
    ],
)
def test_wrong_values_change_nothing(given, error, words):
    executor = bound()
    executor.forward(is_train=True, a=np.array([1, 2]), b=np.array([2, 3]))
    with pytest.raises(error, match=words):
        executor.forward(is_train=True, **{"b": np.zeros(2)} | given)
    assert executor.arg_dict["b"].tolist() == [2, 3]
    assert executor.outputs[0].tolist() == [4, 7]
    executor.backward(torch.ones(2))
    assert executor.grad_dict["a"].tolist() == [2, 2]


def test_what_is_not_strict_ignores_the_rest_of_a_mini_batch():
    executor = bound()
    mini_batch = {"a": np.ones(2), "names": ["x", "y"], "b": [1, 2], "zz": np.ones(7)}
    executor.forward(is_train=True, strict=False, **mini_batch)
    assert executor.outputs[0].tolist() == [2, 2]
    with pytest.raises(ValueError, match="Shape not match! Argument a"):
        executor.forward(strict=False, a=np.ones(3))


def test_backward_before_any_forward():
    with pytest.raises(ValueError, match="needs a forward before it"):
        bound().backward(torch.ones(2))


def test_duplicate_output_names():
    executor = trace(lambda a: [a + 1] * 2).simple_bind("cpu", a=(2,))
    assert executor.forward()[1].tolist() == [1, 1]
    words = r"^Duplicate names detected, \['add_output', 'add_output'\]$"
    with pytest.raises(ValueError, match=words):
        executor.output_dict  # noqa: B018


def test_modes():
    class Dropping(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5, self.training)

    executor = trace(Dropping()).simple_bind("cpu", x=(100,))
    x = torch.ones(100)
    heads = torch.ones(100)
    assert set(executor.forward(is_train=True, x=x)[0].tolist()) == {0, 2}
    executor.backward(heads)
    assert torch.equal(executor.grad_dict["x"], executor.outputs[0])
    assert torch.equal(executor.forward(x=x)[0], x)
    executor.backward(heads)  # gradients of inference
    assert torch.equal(executor.grad_dict["x"], heads)
    executor.backward(heads, is_train=False)
    assert torch.equal(executor.grad_dict["x"], heads)


def test_auxiliary_states():
    torch.manual_seed(0)
    module, plain = Net(), Net()
    plain.load_state_dict(module.state_dict())
    executor = trace(module).simple_bind("cpu", x=(4, 1, 6, 6))
    x = torch.randn(4, 1, 6, 6)
    for is_train in (True, False, True):
        before = [array.clone() for array in executor.aux_arrays]
        plain.train(is_train)
        assert torch.equal(executor.forward(is_train=is_train, x=x)[0], plain(x))
        assert all(map(torch.equal, executor.aux_arrays, plain.buffers()))
        changed = not all(map(torch.equal, executor.aux_arrays, before))
        assert changed is is_train


def test_copy_params_from():
    module = Net()
    executor = trace(module).simple_bind("cpu", x=(4, 1, 6, 6))
    weight = np.arange(18.0).reshape(2, 1, 3, 3)
    executor.copy_params_from({"conv.weight": weight}, {"norm.running_mean": torch.tensor([1, 2])})
    assert module.conv.weight.dtype == torch.float32
    assert module.conv.weight.flatten().tolist() == list(range(18))
    assert module.norm.running_mean.tolist() == [1, 2]
    executor.copy_params_from({"zz": weight}, {"zz": weight}, allow_extra_params=True)


@pytest.mark.parametrize(
    ("args", "aux", "error", "words"),
    [
        ({"zz": np.zeros(2)}, None, ValueError, '^Find name "zz" that is not in the arguments$'),
        ({}, {"zz": np.zeros(2)}, ValueError, '"zz" that is not in the auxiliary states$'),
        (
            {"norm.bias": np.zeros(3)},
            None,
            ValueError,
            r"norm.bias, need: \(2,\), received: \(3,\)",
        ),
        ({}, {"norm.running_var": np.zeros(3)}, ValueError, "Argument norm.running_var, need"),
        ({"norm.bias": [0.0, 0.0]}, None, TypeError, "value of norm.bias is no array: list"),
    ],
)
def test_copy_params_from_checks_all_before_it_writes_any(args, aux, error, words):
    module = Net()
    executor = trace(module).simple_bind("cpu", x=(4, 1, 6, 6))
    with pytest.raises(error, match=words):
        executor.copy_params_from({"norm.weight": np.full(2, 7)} | args, aux)
    assert module.norm.weight.tolist() == [1, 1]


def test_step_trains_the_module():
    torch.manual_seed(0)
    module, plain = Net(), Net()
    plain.load_state_dict(module.state_dict())
    executor = trace(module).simple_bind("cpu", x=(4, 1, 6, 6))
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    other = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(4, 1, 6, 6)
        (loss,) = executor.step(optimizer, x=x, names=["a"], zz=x)
        optimizer.zero_grad()  # takes the gradients away
        expected = plain(x)
        other.zero_grad()
        expected.backward()
        other.step()
        assert torch.equal(loss, expected)
        assert all(map(torch.equal, module.parameters(), plain.parameters()))
    executor.step(optimizer, x=x)
    assert module.conv.weight.grad is executor.grad_dict["conv.weight"]


def test_step_on_arrays():
    executor = trace(lambda x, w: (x * w).sum()).simple_bind("cpu", x=(2,), w=(2,))
    optimizer = torch.optim.SGD([executor.arg_dict["w"]], 0.5)
    executor.step(optimizer, x=np.array([1, 2]))
    assert executor.arg_dict["w"].tolist() == [-0.5, -1]
    assert not executor.arg_dict["w"].requires_grad


def test_the_caller_may_write_to_the_arrays():
    executor = bound()
    executor.arg_dict["a"][:] = 3
    executor.arg_arrays[1] += 1
    assert executor.forward(is_train=True)[0].tolist() == [7, 7]


def test_gradients_of_arrays_that_were_overwritten_are_refused():
    executor = trace(product).simple_bind("cpu", x=(2, 3), w=(1, 3))
    executor.forward(is_train=True)
    executor.arg_dict["w"].fill_(2)
    with pytest.raises(ValueError, match="have been written to since the forward"):
        executor.backward(torch.ones(2, 1))
    executor.forward(is_train=True)
    executor.backward(torch.ones(2, 1))
    assert executor.grad_dict["x"].tolist() == [[2, 2, 2]] * 2


def test_under_no_grad():
    executor = bound()
    with torch.no_grad():
        executor.forward(is_train=True)
        executor.backward(torch.ones(2))
    assert executor.grad_dict["a"].tolist() == [2, 2]


def test_results_that_the_network_overwrites():
    class Inplace(nn.Module):
        def forward(self, x):
            return F.dropout(x.sigmoid(), 0.5, self.training, inplace=True)

    executor = trace(Inplace()).simple_bind("cpu", x=(2,))
    executor.forward(is_train=True)
    with pytest.raises(ValueError, match="or the network itself has changed what they need"):
        executor.backward(torch.ones(2))


def test_debug_str_of_both_modes():
    class Dropping(nn.Module):
        def forward(self, x):
            return x * 2 if self.training else x + 1

    lines = trace(Dropping()).simple_bind("cpu", x=(2,)).debug_str().splitlines()
    assert lines[:2] == ["Nodes of training:", "  mul = mul(x, 2)"]
    assert lines[2:4] == ["Nodes of inference:", "  add = add(x, 1)"]


def test_debug_str():
    lines = bound().debug_str().splitlines()
    assert "  mul = mul(2, a)" in lines or "  mul = mul(a, 2)" in lines
    assert "  add = add(mul, b)" in lines
    assert "  argument a: (2,) torch.float32 on cpu, gradient: write" in lines
    assert lines[-1] == "Total 40 bytes allocated"
    eager = trace(total, capture=False).simple_bind("cpu", a=(2,), b=(2,))
    assert "  none: runs as it is, without a graph" in eager.debug_str()


def test_the_optimized_symbol():
    def wasteful(x, y):
        unused = x * y + 1  # noqa: F841
        return 2 * x.sigmoid()

    executor = trace(wasteful).simple_bind("cpu", x=(3,), y=(3,))
    symbol = executor.get_optimized_symbol()
    assert symbol.list_arguments() == ["x", "y"]
    assert symbol.list_outputs() == executor._symbol.list_outputs()
    again = pickle.loads(pickle.dumps(trace(total).simple_bind("cpu", a=(1,), b=(1,))))
    assert again.get_optimized_symbol().list_outputs() == ["add_output"]
    other = symbol.simple_bind("cpu", x=(3,), y=(3,))
    x = torch.randn(3)
    assert torch.equal(executor.forward(x=x)[0], other.forward(x=x)[0])
    assert len(other.debug_str().splitlines()) == len(executor.debug_str().splitlines()) - 2


def test_pickling():
    executor = bound("add")
    executor.forward(is_train=True, a=np.array([1, 2]), b=np.array([2, 3]))
    executor.backward(torch.ones(2))
    again = pickle.loads(pickle.dumps(executor))
    assert isinstance(again, Executor)
    assert again.arg_dict["a"].tolist() == [1, 2]
    assert again.output_dict["add_output"].tolist() == [4, 7]
    assert again.forward(is_train=True)[0].tolist() == [4, 7]
    again.backward(torch.ones(2))
    assert again.grad_dict["a"].tolist() == [4, 4]
    assert executor.grad_dict["a"].tolist() == [2, 2]


def test_pickling_a_module():
    executor = trace(Net()).simple_bind("cpu", x=(4, 1, 6, 6))
    x = torch.randn(4, 1, 6, 6)
    executor.forward(is_train=True, x=x)
    again = pickle.loads(pickle.dumps(executor))
    assert torch.equal(again.aux_dict["norm.running_mean"], executor.aux_dict["norm.running_mean"])
    module = again._symbol.target
    assert module.conv.weight is again.arg_dict["conv.weight"]
    assert torch.equal(again.forward(x=x)[0], executor.forward(x=x)[0])
    again.step(torch.optim.SGD(module.parameters(), 0.1), x=x)
    assert not torch.equal(module.norm.bias, executor.arg_dict["norm.bias"])
    assert torch.equal(again.forward(x=x)[0], module.eval()(x))


def squared_error(w, x, target):
    return ((x * w).sum(1) - target).square().mean()


class TestBlankArguments:
    """A step on the zeros that an argument was made with would train on wrong values."""

    @staticmethod
    def bind():
        executor = trace(squared_error).simple_bind("cpu", w=(3,), x=(4, 3), target=(4,))
        weights = executor.arg_dict["w"]
        weights.grad = executor.grad_dict["w"]
        return executor, torch.optim.SGD([weights], 0.1)

    def test_a_misspelt_name_is_refused(self):
        executor, optimizer = self.bind()
        match = (
            r"^Argument target has no value yet: .* The mini-batch has x, y\. Pass it as target="
        )
        for _ in range(2):
            with pytest.raises(ValueError, match=match):
                executor.step(optimizer, x=torch.ones(4, 3), y=torch.ones(4))
        assert executor.arg_dict["x"].sum() == 0

    def test_what_was_written_before_stays(self):
        executor, optimizer = self.bind()
        executor.arg_dict["target"].fill_(2)
        executor.step(optimizer, x=torch.ones(4, 3))
        executor.step(optimizer)
        assert executor.arg_dict["w"].min() > 0

    def test_copies_know_nothing_of_it(self):
        executor, optimizer = self.bind()
        executor.step(optimizer, x=torch.ones(4, 3), target=torch.ones(4))
        copy = pickle.loads(pickle.dumps(executor))
        copy.step(torch.optim.SGD([copy.arg_dict["w"]], 0.1))


def test_a_short_mini_batch_is_told_of_allow_short():
    executor = trace(torch.nn.Linear(3, 2)).simple_bind("cpu", input=(4, 3))
    with pytest.raises(ValueError, match=r"received: \(2, 3\)\. For the short .* allow_short=True"):
        executor.forward(input=torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"received: \(5, 3\)$"):
        executor.forward(input=torch.ones(5, 3))
