"""What a monitor sees."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402


def total(a, b):
    return 2 * a + b


def bound(**options):
    executor = trace(total, **options).simple_bind("cpu", a=(2,), b=(2,))
    seen = []
    return executor, seen, lambda name, value: seen.append((name, value.tolist()))


def step(executor):
    executor.forward(is_train=True, a=np.array([1, 2]), b=np.array([2, 3]))
    executor.backward(torch.tensor([1.0, 10.0]))


def test_operators_and_their_gradients():
    executor, seen, see = bound()
    executor.set_monitor_callback(see)
    step(executor)
    assert seen[:2] == [("mul_output", [2, 4]), ("add_output", [4, 7])]
    assert sorted(seen[2:]) == [
        ("a_grad", [2, 20]),
        ("add_output_grad", [1, 10]),
        ("b_grad", [1, 10]),
        ("mul_output_grad", [1, 10]),
    ]
    assert executor.grad_dict["a"].tolist() == [2, 20]


def test_inputs():
    executor, seen, see = bound()
    executor.set_monitor_callback(see, monitor_all=True)
    executor.forward(a=np.array([1, 2]), b=np.array([2, 3]))
    assert seen == [
        ("a", [1, 2]),
        ("b", [2, 3]),
        ("mul_input0", [1, 2]),
        ("mul_output", [2, 4]),
        ("add_input0", [2, 4]),
        ("add_input1", [2, 3]),
        ("add_output", [4, 7]),
    ]


def test_it_can_be_taken_off():
    executor, seen, see = bound()
    executor.set_monitor_callback(see)
    executor.set_monitor_callback(None)
    step(executor)
    assert seen == []


def test_an_exception_propagates():
    executor, _, see = bound()

    def fail(name, value):
        raise LookupError(name)

    executor.set_monitor_callback(fail)
    with pytest.raises(LookupError, match="mul_output"):
        executor.forward(is_train=True)
    executor.set_monitor_callback(see)
    executor.forward(is_train=True)
    executor.set_monitor_callback(fail)
    executor.set_monitor_callback(lambda name, value: fail(name, value) if "grad" in name else None)
    executor.forward(is_train=True)
    with pytest.raises(LookupError, match="add_output_grad"):
        executor.backward(torch.ones(2))
    assert executor.grad_dict["a"].tolist() == [0, 0]
    executor.set_monitor_callback(None)
    step(executor)
    assert executor.grad_dict["a"].tolist() == [2, 20]


def test_without_a_graph_it_sees_the_outputs():
    executor, seen, see = bound(capture=False)
    executor.set_monitor_callback(see)
    step(executor)
    names = ["total_output", "total_output_grad", "a_grad", "b_grad"]
    assert [name for name, _ in seen] == names


def test_short_mini_batches_are_seen():
    executor, seen, see = bound()
    executor.forward(allow_short=True, a=np.ones(1), b=np.ones(1))
    executor.set_monitor_callback(see)
    executor.forward(allow_short=True, a=np.ones(1), b=np.ones(1))
    assert seen == [("mul_output", [2]), ("add_output", [3])]


def test_results_are_the_same_to_the_last_bit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            states, (last, _) = self.lstm(x)
            return F.dropout(F.relu(self.fc(states), inplace=True), 0.3, self.training), last

    module = Net()
    executor = trace(module).simple_bind("cpu", x=(5, 2, 3))
    x = torch.randn(5, 2, 3)
    heads = [torch.randn(5, 2, 2), torch.randn(1, 2, 4)]
    results = []
    names = []
    for callback in (None, lambda name, value: names.append(name)):
        executor.set_monitor_callback(callback)
        torch.manual_seed(1)
        executor.forward(is_train=True, x=x)
        executor.backward(heads)
        arrays = [*executor.outputs, *executor.grad_arrays]
        results.append([array.clone() for array in arrays])
    assert all(map(torch.equal, *results))
    assert {"lstm_output0", "lstm_output1_0", "fc_output", "dropout_output"} <= set(names)
