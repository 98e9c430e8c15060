"""Names and shapes of a symbol."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import Symbol, softmax_output, trace  # noqa: E402


def total(a, b):
    return 2 * a + b


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, data, label):
        scores = self.norm(self.fc(data))
        return {"probabilities": softmax_output(scores, label), "scores": scores.detach()}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x):
        return self.lstm(x)


def test_a_function():
    symbol = trace(total)
    assert isinstance(symbol, Symbol)
    assert symbol.list_arguments() == ["a", "b"]
    assert symbol.list_outputs() == ["add_output"]
    assert symbol.list_auxiliary_states() == []
    assert symbol.infer_shape(a=(2, 3), b=(3,)) == ([(2, 3), (3,)], [(2, 3)], [])
    assert repr(symbol) == "<Symbol total(a, b)>"


def test_a_module():
    symbol = trace(Net())
    parameters = ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    assert symbol.list_arguments() == ["data", "label", *parameters]
    assert symbol.list_outputs() == ["probabilities", "scores"]
    buffers = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert symbol.list_auxiliary_states() == buffers
    assert symbol.infer_shape(data=(5, 3), label=(5,)) == (
        [(5, 3), (5,), (4, 3), (4,), (4,), (4,)],
        [(5, 4), (5, 4)],
        [(4,), (4,), ()],
    )


def test_shared_parameters_are_one_argument():
    module = Tied()
    symbol = trace(module)
    assert symbol.list_arguments() == ["x", "first.weight"]
    executor = symbol.simple_bind("cpu", x=(2, 3))
    x = torch.randn(2, 3)
    executor.forward(is_train=True, x=x)
    executor.backward(torch.ones(2, 3))
    bound = executor.grad_dict["first.weight"].clone()
    module.zero_grad()
    module(x).sum().backward()
    assert torch.equal(bound, module.first.weight.grad)


def test_several_outputs():
    symbol = trace(lambda a, b: (a + b, a * b, a))
    assert symbol.list_outputs() == ["add_output", "mul_output", "a"]
    nested = trace(lambda a, b: {"sum": a + b, "both": [a - b, a * b]})
    executor = nested.simple_bind("cpu", a=(1,), b=(1,))
    assert list(executor.output_dict) == ["sum", "both0", "both1"]


def test_names_that_python_has_too():
    symbol = trace(lambda input, len: (input, len + 1))
    assert symbol.list_arguments() == ["input", "len"]
    assert symbol.list_outputs() == ["input", "add_output"]
    executor = symbol.simple_bind("cpu", input=(1,), len=(1,))
    assert executor.forward(len=torch.ones(1))[1].item() == 2


def test_an_operator_with_several_results():
    symbol = trace(Last())
    executor = symbol.simple_bind("cpu", x=(5, 2, 3))
    names = ["lstm_output0", "lstm_output10", "lstm_output11"]
    assert list(executor.output_dict) == names
    assert executor.output_dict[names[0]].shape == (5, 2, 4)


def test_a_layer_of_torch_is_one_operator():
    symbol = trace(nn.LSTM(3, 4))
    assert symbol.list_arguments()[:2] == ["input", "weight_ih_l0"]
    assert symbol.list_outputs() == ["lstm_output"]
    assert symbol.infer_shape(input=(5, 2, 3))[1][0] == (5, 2, 4)


def test_shapes_that_are_wrong():
    symbol = trace(Net())
    with pytest.raises(ValueError, match="shape of argument label is missing"):
        symbol.infer_shape(data=(5, 3))
    with pytest.raises(ValueError, match="shapes names zz"):
        symbol.infer_shape(data=(5, 3), label=(5,), zz=(1,))
    with pytest.raises(ValueError, match=r"argument data must be a tuple .* got \[5, 3\]"):
        symbol.infer_shape(data=[5, 3], label=(5,))
    with pytest.raises(ValueError, match=r"argument data must be a tuple .* got \(-5, 3\)"):
        symbol.infer_shape(data=(-5, 3), label=(5,))
    with pytest.raises(ValueError, match=r"disagree: data \(5, 2\)"):
        symbol.infer_shape(data=(5, 2), label=(5,))
    with pytest.raises(ValueError, match=r"Parameter fc.bias has the shape \(4,\)"):
        symbol.infer_shape(data=(5, 3), label=(5,), **{"fc.bias": (5,)})


def test_dtypes():
    def loss(scores, label):
        return nn.functional.cross_entropy(scores, label)

    symbol = trace(loss)
    shapes = {"scores": (5, 3), "label": (5,)}
    with pytest.raises(ValueError, match=r"label \(5,\) torch.float32"):
        symbol.infer_shape(**shapes)
    assert symbol.infer_shape(dtype={"label": torch.int64}, **shapes)[1] == [()]
    with pytest.raises(ValueError, match="dtype names zz"):
        symbol.infer_shape(dtype={"zz": torch.int64}, **shapes)
    with pytest.raises(TypeError, match=r"label must be a torch\.dtype, got 'int'"):
        symbol.infer_shape(dtype={"label": "int"}, **shapes)


def test_shapes_that_depend_on_values():
    symbol = trace(lambda x: x[x > 0])
    with pytest.raises(ValueError, match="depend on values"):
        symbol.infer_shape(x=(4,))
    executor = symbol.simple_bind("cpu", x=(4,))
    assert executor.outputs == []
    assert executor.forward(x=torch.tensor([1.0, -1, 2, -2]))[0].tolist() == [1, 2]
    assert executor.forward(x=torch.tensor([1.0, 1, 2, -2]))[0].tolist() == [1, 1, 2]


def test_what_is_no_tensor():
    with pytest.raises(ValueError, match="Output output is int 3"):
        trace(lambda x: 3).infer_shape(x=(2,))
    with pytest.raises(ValueError, match="Output output is NoneType"):
        trace(lambda x: (x, None)).infer_shape(x=(2,))


def test_pickling():
    symbol = pickle.loads(pickle.dumps(trace(total)))
    assert symbol.list_outputs() == ["add_output"]
    assert symbol.simple_bind("cpu", a=(1,), b=(1,)).forward()[0].item() == 0
