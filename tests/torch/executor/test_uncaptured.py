"""With capture=False the code runs as it is, at forwards alone."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import trace  # noqa: E402


class Average(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("unused", None)

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x * self.mean


class Forgetful(Average):
    def forward(self, x):
        self.mean = x.sum()
        return x


def ones(executor, rows=None):
    shape = executor.arg_dict["x"].shape
    return executor.forward(x=torch.ones(rows or shape[0], *shape[1:]), allow_short=bool(rows))


def test_nothing_runs_before_the_first_forward():
    state = {"sum": torch.zeros(2)}
    norm = nn.BatchNorm1d(2)
    seen = []

    def running(x):
        seen.append(x.detach().sum())
        state["sum"] = state["sum"] + norm(x)[0].detach() * 0 + x[0]
        return state["sum"] * 1.0

    executor = trace(running, capture=False).simple_bind("cpu", "null", x=(3, 2))
    assert executor.reshape(x=(2, 2)).outputs == []
    assert seen == []
    assert norm.num_batches_tracked == 0
    assert [ones(executor)[0].tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    assert torch.stack(seen).tolist() == [6, 6, 6]
    assert norm.num_batches_tracked == 3


def test_assigned_buffers_are_those_of_the_module():
    module, plain = Average(), Average()
    executor = trace(module, capture=False).simple_bind("cpu", x=(4, 2))
    bound = module.mean
    for _ in range(3):
        x = torch.randn(4, 2)
        assert torch.equal(executor.forward(is_train=True, x=x)[0], plain(x))
        executor.backward(torch.ones(4, 2))
        assert torch.equal(executor.grad_dict["x"], plain.mean.expand(4, 2))
        assert torch.equal(module.mean, plain.mean)
    assert executor.aux_dict["mean"] is bound is module.mean
    again = pickle.loads(pickle.dumps(executor))
    assert torch.equal(again.aux_dict["mean"], plain.mean)


def test_buffers_that_would_change_their_shape():
    executor = trace(Forgetful(), capture=False).simple_bind("cpu", x=(4, 2))
    with pytest.raises(ValueError, match=r"Buffer mean of module Forgetful is assigned \(\); its"):
        executor.forward()


def test_shapes_are_not_checked_beforehand():
    symbol = trace(lambda a, b: a + b, capture=False)
    executor = symbol.simple_bind("cpu", a=(2,), b=(3,))
    with pytest.raises(RuntimeError, match="size of tensor") as caught:
        executor.forward()
    assert "a (2,) torch.float32 on cpu, b (3,) torch.float32 on cpu" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="known after the first forward"):
        symbol.infer_shape(a=(2,), b=(2,))


def test_what_is_not_named_keeps_its_shape():
    executor = trace(lambda a, b: a + b, capture=False).simple_bind("cpu", a=(4,), b=(4,))
    smaller = executor.reshape(a=(2,), b=(2,))
    assert smaller.forward()[0].shape == (2,)
    assert executor.reshape(a=(2,)).arg_dict["b"].shape == (4,)
    with pytest.raises(ValueError, match="partial_shaping=True needs a graph"):
        executor.reshape(partial_shaping=True, a=(2,))


def test_outputs_of_short_mini_batches():
    executor = trace(lambda x: {"double": 2 * x}, capture=False).simple_bind("cpu", x=(4, 2))
    assert executor.outputs == []
    ones(executor, rows=3)
    assert executor.output_dict["double"].shape == (3, 2)
    ones(executor)
    assert executor.output_dict["double"].shape == (4, 2)


def test_hooks_see_what_callers_give():
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_pre_hook(lambda module, given: (given[0] * 2,))
    executor = trace(module, capture=False).simple_bind("cpu", input=(4, 3))
    x = torch.randn(4, 3)
    assert torch.equal(executor.forward(input=x)[0], module(x))
