"""What a copy reads from is held until it is done; CUDA is asked in the right order."""

from __future__ import annotations

import contextlib
import gc
import os
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from crumpets_like.broker.buffers import BufferSpec, SlotLayout  # noqa: E402
from crumpets_like.broker.ring import BufferRing  # noqa: E402
from crumpets_like.torch import device as module  # noqa: E402
from crumpets_like.torch.device import (  # noqa: E402
    CudaDevice,
    Device,
    Transfer,
    as_tensor,
    check_devices,
    named,
    open_devices,
)
from tests.support.devices import SlowDevice  # noqa: E402


@pytest.fixture
def ring():
    ring = BufferRing(SlotLayout({"x": BufferSpec((4,), np.int64)}, 2), 3, 1, 3)
    yield ring
    ring.close()


def fill(ring, value):
    """The mini-batch of one more slot."""
    mini_batch = ring.layout.views(ring.lease(ring.take()), 2)
    mini_batch["x"][...] = value
    return mini_batch


class TestTransfer:
    def test_a_slot_is_held_until_its_copy_is_done(self, ring):
        device = SlowDevice()
        transfer = Transfer([device])
        pending = transfer.begin(fill(ring, 7))
        values = transfer.finish(pending)
        transfer.release()
        assert ring.held == 1
        del pending
        gc.collect()
        assert (ring.held, values["x"].unique().tolist()) == (1, [0])
        device.run(1)
        assert ring.held == 1
        transfer.release()
        assert (ring.held, values["x"].unique().tolist()) == (0, [7])

    def test_copies_that_nobody_wants_any_more_hold_their_slots(self, ring):
        device = SlowDevice()
        transfer = Transfer([device])
        for value in (1, 2):
            transfer.begin(fill(ring, value))
        assert ring.held == 2
        device.run(1)
        transfer.release()
        assert ring.held == 1

    def test_wait_ends_with_the_oldest_copy(self, ring):
        device = SlowDevice()
        transfer = Transfer([device])
        kept = [transfer.begin(fill(ring, value)).values["x"] for value in (1, 2)]
        assert transfer.wait()
        assert [int(x[0, 0]) for x in kept] == [1, 0]
        assert (device.done, ring.held) == (1, 1)
        assert transfer.wait()
        assert not transfer.wait()
        assert ring.held == 0

    def test_close_waits_for_copies_and_unlocks_pages(self, ring):
        device = SlowDevice()
        transfer = Transfer([device])
        transfer.lock_pages(ring.first_slots)
        assert device.locked == 3 * ring.geometry.stride
        values = transfer.begin(fill(ring, 5)).values
        transfer.close()
        transfer.close()
        assert (device.locked, device.done, ring.held) == (0, 1, 0)
        assert values["x"].unique().tolist() == [5]

    def test_a_device_that_broke_is_logged_when_it_is_closed(self, ring, caplog):
        device = SlowDevice()
        device.run = lambda stop: (_ for _ in ()).throw(RuntimeError("illegal address"))
        transfer = Transfer([device])
        transfer.begin(fill(ring, 5))
        transfer.close()
        assert "illegal address" in caplog.text
        assert ring.held == 0

    def test_a_forked_child_leaves_the_device_alone(self, ring):
        device = SlowDevice()
        transfer = Transfer([device])
        transfer.lock_pages(ring.first_slots)
        child = os.fork()
        if not child:
            transfer.close()
            os._exit(0 if device.locked else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        transfer.close()

    def test_refused_pages_are_one_warning(self, ring):
        transfer = Transfer([SlowDevice(refuses=True)])
        with pytest.warns(RuntimeWarning, match=r"192 bytes .* \(no such right\)") as caught:
            transfer.lock_pages(ring.first_slots)
        assert len(caught) == 1
        transfer.close()

    def test_nothing_is_locked_for_devices_that_copy_at_once(self, ring):
        device = Device(torch.device("cpu"))
        device.lock_pages = None
        Transfer([device]).lock_pages(ring.first_slots)
        Transfer([device, SlowDevice()]).lock_pages(ring.first_slots)

    def test_holes_of_free_form_slots_are_never_locked(self):
        ring = BufferRing(None, 4, 1)
        assert ring.first_slots.nbytes == 0
        device = SlowDevice()
        Transfer([device]).lock_pages(ring.first_slots)
        assert device.locked == 0
        ring.close()

    def test_the_cpu_gets_views(self, ring):
        transfer = Transfer(open_devices(check_devices("cpu:0", 1)))
        mini_batch = fill(ring, 1)
        values = transfer.finish(transfer.begin(mini_batch))
        assert values["x"].data_ptr() == mini_batch["x"].ctypes.data
        del mini_batch
        assert (transfer.wait(), ring.held) == (False, 1)
        del values
        assert ring.held == 0

    def test_a_device_that_copies_at_once_holds_nothing(self, ring):
        transfer = Transfer([Device(torch.device("meta"))])  # as "mps" would be
        values = transfer.finish(transfer.begin(fill(ring, 1)))
        assert values["x"].device == torch.device("meta")
        assert (transfer.ahead, transfer.wait(), ring.held) == (False, False, 0)

    def test_a_slot_is_free_when_its_copy_is_done_not_what_is_made_of_it(self, ring):
        class Recording(SlowDevice):
            def apply(self, function, values):
                return function(values), "of what is made"

            def hand_over(self, tensors, event):
                self.handed_over.append((tensors, event))

        device = Recording()
        made = torch.ones(3)
        transfer = Transfer([device], lambda values: {**values, "y": made, "z": [1]})
        pending = transfer.begin(fill(ring, 7))
        values = transfer.finish(pending)
        ((tensors, event),) = device.handed_over
        assert list(values) == ["x", "y", "z"]
        assert [id(tensor) for tensor in tensors] == [id(values["x"]), id(made)]
        assert event == "of what is made"
        device.synchronize()
        transfer.release()
        assert ring.held == 0

    def test_a_function_that_fails_leaves_the_slot_to_its_copy(self, ring):
        device = SlowDevice()
        transfer = Transfer([device], lambda values: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            transfer.begin(fill(ring, 7))
        gc.collect()
        assert ring.held == 1
        device.synchronize()
        transfer.release()
        assert ring.held == 0

    def test_what_torch_does_not_have_stays_numpy(self):
        dates = np.zeros(2, "M8[s]")
        mini_batch = {"a": np.ones(2), "dates": dates, "names": ["a", "b"], "t": torch.ones(1)}
        on_cpu = Transfer([Device(torch.device("cpu"))]).begin(mini_batch).values
        assert list(on_cpu) == list(mini_batch)
        assert on_cpu["dates"] is dates
        device = SlowDevice()
        values = Transfer([device]).begin(mini_batch).values
        device.synchronize()
        assert values["dates"] is not dates  # it would hold the slot
        assert (values["dates"] == dates).all()
        assert values["names"] == ["a", "b"]
        assert torch.equal(values["a"], torch.ones(2, dtype=torch.float64))
        assert torch.equal(values["t"], torch.ones(1))


@pytest.mark.parametrize("code", "?bhilqBHILefdFD")
def test_dtypes_of_both(code):
    if not hasattr(torch, "uint16") and code in "HIL":
        pytest.skip("this torch has no unsigned integers but uint8")
    array = np.zeros(3, code)
    tensor = as_tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize("dtype", ["g", "M8[s]", "m8[s]", "U3", "S3", ">i4", ">f8", "i4,f4", "O"])
def test_dtypes_that_torch_does_not_have(dtype):
    assert as_tensor(np.zeros(3, dtype)) is None


@pytest.mark.parametrize("value", [[1, 2], 3, "a", np.ma.masked_array([1, 2])])
def test_what_is_no_array(value):
    assert as_tensor(value) is None


@pytest.fixture
def two_gpus(monkeypatch):
    """As if there were two CUDA devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


class TestCheckDevices:
    def test_default_is_the_first_gpu(self, two_gpus):
        assert check_devices(None, 3) == [torch.device("cuda:0")]

    def test_default_without_gpu(self, no_gpu, monkeypatch):
        assert check_devices(None, 3) == [torch.device("cpu")]
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert check_devices(None, 1) == [torch.device("cpu")]
        assert check_devices("mps", 1) == [torch.device("mps")]

    @pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 1), "cpu"])
    def test_one_that_is_there(self, two_gpus, device):
        assert check_devices(device, 1) == [torch.device(device)]

    @pytest.mark.parametrize("device", ["cuda:2", torch.device("cuda", 2), "meta", "cpu:1"])
    def test_one_that_is_not_there(self, two_gpus, device):
        with pytest.raises(ValueError, match=r"is not there: torch .* finds cuda:0, cuda:1, cpu"):
            check_devices(device, 1)
        with pytest.raises(ValueError, match=f"device '{torch.device(device)}' is"):
            check_devices(device, 1)

    @pytest.mark.parametrize("device", ["cuda", "cuda:0", "mps"])
    def test_none_is_there(self, no_gpu, device):
        with pytest.raises(ValueError, match=f"{device}' is not there: torch .* finds cpu"):
            check_devices(device, 1)

    def test_one_that_torch_does_not_know(self):
        with pytest.raises(ValueError, match="'gpu' is no device of torch: "):
            check_devices("gpu", 1)

    def test_one_for_each_mini_batch(self, two_gpus):
        assert check_devices(["cuda:1", "cuda:0"], 2) == [torch.device("cuda", i) for i in (1, 0)]
        with pytest.raises(ValueError, match=r"got 2 devices .* and num_mini_batches=3"):
            check_devices(("cuda:0", "cuda:1"), 3)

    def test_one_device_has_one_stream(self):
        first, second, third = open_devices([torch.device(name) for name in ("cpu", "mps", "cpu")])
        assert first is third
        assert first is not second


class FakeCuda:
    """What `CudaDevice` uses of ``torch.cuda``, written down."""

    def __init__(self):
        self.log = []
        self.result = 0

    def current_device(self):
        return 3

    def Stream(self, device):  # noqa: N802
        return SimpleNamespace(synchronize=lambda: self.log.append(f"synchronize {device}"))

    def stream(self, stream):
        self.log.append("on our stream")
        return contextlib.nullcontext()

    def device(self, device):
        self.log.append(f"current device {device}")
        return contextlib.nullcontext()

    def Event(self, blocking):  # noqa: N802
        assert blocking
        return SimpleNamespace(record=lambda stream: self.log.append("record event"))

    def current_stream(self, device):
        self.log.append(f"current stream of {device}")
        return SimpleNamespace(wait_event=lambda event: self.log.append("wait for event"))

    def cudart(self):
        return self

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.log.append(("register", address, size, flags))
        return self.result

    def cudaGetErrorString(self, result):  # noqa: N802
        return f"error {result}"

    def cudaHostUnregister(self, address):  # noqa: N802
        self.log.append(("unregister", address))
        return self.result


class FakeTensor:
    def __init__(self, log, pinned=True, fails=False):
        self.log, self.pinned, self.fails = log, pinned, fails

    def is_pinned(self):
        return self.pinned

    def pin_memory(self):
        self.log.append("pin")
        return self

    def to(self, device, non_blocking):
        assert non_blocking
        if self.fails:
            raise RuntimeError("out of memory")
        self.log.append(f"copy to {device}")
        return self

    def record_stream(self, stream):
        assert hasattr(stream, "wait_event")
        self.log.append("record stream")


@pytest.fixture
def cuda(monkeypatch):
    fake = FakeCuda()
    monkeypatch.setattr(module, "_cuda", fake)
    return fake


class TestCudaDevice:
    """No GPU here: that it asks CUDA for the right things. ``tests/gpu`` tests what comes of it."""

    def test_copy_and_hand_over(self, cuda):
        device = CudaDevice(torch.device("cuda"))
        assert device.device == torch.device("cuda:3")
        sources = [FakeTensor(cuda.log), FakeTensor(cuda.log, pinned=False)]
        tensors, event = device.copy(sources)
        copy = "copy to cuda:3"
        assert cuda.log == ["on our stream", copy, "pin", copy, "record event"]
        cuda.log.clear()
        device.hand_over(tensors, event)
        waits = ["current stream of cuda:3", "wait for event"]
        assert cuda.log == [*waits, "record stream", "record stream"]

    def test_what_is_made_of_copies_is_made_on_the_same_stream(self, cuda):
        device = CudaDevice(torch.device("cuda:1"))

        def function(values):
            cuda.log.append("function")
            return {"y": values["x"]}

        values, event = device.apply(function, {"x": 1})
        assert values == {"y": 1}
        assert cuda.log == ["on our stream", "function", "record event"]
        cuda.log.clear()
        device.hand_over([], event)
        assert cuda.log == ["current stream of cuda:1", "wait for event"]

    def test_a_copy_that_fails_leaves_none_under_way(self, cuda):
        device = CudaDevice(torch.device("cuda:1"))
        with pytest.raises(RuntimeError, match="out of memory"):
            device.copy([FakeTensor(cuda.log), FakeTensor(cuda.log, fails=True)])
        assert cuda.log == ["on our stream", "copy to cuda:1", "synchronize cuda:1"]

    def test_pages_are_locked_for_all_devices(self, cuda):
        memory = np.zeros(64, np.uint8)
        device = CudaDevice(torch.device("cuda:1"))
        assert device.lock_pages(memory) is None
        device.unlock_pages(memory)
        address, current = memory.ctypes.data, "current device cuda:1"
        assert cuda.log == [
            current, ("register", address, 64, 1), current, ("unregister", address),
        ]  # fmt: skip

    def test_the_error_of_refused_pages_is_not_left_to_the_next_kernel(self, cuda, monkeypatch):
        launched = []

        def ones(shape, device):
            launched.append(device)
            raise RuntimeError("what cudaHostRegister left behind")

        monkeypatch.setattr(torch, "ones", ones)
        cuda.result = 2
        device = CudaDevice(torch.device("cuda:0"))
        assert device.lock_pages(np.zeros(64, np.uint8)) == "cudaHostRegister: error 2"
        assert launched == [torch.device("cuda:0")]
        with pytest.raises(RuntimeError, match="cudaHostUnregister: error 2"):
            device.unlock_pages(np.zeros(64, np.uint8))

    def test_it_is_what_cuda_devices_get(self, cuda):
        (device,) = open_devices([torch.device("cuda:1")])
        assert isinstance(device, CudaDevice)
        assert Transfer([device]).ahead


def test_ranges_have_names_only_for_a_profiler():
    from torch.profiler import ProfilerActivity, profile

    assert named("unseen") is named("unseen")  # nothing is made
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with named("seen"):
            pass
        device = SlowDevice()
        Transfer([device]).begin({"x": np.zeros(3)})
        Transfer([Device(torch.device("cpu"))]).begin({"x": np.zeros(3)})
    names = [event.name for event in profiler.events()]
    assert "seen" in names
    assert "unseen" not in names
    assert names.count("crumpets_like: copy to cpu") == 1  # views are no copies


def test_workers_must_not_use_devices():
    from crumpets_like.broker.tensors import _reduce

    tensor = SimpleNamespace(device=torch.device("cuda:0"))
    with pytest.raises(RuntimeError, match=r"tensor on cuda:0: .* must not use a device .* fork"):
        _reduce(tensor)
