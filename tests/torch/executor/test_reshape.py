"""Other shapes in the same memory."""

import gc

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import softmax_output, trace  # noqa: E402


def product(x, w):
    return F.linear(x, w)


def total(a, b):
    return 2 * a + b


def classifier(data, weight, label):
    return softmax_output(F.linear(data, weight), label)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x):
        return self.norm(self.conv(x)).mean((2, 3))


def bound(grad_req="write"):
    executor = trace(product).simple_bind("cpu", grad_req, x=(2, 3), w=(1, 3))
    executor.arg_dict["w"][:] = 2
    return executor


def start_of(array):
    return array.data_ptr()


@pytest.mark.parametrize("grad_req", ["write", "add", "null"])
def test_larger_and_back(grad_req):
    executor = bound(grad_req)
    larger = executor.reshape(allow_up_sizing=True, x=(5, 3))
    assert [tuple(array.shape) for array in larger.arg_arrays] == [(5, 3), (1, 3)]
    assert larger.arg_dict["w"] is executor.arg_dict["w"]
    assert larger.grad_dict["w"] is executor.grad_dict["w"]
    assert larger.forward(is_train=True, x=torch.ones(5, 3))[0].tolist() == [[6]] * 5
    larger.backward(torch.ones(5, 1))
    if grad_req == "null":
        assert larger.grad_dict == {"x": None, "w": None}
    else:
        larger.backward(torch.ones(5, 1))
        expected = [[5, 5, 5]] if grad_req == "write" else [[10, 10, 10]]
        assert larger.grad_dict["w"].tolist() == expected
        assert larger.grad_dict["x"].shape == (5, 3)
    again = larger.reshape(x=(2, 3))
    assert start_of(again.arg_dict["x"]) == start_of(larger.arg_dict["x"])
    assert again.forward(is_train=True)[0].tolist() == [[6]] * 2
    assert executor.forward(is_train=True, x=torch.ones(2, 3))[0].tolist() == [[6]] * 2


def test_the_smaller_shares_the_first_elements():
    executor = trace(product).simple_bind("cpu", x=(4, 2), w=(1, 2))
    executor.arg_dict["w"][:] = 1
    smaller = executor.reshape(x=(2, 2))
    smaller.forward(is_train=True, x=torch.tensor([[1.0, 2], [3, 4]]))
    assert executor.arg_dict["x"].tolist() == [[1, 2], [3, 4], [0, 0], [0, 0]]
    assert executor.outputs[0].tolist() == [[3], [7], [0], [0]]
    smaller.backward(torch.tensor([[1.0], [2]]))
    assert executor.grad_dict["x"].tolist() == [[1, 1], [2, 2], [0, 0], [0, 0]]
    assert executor.grad_dict["w"].tolist() == [[7, 10]]
    assert executor.forward(is_train=True)[0].tolist() == [[3], [7], [0], [0]]
    executor.backward(torch.ones(4, 1))
    assert executor.grad_dict["w"].tolist() == [[4, 6]]


def test_one_is_named_and_the_other_follows():
    executor = trace(total).simple_bind("cpu", a=(4,), b=(4,))
    smaller = executor.reshape(partial_shaping=True, a=(2,))
    assert smaller.arg_dict["b"].shape == (2,)
    assert start_of(smaller.arg_dict["b"]) == start_of(executor.arg_dict["b"])
    larger = executor.reshape(partial_shaping=True, allow_up_sizing=True, b=(6,))
    assert larger.arg_dict["a"].shape == (6,)
    assert larger.forward(a=np.ones(6), b=np.ones(6))[0].tolist() == [3] * 6


def test_what_is_tried_is_not_logged(caplog):
    trace(total).simple_bind("cpu", a=(4, 3), b=(4, 3)).reshape(partial_shaping=True, a=(2, 3))
    assert caplog.records == []


def test_parameters_of_a_module_keep_their_shape():
    executor = trace(nn.Linear(3, 2)).simple_bind("cpu", input=(4, 3))
    with pytest.raises(ValueError, match=r"Parameter weight has the shape \(2, 3\) in the module"):
        executor.reshape(allow_up_sizing=True, input=(4, 5), weight=(2, 5))


def test_integers_of_numpy():
    smaller = trace(total).simple_bind("cpu", a=(4,), b=(4,)).reshape(a=(np.int64(2),), b=(2,))
    assert tuple(smaller.arg_dict["a"].shape) == (2,)


