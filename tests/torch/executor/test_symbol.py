"""Names and shapes of a symbol."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import Symbol, shapes, softmax_output, trace  # noqa: E402


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
    names = ["lstm_output0", "lstm_output1_0", "lstm_output1_1"]
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
    given = {"scores": (5, 3), "label": (5,)}
    with pytest.raises(ValueError, match=r"label \(5,\) torch.float32"):
        symbol.infer_shape(**given)
    assert symbol.infer_shape(dtype={"label": torch.int64}, **given)[1] == [()]
    with pytest.raises(ValueError, match="dtype names zz"):
        symbol.infer_shape(dtype={"zz": torch.int64}, **given)
    with pytest.raises(TypeError, match=r"label must be a torch\.dtype, got 'int'"):
        symbol.infer_shape(dtype={"label": "int"}, **given)


def test_dtypes_of_parameters_are_their_own():
    symbol = trace(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"Parameter weight has the dtype torch\.float32 in the"):
        symbol.simple_bind("cpu", dtype={"weight": torch.float64}, input=(4, 3))
    executor = symbol.simple_bind("cpu", dtype=torch.float64, input=(4, 3))
    with pytest.raises(RuntimeError, match="same dtype") as caught:
        executor.forward()
    assert "input (4, 3) torch.float64 on cpu, weight (2, 3)" in caught.value.__notes__[0]


def test_gradients_with_respect_to_an_input():
    def slope(x):
        return torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]

    executor = trace(slope).simple_bind("cpu", x=(2,))
    assert executor.forward(is_train=True, x=torch.tensor([1.0, 2]))[0].tolist() == [3, 12]
    executor.backward(torch.ones(2))
    assert executor.grad_dict["x"].tolist() == [6, 12]
    inplace = trace(lambda x: nn.functional.relu(x, inplace=True))
    assert inplace.infer_shape(x=(2,))[1] == [(2,)]


@torch.fx.wrap
def through_numpy(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


def test_code_that_is_left_as_it_is_runs_at_forwards_alone():
    executor = trace(lambda x: through_numpy(x) * 2).simple_bind("cpu", "null", x=(2,))
    assert executor.outputs == []
    assert executor.forward()[0].tolist() == [0, 0]


def test_hooks_of_layers_run_at_forwards_alone():
    seen = []
    for module in (nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2))):
        layer = module[0] if isinstance(module, nn.Sequential) else module
        layer.register_forward_hook(lambda module, given, output: seen.append(output.detach()))
        executor = trace(module).simple_bind("cpu", input=(4, 3))
        assert seen == []
        executor.forward()
        assert [type(one) for one in seen] == [torch.Tensor]
        seen.clear()


def test_other_errors_keep_their_type(monkeypatch):
    def fail(*args):
        raise NameError("not there")

    monkeypatch.setattr(shapes, "Program", fail)
    with pytest.raises(NameError, match="not there"):
        trace(total).infer_shape(a=(2,), b=(2,))


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
        trace(lambda x: 3)
    with pytest.raises(ValueError, match="Output output is NoneType"):
        trace(lambda x: (x, None))


def test_pickling():
    symbol = pickle.loads(pickle.dumps(trace(total)))
    assert symbol.list_outputs() == ["add_output"]
    assert symbol.simple_bind("cpu", a=(1,), b=(1,)).forward()[0].item() == 0
