"""What the loader promises on a CUDA device: right values at full speed, no leak."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from crumpets_like import BufferWorker, Worker  # noqa: E402
from crumpets_like.torch import TorchTurboDataLoader  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} finds no CUDA device on this machine",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_is_up():
    """What CUDA opens once for the whole process is no leak of the first test."""
    matrix = torch.ones(8, 8).pin_memory().to("cuda")
    torch.mm(matrix, matrix).cpu()


SHAPE = (3, 224, 224)
SIZE = 64


class Numbered(BufferWorker):
    """Fills a row with the number of its batch."""

    def __init__(self, shape=SHAPE, size=SIZE):
        super().__init__()
        self.size = size
        self.add_buffer("image", (shape, np.float32))
        self.add_buffer("label", ((), np.int64))

    def prepare(self, sample, batch, buffers):
        buffers["image"][...] = sample // self.size
        buffers["label"][...] = sample // self.size


class FreeForm(Worker):
    def process(self, sample):
        return {"image": np.full((3, 64, 64), sample // 8, np.float32), "name": str(sample)}


def wrong(mini_batch, number):
    """How many elements are wrong, on the device: nothing waits for it here."""
    image, label = mini_batch["image"], mini_batch["label"]
    return (image != number).sum() + (label != number).sum()


class LongWork:
    """Kernels that keep the current stream busy for some tens of milliseconds."""

    def __init__(self):
        self.matrix = torch.randn(4096, 4096, device="cuda")

    def __call__(self):
        for _ in range(4):
            torch.mm(self.matrix, self.matrix)


@pytest.mark.parametrize("buffers", [1, 2, True])
def test_batch_k_is_all_k(buffers):
    busy = LongWork()
    with TorchTurboDataLoader(
        range(300 * SIZE), SIZE, Numbered(), 4, shared_memory=buffers
    ) as loader:
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        for number, (_, (mini_batch,)) in enumerate(loader):
            assert mini_batch["image"].device == torch.device("cuda:0")
            assert mini_batch["image"].shape == (SIZE, *SHAPE)
            busy()
            total += wrong(mini_batch, number)
            del mini_batch  # its memory is free for the allocator while the kernels are queued
    assert number == 299
    assert int(total) == 0


def test_on_a_stream_of_the_callers():
    busy = LongWork()
    stream = torch.cuda.Stream()
    busy()
    torch.cuda.synchronize()
    with (
        torch.cuda.stream(stream),
        TorchTurboDataLoader(range(100 * SIZE), SIZE, Numbered(), 4, shared_memory=2) as loader,
    ):
        total = torch.zeros((), dtype=torch.int64, device="cuda")
        for number, (_, (mini_batch,)) in enumerate(loader):
            busy()
            total += wrong(mini_batch, number)
            del mini_batch
        assert int(total) == 0


def test_buffers_are_page_locked_and_unlocked():
    loader = TorchTurboDataLoader(range(8 * SIZE), SIZE, Numbered(), 2, shared_memory=3).start()
    memory = torch.from_numpy(loader._engine._parts.ring.first_slots)
    assert memory.is_pinned()
    kept = [mini_batch for _, (mini_batch,) in loader]
    loader.stop()
    assert not memory.is_pinned()
    assert [int(wrong(mini_batch, number)) for number, mini_batch in enumerate(kept)] == [0] * 8


def test_refused_pages(monkeypatch):
    from crumpets_like.torch.device import CudaDevice

    lock_pages = CudaDevice.lock_pages

    def twice(self, memory):
        assert lock_pages(self, memory) is None
        why = lock_pages(self, memory)  # CUDA refuses what is locked already
        self.unlock_pages(memory)
        return why

    monkeypatch.setattr(CudaDevice, "lock_pages", twice)
    loader = TorchTurboDataLoader(range(20 * SIZE), SIZE, Numbered(), 2)
    with pytest.warns(RuntimeWarning, match="could not be page-locked .*already"):
        loader.start()
    with loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            assert int(wrong(mini_batch, number)) == 0


@pytest.mark.parametrize("nworkers", [0, 2])
def test_free_form_results(nworkers):
    with TorchTurboDataLoader(range(400), 8, FreeForm(), nworkers) as loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            assert mini_batch["name"][0] == str(8 * number)
            assert int((mini_batch["image"] != number).sum()) == 0


def test_several_devices():
    devices = [f"cuda:{index % torch.cuda.device_count()}" for index in range(2)] + ["cpu"]
    with TorchTurboDataLoader(
        range(3 * 40), 3, Numbered((8,), 3), 2, num_mini_batches=3, device=devices
    ) as loader:
        for number, (_, mini_batches) in enumerate(loader):
            assert [str(part["image"].device) for part in mini_batches] == devices
            assert all(int(wrong(part, number)) == 0 for part in mini_batches)


class OnDevice(Worker):
    def process(self, sample):
        return {"x": torch.ones(3, device="cuda")}


def test_workers_do_not_start_cuda():
    with (
        TorchTurboDataLoader(range(4), 4, OnDevice(), 0) as loader,
        pytest.raises(
            pickle.PicklingError,
            match=r"result\['x'\] .*returned a tensor on cuda:0: workers prepare",
        ),
    ):
        next(iter(loader))
    with (
        TorchTurboDataLoader(range(4), 4, OnDevice(), 1, start_method="fork") as loader,
        pytest.raises(
            (RuntimeError, pickle.PicklingError), match=r"forked subprocess|workers prepare"
        ),
    ):
        next(iter(loader))


def test_nothing_leaks():
    def allocated():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    before, _ = allocated()
    with TorchTurboDataLoader(range(250 * SIZE), SIZE, Numbered(), 4) as loader:
        seen = []
        for _ in range(4):
            for number, (_, (mini_batch,)) in enumerate(loader):
                if number % 50 == 0:
                    assert int(wrong(mini_batch, number)) == 0
            del mini_batch
            seen.append(allocated())
        assert loader.statistics().buffers_held <= 1
    most = 32 * SIZE * 3 * 224 * 224 * 4  # what may be copied ahead, of the next epoch too
    assert all(reserved <= seen[0][1] + most for _, reserved in seen)
    del loader
    assert allocated()[0] == before


def test_copies_have_names_in_the_profiler():
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with (
        TorchTurboDataLoader(range(10 * SIZE), SIZE, Numbered(), 2) as loader,
        profile(activities=activities) as profiler,
    ):
        assert len(list(loader)) == 10
    names = [event.name for event in profiler.events()]
    assert names.count("crumpets_like: copy to cuda:0") >= 10
    assert any("Memcpy HtoD (Pinned -> Device)" in name for name in names)
