"""Loss heads, and what is refused as a head gradient."""

from types import MappingProxyType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from crumpets_like.torch.executor import make_loss, softmax_output, trace  # noqa: E402


def test_softmax_output_alone():
    data = torch.randn(4, 3, requires_grad=True)
    label = torch.tensor([0, 2, 1, 1])
    probabilities = softmax_output(data, label)
    assert torch.equal(probabilities, data.softmax(1))
    probabilities.backward(torch.full_like(data, 7))  # is ignored
    onehot = torch.nn.functional.one_hot(label, 3)
    assert torch.equal(data.grad, data.detach().softmax(1) - onehot)


def test_softmax_output_of_images_and_float_labels():
    data = torch.randn(2, 3, 4, 5, requires_grad=True)
    label = torch.randint(3, (2, 4, 5))
    softmax_output(data, label.float()).sum().backward()
    torch.nn.functional.cross_entropy(data, label, reduction="sum").backward()
    assert data.grad.abs().max() > 0.1
    single = data.grad / 2
    onehot = torch.nn.functional.one_hot(label, 3).movedim(3, 1)
    torch.testing.assert_close(single, data.detach().softmax(1) - onehot)


def test_labels_that_are_no_class():
    data = torch.randn(3, 2, requires_grad=True)
    softmax_output(data, torch.tensor([-1, 1, 2])).sum().backward()
    expected = data.detach().softmax(1)
    expected[1, 1] -= 1
    assert torch.equal(data.grad, expected)


def test_who_only_has_the_name_of_a_head():
    class MakeLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    executor = trace(lambda x: MakeLoss.apply(x), capture=False).simple_bind("cpu", x=(2,))
    executor.forward(is_train=True)
    with pytest.raises(ValueError, match="Head gradients are required"):
        executor.backward()


def test_shapes_of_softmax_output():
    with pytest.raises(ValueError, match=r"got \(4, 3\) and \(3,\)"):
        softmax_output(torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(ValueError, match=r"got \(4,\) and \(4,\)"):
        softmax_output(torch.zeros(4), torch.zeros(4))


def test_make_loss():
    executor = trace(lambda x: make_loss(x.square())).simple_bind("cpu", x=(3,))
    executor.forward(is_train=True, x=np.array([1, 2, 3]))
    assert executor.outputs[0].tolist() == [1, 4, 9]
    executor.backward()
    assert executor.grad_dict["x"].tolist() == [2, 4, 6]
    executor.backward(torch.full((3,), 5.0))
    assert executor.grad_dict["x"].tolist() == [2, 4, 6]


def bound():
    executor = trace(lambda a, b: (2 * a, a * b)).simple_bind("cpu", a=(2,), b=(2,))
    executor.forward(is_train=True, a=np.ones(2), b=np.array([3, 4]))
    return executor


@pytest.mark.parametrize(
    "heads",
    [
        [torch.ones(2), torch.ones(2)],
        (np.ones(2), np.ones(2, np.int64)),
        {"mul_output": torch.ones(2), "mul_1_output": np.ones(2)},
        MappingProxyType({"mul_output": torch.ones(2), "mul_1_output": np.ones(2)}),
    ],
    ids=["list", "tuple", "dict", "mapping"],
)
def test_head_gradients(heads):
    executor = bound()
    executor.backward(heads)
    assert executor.grad_dict["a"].tolist() == [5, 6]
    assert executor.grad_dict["b"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("heads", "error", "words"),
    [
        (None, ValueError, "Head gradients are required: output mul_output of shape"),
        ([torch.ones(2), None], ValueError, "required: output mul_1_output"),
        (torch.ones(2), ValueError, "1 head gradients, the graph has 2 outputs"),
        ([torch.ones(2)] * 3, ValueError, "3 head gradients"),
        ([torch.ones(2), torch.ones(3)], ValueError, r"have its shape \(2,\), got \(3,\)"),
        ([torch.ones(2), [1.0, 2.0]], TypeError, r"of shape \(2,\), must be .* list: \[1.0, 2.0\]"),
        ({"mul_output": torch.ones(2)}, ValueError, "required: output mul_1_output"),
        ({"zz": torch.ones(2)}, ValueError, r"names \['zz'\], which are no outputs"),
    ],
)
def test_wrong_head_gradients(heads, error, words):
    executor = bound()
    with pytest.raises(error, match=words):
        executor.backward(heads)
    assert executor.grad_dict["a"].tolist() == [0, 0]


def test_what_needs_no_head_gradient():
    def net(x):
        return x.sum(), make_loss(2 * x), x.detach(), x > 0

    executor = trace(net).simple_bind("cpu", x=(2,))
    executor.forward(is_train=True)
    executor.backward()
    assert executor.grad_dict["x"].tolist() == [3, 3]
    executor.backward([np.float32(2), None, None, None])
    assert executor.grad_dict["x"].tolist() == [4, 4]


def test_gradients_of_what_has_no_influence():
    executor = trace(lambda a, b: a.sum()).simple_bind("cpu", a=(2,), b=(2,))
    executor.grad_dict["b"].fill_(7)
    executor.forward(is_train=True)
    executor.backward()
    assert executor.grad_dict["b"].tolist() == [0, 0]
    adding = trace(lambda a, b: a.sum()).simple_bind("cpu", "add", a=(2,), b=(2,))
    adding.grad_dict["b"].fill_(7)
    adding.forward(is_train=True)
    adding.backward()
    assert adding.grad_dict["b"].tolist() == [7, 7]
