"""Recording and replaying a step, with a recorder that needs no GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from crumpets_like.torch.executor import step as stepping  # noqa: E402
from crumpets_like.torch.executor import trace  # noqa: E402
from crumpets_like.torch.executor.graphs import WARM_UPS, Replays, open_recorder  # noqa: E402


class FakeRecorder:
    """Keeps the work itself; recording builds what autograd needs, and takes back its results."""

    def __init__(self, arrays=(), fails=False):
        self.arrays = list(arrays)
        self.fails = fails
        self.blind = False  # as a device is, which knows nothing of autograd
        self.log = []

    def warm_up(self, work):
        self.log.append("warm up")
        work()

    def record(self, work):
        self.log.append("record")
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        before = [array.detach().clone() for array in self.arrays]
        work()
        with torch.no_grad():
            for array, values in zip(self.arrays, before, strict=True):
                if not torch.equal(array, values):
                    array.copy_(values)

        def replay():
            self.log.append("replay")
            if not self.blind:
                work()

        return replay


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        return self.norm(self.fc(x))


def recorded(monkeypatch, module, fails=False):
    recorder = FakeRecorder(fails=fails)
    monkeypatch.setattr(stepping, "open_recorder", lambda device: recorder)
    executor = trace(module).simple_bind("cpu", cuda_graph=True, x=(4, 3))
    recorder.arrays = executor.aux_arrays
    return executor, recorder


def test_the_first_runs_are_ordinary_ones():
    recorder = FakeRecorder()
    replays = Replays(recorder)
    done = []
    for number in range(6):
        replays.run("work", lambda number=number: done.append(number))
    assert recorder.log == ["warm up"] * WARM_UPS + ["record", "replay", "replay", "replay"]
    assert done == [0, 1, 2, 3, 3, 3, 3]


def test_a_step_is_replayed(monkeypatch):
    torch.manual_seed(0)
    module, plain = Net(), Net()
    plain.load_state_dict(module.state_dict())
    executor, recorder = recorded(monkeypatch, module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    other = torch.optim.SGD(plain.parameters(), 0.1)
    for _ in range(8):
        x, head = torch.randn(4, 3), torch.randn(4, 2)
        (output,) = executor.forward(is_train=True, x=x)
        executor.backward(head)
        optimizer.step()
        optimizer.zero_grad()
        expected = plain(x)
        other.zero_grad()
        expected.backward(head)
        other.step()
        assert torch.equal(output, expected)
        assert all(map(torch.equal, module.parameters(), plain.parameters()))
        assert all(map(torch.equal, module.buffers(), plain.buffers()))
    assert recorder.log.count("record") == 2
    assert recorder.log.count("replay") == 2 * (8 - WARM_UPS)
    executor.forward(x=x)
    plain.eval()
    torch.testing.assert_close(executor.outputs[0], plain(x))


def test_modes_are_recorded_apart(monkeypatch):
    executor, recorder = recorded(monkeypatch, Net())
    x = torch.randn(4, 3)
    gradients = {}
    for _ in range(WARM_UPS + 2):
        for is_train in (True, False):
            executor.forward(is_train=is_train, x=x)
            executor.backward(torch.tensor([[1.0, 2], [3, 4], [5, 6], [8, 7]]))
            gradients[is_train] = executor.grad_dict["norm.weight"].clone()
    assert recorder.log.count("record") == 4
    assert not torch.equal(gradients[True], gradients[False])


def test_a_forward_is_recorded_with_its_backward(monkeypatch):
    executor, recorder = recorded(monkeypatch, Net())
    for _ in range(WARM_UPS + 2):
        executor.forward(is_train=True, x=torch.randn(4, 3))
    assert recorder.log.count("record") == 0
    for _ in range(WARM_UPS):
        executor.backward(torch.ones(4, 2))
    executor.forward(is_train=True)
    executor.forward(is_train=True)
    assert recorder.log.count("record") == 2
    with torch.no_grad():
        executor.arg_dict["fc.weight"].add_(1)
    executor.forward(is_train=True)
    executor.backward(torch.ones(4, 2))
    executor.forward(is_train=True)
    executor.backward(torch.ones(4, 2))
    assert recorder.log.count("record") == 4
    assert recorder.log[-4:] == ["record", "replay", "replay", "replay"]


def test_without_gradients_a_forward_is_recorded_alone(monkeypatch):
    recorder = FakeRecorder()
    monkeypatch.setattr(stepping, "open_recorder", lambda device: recorder)
    executor = trace(Net()).simple_bind("cpu", "null", cuda_graph=True, x=(4, 3))
    for _ in range(WARM_UPS + 2):
        executor.forward(x=torch.randn(4, 3))
    assert recorder.log == ["warm up"] * WARM_UPS + ["record", "replay", "replay"]


def test_replays_notice_arrays_that_were_overwritten(monkeypatch):
    executor, recorder = recorded(monkeypatch, Net())
    for _ in range(WARM_UPS + 1):
        executor.forward(is_train=True, x=torch.randn(4, 3))
        executor.backward(torch.ones(4, 2))
    recorder.blind = True
    executor.forward(is_train=True)
    executor.reshape(x=(2, 3)).forward(x=torch.ones(2, 3))
    with pytest.raises(ValueError, match="have been written to since the forward"):
        executor.backward(torch.ones(4, 2))


def test_what_cannot_be_recorded_runs_with_one_warning(monkeypatch):
    executor, recorder = recorded(monkeypatch, Net(), fails=True)
    x = torch.randn(4, 3)

    def step(times):
        for _ in range(times):
            executor.forward(is_train=True, x=x)
            executor.backward(torch.ones(4, 2))

    step(WARM_UPS)
    words = r"cannot be replayed as a CUDA graph \(operation not permitted"
    with pytest.warns(RuntimeWarning, match=words) as caught:
        step(3)
    assert [warning.filename for warning in caught] == [__file__]
    assert recorder.log.count("record") == 1
    assert executor.grad_dict["norm.bias"].tolist() == [4, 4]
    assert executor.aux_dict["norm.num_batches_tracked"] == WARM_UPS + 3


def test_not_while_a_monitor_looks(monkeypatch):
    executor, recorder = recorded(monkeypatch, Net())
    seen = []

    def steps(count):
        for _ in range(count):
            executor.forward(is_train=True, x=torch.randn(4, 3))
            executor.backward(torch.ones(4, 2))

    steps(WARM_UPS + 1)
    log = list(recorder.log)
    executor.set_monitor_callback(lambda name, value: seen.append(name))
    steps(3)
    assert recorder.log == log
    assert seen.count("norm_output") == 3
    executor.set_monitor_callback(None)
    steps(1)
    assert recorder.log[len(log) :] == ["record", "replay", "record", "replay"]
    assert len(seen) == len(set(seen)) * 3


def test_without_a_gpu_there_is_one_warning():
    symbol = trace(Net())
    with pytest.warns(RuntimeWarning, match=r"\(there are none on cpu\)") as caught:
        executor = symbol.simple_bind("cpu", cuda_graph=True, x=(4, 3))
    assert len(caught) == 1
    executor.forward(allow_short=True, x=np.ones((2, 3)))
    assert caught[0].filename == __file__
    assert executor.forward(is_train=True, x=torch.randn(4, 3))[0].shape == (4, 2)


def test_devices_without_graphs():
    with pytest.warns(RuntimeWarning, match="there are none on meta"):
        assert open_recorder(torch.device("meta")) is None
