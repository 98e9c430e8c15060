"""Training and inference of one symbol: other outputs, other layers, frozen parts."""

import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from crumpets_like.torch.executor import step as stepping  # noqa: E402
from crumpets_like.torch.executor import trace  # noqa: E402


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, y):
        scores = self.fc(x)
        loss = F.cross_entropy(scores, y)
        return {"loss": loss} if self.training else {"scores": scores, "loss": loss}


def bound(**options):
    dtype = {"y": torch.int64}
    return trace(Loss()).simple_bind("cpu", dtype=dtype, x=(4, 3), y=(4,), **options)


def test_outputs_of_each_mode_stay_where_they_are():
    executor = bound()
    places = []
    for _ in range(3):
        executor.forward(is_train=True)
        assert list(executor.output_dict) == ["loss"]
        trained = executor.outputs[0]
        executor.forward()
        assert list(executor.output_dict) == ["scores", "loss"]
        places.append([array.data_ptr() for array in (trained, *executor.outputs)])
    assert places[0] == places[2]


def test_modes_share_an_output():
    executor = trace(nn.BatchNorm1d(3)).simple_bind("cpu", input=(4, 3))
    (trained,) = executor.forward(is_train=True)
    assert executor.forward()[0].data_ptr() == trained.data_ptr()


def test_names_and_shapes_are_those_of_inference():
    executor = bound()
    symbol = executor._symbol
    assert symbol.list_outputs() == list(executor.output_dict) == ["scores", "loss"]
    assert symbol.infer_shape(dtype={"y": torch.int64}, x=(4, 3), y=(4,))[1] == [(4, 2), ()]


def test_short_mini_batches_and_reshape_after_training():
    executor = bound()
    executor.forward(is_train=True)
    y = torch.zeros(2, dtype=torch.int64)
    executor.forward(is_train=True, allow_short=True, x=torch.ones(2, 3), y=y)
    assert list(executor.output_dict) == ["loss"]
    executor.backward()
    other = executor.reshape(x=(2, 3), y=(2,))
    other.forward()
    assert other.output_dict["scores"].shape == (2, 2)
    other.forward(is_train=True)
    assert other.output_dict["loss"].shape == ()


def test_replays_show_the_outputs_of_their_mode(monkeypatch):
    class Blind:
        def warm_up(self, work):
            work()

        def record(self, work):
            work()
            return lambda: None

    monkeypatch.setattr(stepping, "open_recorder", lambda device: Blind())
    executor = bound(cuda_graph=True)
    for _ in range(6):
        executor.forward(is_train=True, x=torch.ones(4, 3))
        assert list(executor.output_dict) == ["loss"]
        executor.backward()
        executor.forward()
        assert list(executor.output_dict) == ["scores", "loss"]
        executor.backward([torch.ones(4, 2), None])


def test_what_the_user_has_frozen_stays_in_evaluation():
    module = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)))
    module[1][0].eval()
    plain = copy.deepcopy(module)
    executor = trace(module).simple_bind("cpu", input=(4, 3))
    for capture in (True, False):
        executor = trace(module, capture).simple_bind("cpu", input=(4, 3))
        x = torch.randn(4, 3)
        torch.manual_seed(0)
        (output,) = executor.forward(is_train=True, input=x)
        torch.manual_seed(0)
        assert torch.equal(output, plain(x))
    assert module[1][0].num_batches_tracked == 0


def test_a_module_in_evaluation_is_trained_when_asked():
    executor = trace(nn.Sequential(nn.BatchNorm1d(3)).eval()).simple_bind("cpu", input=(4, 3))
    executor.forward(is_train=True)
    assert executor.aux_dict["0.num_batches_tracked"] == 1