def test_only_what_has_to_follow_does():
    shapes = {"data": (3, 3), "weight": (3, 3), "label": (3,)}
    executor = trace(classifier).simple_bind("cpu", **shapes)
    smaller = executor.reshape(partial_shaping=True, data=(2, 3))
    assert [tuple(array.shape) for array in smaller.arg_arrays] == [(2, 3), (3, 3), (2,)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": (5, 3)}, r"Argument x of shape \(5, 3\) needs 15 elements, .* has 6"),
        ({"x": (2, 4)}, r"not named would change: w from \(1, 3\) to \(1, 4\)"),
        ({"x": (2, 4), "partial_shaping": True}, "Argument x of shape .* allow_up_sizing=True"),
        ({"x": (1, 2), "w": (1, 3)}, r"disagree: x \(1, 2\)"),
        ({"zz": (2, 3)}, "reshape names zz; there are x, w"),
        ({"x": [2, 3]}, r"shape of argument x must be a tuple .* got \[2, 3\]"),
        ({"x": 2}, "shape of argument x must be a tuple .* got 2"),
        ({"x": (True, 3)}, r"shape of argument x must be a tuple .* got \(True, 3\)"),
    ],
)
def test_what_is_refused(options, words):
    executor = bound()
    with pytest.raises(ValueError, match=words):
        executor.reshape(**options)
    assert executor.forward()[0].tolist() == [[0], [0]]


def test_two_that_share_memory():
    executor = bound()
    other = executor.reshape(x=(1, 3))
    executor.forward(is_train=True, x=torch.ones(2, 3))
    other.forward(is_train=True, x=torch.full((1, 3), 5.0))
    with pytest.raises(ValueError, match="the forward of an executor that shares them"):
        executor.backward(torch.ones(2, 1))
    other.backward(torch.ones(1, 1))
    assert other.grad_dict["w"].tolist() == [[5, 5, 5]]
    executor.forward(is_train=True)
    executor.backward(torch.ones(2, 1))
    assert executor.grad_dict["w"].tolist() == [[6, 6, 6]]


def test_two_whose_gradients_need_nothing_shared():
    executor = trace(total).simple_bind("cpu", a=(2,), b=(2,))
    other = executor.reshape(a=(1,), b=(1,))
    executor.forward(is_train=True)
    other.forward(is_train=True, a=np.ones(1))
    executor.backward(torch.tensor([1.0, 2.0]))
    assert executor.grad_dict["a"].tolist() == [2, 4]


def test_device_monitor_and_module_are_kept():
    module = Net()
    executor = trace(module).simple_bind("cpu", {"conv.weight": "add"}, x=(4, 1, 6, 6))
    seen = []
    executor.set_monitor_callback(lambda name, value: seen.append(name))
    smaller = executor.reshape(x=(2, 1, 5, 5))
    smaller.forward(is_train=True, x=torch.randn(2, 1, 5, 5))
    assert seen == ["conv_output", "norm_output", "mean_output"]
    smaller.backward(torch.ones(2, 2))
    assert smaller.grad_dict["x"] is None
    assert smaller.arg_dict["conv.weight"] is module.conv.weight
    assert smaller.aux_arrays[0] is module.norm.running_mean
    assert smaller.outputs[0].device == torch.device("cpu")


def test_a_short_last_mini_batch():
    torch.manual_seed(0)
    module, plain = Net(), Net()
    plain.load_state_dict(module.state_dict())
    executor = trace(module).simple_bind("cpu", x=(4, 1, 6, 6))
    for rows in (4, 3, 4, 3, 1):
        x = torch.randn(rows, 1, 6, 6)
        (output,) = executor.forward(is_train=True, allow_short=True, x=x)
        executor.backward(torch.ones(rows, 2))
        plain.zero_grad()
        expected = plain(x)
        expected.backward(torch.ones(rows, 2))
        assert torch.equal(output, expected)
        assert torch.equal(executor.outputs[0], expected)
        assert torch.equal(executor.output_dict["mean_output"], expected)
        for bound, own in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(bound.grad, own.grad)
    assert len(executor._shorts) == 2
    with pytest.raises(ValueError, match="Shape not match! Argument x, need"):
        executor.forward(x=x)
    with pytest.raises(ValueError, match="Shape not match! Argument x, need"):
        executor.forward(allow_short=True, x=torch.ones(5, 1, 6, 6))


def test_memory_that_was_there_before_is_used_again():
    executor = trace(total).simple_bind("cpu", a=(8,), b=(8,))
    small = executor.reshape(a=(2,), b=(2,))
    middle = small.reshape(allow_up_sizing=True, a=(5,), b=(5,))
    assert start_of(middle.arg_dict["a"]) == start_of(executor.arg_dict["a"])
    assert start_of(middle.grad_dict["b"]) == start_of(executor.grad_dict["b"])
    assert start_of(middle.outputs[0]) == start_of(executor.outputs[0])
    with pytest.raises(ValueError, match="allow_up_sizing=True"):
        small.reshape(a=(5,), b=(5,))


def test_memory_stays_flat():
    def pixels(image):
        return F.avg_pool2d(image, 8).mean()

    gc.collect()
    gc.disable()  # nothing may depend on it
    try:
        executor = trace(pixels).simple_bind("cpu", image=(1, 3, 600, 600))
        sides = np.random.default_rng(0).integers(600, 700, 1000)
        resident = psutil.Process().memory_info
        for number, side in enumerate(map(int, sides)):
            executor = executor.reshape(allow_up_sizing=True, image=(1, 3, side, side))
            if number % 10 == 0:
                executor.forward(is_train=True)
                executor.backward()
            if number == 20:
                before = resident().rss
    finally:
        gc.enable()
    assert resident().rss - before < 30e6  # one image of these sizes takes 6 MB
