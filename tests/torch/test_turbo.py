"""The loader of tensors: views on the CPU; copied ahead of the caller, and in order, elsewhere."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import warnings

import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")

from crumpets_like import (  # noqa: E402
    BufferExhausted,
    BufferWorker,
    LoaderClosed,
    LoaderError,
    TurboDataLoader,
    Worker,
)
from crumpets_like.torch import TorchTurboDataLoader  # noqa: E402
from tests.support.devices import SlowDevice, use_devices  # noqa: E402
from tests.support.leasing import FreeForm, Listed, Numbers, Rows  # noqa: E402
from tests.support.loading import wait_until  # noqa: E402

both = pytest.mark.parametrize("nworkers", [0, 2])


def fork(dataset, batch_size, worker, nworkers, **options):
    """A loader that starts quickly."""
    options = {"start_method": "fork", **options}
    return TorchTurboDataLoader(dataset, batch_size, worker, nworkers, **options)


def check(mini_batch, first, rows):
    """The numbers from `first` on, in both fields."""
    expected = torch.arange(first, first + rows)
    assert torch.equal(mini_batch["y"], expected)
    assert torch.equal(mini_batch["x"].flatten(1), expected[:, None].expand(rows, 6))


class TestSignature:
    def test_it_is_that_of_the_loader_and_two_more(self):
        names = list(inspect.signature(TurboDataLoader).parameters)
        position = names.index("shared_memory")
        ours = list(inspect.signature(TorchTurboDataLoader).parameters)
        expected = [*names[:position], "device", "gpu_augmentation", "shared_memory", "options"]
        assert ours == expected

    def test_all_options_are_passed_on(self):
        options = {"shuffle": True, "seed": 3, "prefetch": 1, "last_batch": "discard"}
        with fork(Numbers(20), 3, Rows(), 1, **options) as loader:
            ours = [mini_batch["y"].tolist() for _, (mini_batch,) in loader]
        with TurboDataLoader(Numbers(20), 3, Rows(), 0, **options) as loader:
            assert [mini_batch["y"].tolist() for _, (mini_batch,) in loader] == ours
        assert len(ours) == 6

    def test_positions(self):
        loader = TorchTurboDataLoader(Numbers(20), 4, Rows(), 0, 12, 2, 5, "cpu", False, 3)
        with loader:
            assert [iteration for iteration, _ in loader] == [5, 6, 7]
        assert loader._options.buffers == 3

    def test_an_unknown_option(self):
        with pytest.raises(TypeError, match="shuffel"):
            fork(Numbers(20), 3, Rows(), 1, shuffel=True)

    def test_gpu_augmentation_is_not_there(self):
        with pytest.raises(NotImplementedError, match="gpu_augmentation=True is not there yet"):
            fork(Numbers(20), 3, Rows(), 1, gpu_augmentation=True)

    def test_a_device_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"device 'cuda:99' is not there: .* cpu:0"):
            fork(Numbers(20), 3, Rows(), 1, device="cuda:99")

    def test_a_list_of_devices_has_one_for_each_mini_batch(self):
        with pytest.raises(ValueError, match=r"got 1 devices .* num_mini_batches=2"):
            fork(Numbers(20), 4, Rows(), 1, num_mini_batches=2, device=["cpu"])

    def test_without_torch_the_extra_is_named(self):
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "try: import crumpets_like.torch\n"
            "except ImportError as error: print(error)"
        )
        command = [sys.executable, "-c", code]
        printed = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
        assert "pip install 'crumpets-like[torch]'" in printed.stdout


class TestCpu:
    @both
    @pytest.mark.parametrize("worker", [Rows(), Listed(), FreeForm((6,))])
    def test_epochs(self, nworkers, worker):
        with fork(Numbers(21), 4, worker, nworkers, num_mini_batches=2, device="cpu") as loader:
            for _ in range(2):
                seen = 0
                for _, mini_batches in loader:
                    for mini_batch in mini_batches:
                        rows = len(mini_batch["y"])
                        check(mini_batch, seen, rows)
                        seen += rows
                assert seen == 21

    def test_tensors_are_views_of_the_ring(self):
        with fork(Numbers(8), 4, Rows(), 1, device="cpu") as loader:
            (_, (mini_batch,)) = next(iter(loader))
            ring = loader._engine._parts.ring
            memory = ring.first_slots
            offset = mini_batch["x"].data_ptr() - memory.ctypes.data
            assert 0 <= offset < memory.nbytes
            assert mini_batch["y"].data_ptr() > mini_batch["x"].data_ptr()
            mini_batch["x"] += 1  # they are writable
            assert memory.view(np.int64)[offset // 8] == 1
            del memory, ring

    @both
    def test_a_tensor_keeps_its_buffer_and_no_more(self, nworkers):
        with fork(Numbers(400), 4, Rows(), nworkers, device="cpu") as loader:
            kept = []
            for number, (_, (mini_batch,)) in enumerate(loader):
                if number % 10 == 0:
                    kept.append(mini_batch["x"][1:, 2])
            del mini_batch
            gc.collect()
            assert loader.statistics().buffers_held == len(kept) == 10
        for number, view in enumerate(kept):
            assert view.tolist() == [40 * number + row for row in (1, 2, 3)]

    def test_tensors_outlive_the_loader(self):
        with fork(Numbers(64), 8, Rows(), 2, device="cpu") as loader:
            kept = [mini_batch for _, (mini_batch,) in loader]
        del loader
        gc.collect()
        for number, mini_batch in enumerate(kept):
            check(mini_batch, 8 * number, 8)
            mini_batch["x"] += 1

    def test_buffers_that_the_caller_holds_are_named(self):
        with fork(Numbers(400), 4, Rows(), 1, device="cpu", max_buffers=3) as loader:
            iterator = iter(loader)
            held = [next(iterator) for _ in range(3)]
            with pytest.raises(BufferExhausted, match="holds 3 mini-batches"):
                next(iterator)
            held.clear()
            next(iterator)

    @both
    def test_lists_and_foreign_dtypes_stay(self, nworkers):
        with fork(Numbers(4), 4, Mixed(), nworkers, device="cpu") as loader:
            (_, (mini_batch,)) = next(iter(loader))
        assert list(mini_batch) == ["small", "when", "name"]
        assert mini_batch["small"].dtype == torch.uint8
        assert mini_batch["when"].tolist() == np.arange(4).astype("M8[D]").tolist()
        assert mini_batch["name"] == ["0", "1", "2", "3"]

    @both
    def test_tensors_that_collate_returns(self, nworkers):
        with fork(Numbers(8), 4, Stacked(), nworkers, device="cpu") as loader:
            for number, (_, (mini_batch,)) in enumerate(loader):
                assert mini_batch["t"].dtype == torch.bfloat16
                assert mini_batch["t"].tolist() == [4 * number + row for row in range(4)]
                assert [t.tolist() for t in mini_batch["list"]] == [[number], [number]]

    def test_default_device(self):
        loader = fork(Numbers(4), 4, Rows(), 0)
        expected = "cuda:0" if torch.cuda.is_available() else "cpu"
        assert loader.devices == (torch.device(expected),)

    @both
    def test_workers_must_not_return_device_tensors(self, nworkers):
        with (
            fork(Numbers(4), 4, Elsewhere(), nworkers) as loader,
            pytest.raises(RuntimeError, match="returned a tensor on cuda:0: workers prepare"),
        ):
            next(iter(loader))


class Mixed(BufferWorker):
    def __init__(self):
        super().__init__()
        self.add_buffer("small", ((2,), np.uint8))
        self.add_buffer("when", ((), "M8[D]"))

    def prepare(self, sample, batch, buffers):
        buffers["small"][...] = sample
        buffers["when"][...] = np.datetime64(sample, "D")
        batch["name"].append(str(sample))


class Stacked(Worker):
    def process(self, sample):
        return {"t": torch.tensor(sample, dtype=torch.bfloat16)}

    def collate(self, results):
        stacked = torch.stack([result["t"] for result in results])
        return {"t": stacked, "list": [stacked[:1].int() // 4] * 2}


class Elsewhere(Worker):
    """Returns what looks like a tensor of a GPU."""

    def process(self, sample):
        from crumpets_like.broker import tensors

        class OnGpu:
            device = torch.device("cuda:0")

            def __reduce__(self):
                return tensors._reduce(self)

        return {"x": OnGpu()}


@pytest.fixture
def slow(monkeypatch):
    """Loaders that are made afterwards use a device that copies as late as it may."""
    device = SlowDevice()
    use_devices(monkeypatch, device)
    return device


class TestAhead:
    @pytest.mark.parametrize("buffers", [1, 2, 3, True])
    @pytest.mark.parametrize("worker", [Rows(), Listed()])
    def test_buffers_are_not_written_to_while_they_are_copied(self, slow, worker, buffers):
        seen = []
        with fork(Numbers(1200), 4, worker, 2, shared_memory=buffers) as loader:
            for iteration, (mini_batch,) in loader:
                assert iteration == len(seen)
                seen.append(mini_batch)
        slow.synchronize()
        assert len(seen) == 300
        for number, mini_batch in enumerate(seen):
            check(mini_batch, 4 * number, 4)
        assert slow.handed_over == list(range(300))
        assert slow.locked == 0

    @pytest.mark.parametrize("worker", [FreeForm((6,)), FreeForm((1000,))])
    def test_free_form_results(self, slow, worker):
        with fork(Numbers(400), 4, worker, 2) as loader:
            seen = [mini_batch for _, (mini_batch,) in loader]
            slow.synchronize()
        assert [int(mini_batch["x"][0, 0]) for mini_batch in seen] == list(range(0, 400, 4))
        assert torch.equal(torch.cat([mini_batch["y"] for mini_batch in seen]), torch.arange(400))

    def test_the_caller_holds_no_buffers(self, monkeypatch):
        use_devices(monkeypatch, SlowDevice(lag=0))
        with fork(Numbers(4000), 4, Rows(), 2, shared_memory=2) as loader:
            kept = list(loader)
            assert loader.statistics().buffers_held <= 2
            assert loader._engine._parts.ring.limit == 2
        for number, (_, (mini_batch,)) in enumerate(kept):
            check(mini_batch, 4 * number, 4)

    def test_copies_of_all_that_is_finished_begin_ahead(self, monkeypatch):
        slow = SlowDevice(lag=1)
        use_devices(monkeypatch, slow)
        options = {"prefetch": 6, "shared_memory": 8}
        with fork(Numbers(400), 4, Rows(), 1, **options) as loader:
            iterator, ready = iter(loader), 0
            for received in range(1, 40):
                next(iterator)
                ahead = slow.begun - received
                assert ahead == slow.begun - len(slow.handed_over) <= 5
                assert ahead >= ready - 1
                assert wait_until(lambda: loader.statistics().buffers_ready >= 4)
                ready = loader.statistics().buffers_ready

    def test_nothing_is_waited_for_while_there_are_buffers(self, slow):
        with fork(Numbers(80), 4, Rows(), 1, shared_memory=21) as loader:
            kept = list(loader)
            assert (slow.begun, slow.done) == (20, 0)
            slow.synchronize()
        check(kept[19][1][0], 76, 4)

    @pytest.mark.parametrize("nworkers", [0, 1, 2])
    @pytest.mark.parametrize("in_order", [True, False])
    def test_each_mini_batch_goes_to_its_device(self, monkeypatch, nworkers, in_order):
        devices = [SlowDevice(lag=1), SlowDevice(lag=3), SlowDevice()]
        use_devices(monkeypatch, *devices)
        batches = [[*range(first, first + size)] for first, size in batch_sizes(40)]
        with fork(
            Numbers(500),
            6,
            Rows(),
            nworkers,
            num_mini_batches=3,
            batch_sampler=batches,
            in_order=in_order,
        ) as loader:
            expected = [0, 0, 0]
            for _, mini_batches in loader:
                for part, _ in enumerate(mini_batches):
                    expected[part] += 1
                assert [len(device.handed_over) for device in devices] == expected
        assert all(device.handed_over == sorted(device.handed_over) for device in devices)
        assert expected[0] == 40 > expected[1] > expected[2]

    @both
    def test_lists_and_foreign_dtypes(self, slow, nworkers):
        with fork(Numbers(240), 4, Mixed(), nworkers, shared_memory=2) as loader:
            kept = [mini_batch for _, (mini_batch,) in loader]
            slow.synchronize()
        for number, mini_batch in enumerate(kept):
            rows = [4 * number + row for row in range(4)]
            assert mini_batch["small"][:, 0].tolist() == rows
            assert mini_batch["when"].astype(int).tolist() == rows
            assert mini_batch["name"] == list(map(str, rows))

    def test_without_shared_memory(self, slow):
        with fork(Numbers(40), 4, Rows(), 1, shared_memory=False) as loader:
            kept = [mini_batch for _, (mini_batch,) in loader]
            slow.synchronize()
        check(kept[9], 36, 4)


def batch_sizes(count):
    """Where batches of 6, 3, 1, 6, ... samples begin, and their sizes."""
    first = 0
    for number in range(count):
        size = (6, 3, 1)[number % 3]
        yield first, size
        first += size


class Bad(Rows):
    """Raises for the samples it is told, and unpickles with an error where it is told so."""

    def __init__(self, *bad):
        super().__init__()
        self.bad = bad

    def prepare(self, sample, batch, buffers):
        if sample in self.bad:
            raise KeyError(sample)
        super().prepare(sample, batch, buffers)


class Unreadable:
    def __reduce__(self):
        return int, ("no number",)


class Unpicklable(Rows):
    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        batch["x2"].append(Unreadable() if sample == 24 else None)


def received(loader):
    """Mini-batches that came before the error, and the error."""
    kept = []
    try:
        for _, (mini_batch,) in loader:
            kept.append(mini_batch)
            wait_until(lambda: loader.statistics().buffers_ready > 1, 0.05)
    except Exception as error:  # noqa: BLE001
        return kept, error
    return kept, None


class TestErrors:
    @pytest.mark.parametrize("number", [0, 1, 5])
    def test_a_copy_that_fails_is_raised_in_its_turn(self, monkeypatch, number):
        device = SlowDevice(fails_at=number)
        use_devices(monkeypatch, device)
        with fork(Numbers(80), 4, Rows(), 2) as loader:
            engine = loader._engine
            kept, error = received(loader)
            assert len(kept) == number
            assert isinstance(error, MemoryError)
            del error
            kept, error = received(loader)
            assert (len(kept), error) == (20, None)
            assert loader._engine is engine  # nothing had to start anew
            device.synchronize()
        check(kept[7], 28, 4)

    @pytest.mark.parametrize(("worker", "kind"), [(Bad(24), KeyError), (Unpicklable(), ValueError)])
    def test_a_sample_that_fails_is_raised_in_its_turn(self, slow, worker, kind):
        with fork(Numbers(80), 4, worker, 2) as loader:
            kept, error = received(loader)
            assert len(kept) == 6
            assert isinstance(error, kind)
            slow.synchronize()
        check(kept[5], 20, 4)

    def test_skipped_samples(self, slow):
        bad = [5, 8, 9, 10, 11, 14]
        with fork(Numbers(40), 4, Bad(*bad), 2, on_error="skip", shared_memory=3) as loader:
            kept, error = received(loader)
            assert error is None
            assert loader.statistics().samples == 34
            assert loader.statistics().skipped == 6
            slow.synchronize()
        seen = [value for mini_batch in kept for value in mini_batch["y"].tolist()]
        assert seen == [number for number in range(40) if number not in bad]

    def test_death_is_seen(self, slow):
        with fork(Numbers(4000), 4, Rows(), 2) as loader:
            iterator = iter(loader)
            next(iterator)
            processes = psutil.Process().children(recursive=True)
            (broker,) = [one for one in processes if one.name() == "crumpets-broker"]
            broker.kill()
            with pytest.raises(LoaderError):
                for _ in iterator:
                    pass
            slow.synchronize()


class TestEnds:
    def test_leaving_with_copies_under_way(self, slow):
        with fork(Numbers(80), 4, Rows(), 2, shared_memory=4) as loader:
            for _ in range(30):
                for number, (_, (third,)) in enumerate(loader):  # noqa: B007
                    if number == 2:
                        break
                slow.run(slow.begun - 2)
            kept = [mini_batch for _, (mini_batch,) in loader]
            slow.synchronize()
        check(third, 8, 4)
        assert len(kept) == 20
        for number, mini_batch in enumerate(kept):
            check(mini_batch, 4 * number, 4)

    def test_leaving_with_errors_ahead(self, monkeypatch):
        use_devices(monkeypatch, SlowDevice(lag=0))
        with fork(Numbers(80), 4, Bad(8, 12), 2, shared_memory=8) as loader:
            for _ in range(3):
                iterator = iter(loader)
                next(iterator)
                assert wait_until(lambda: loader.statistics().buffers_ready >= 2)
                next(iterator)
                iterator.close()
                loader._engine._transfer.release()
                assert wait_until(lambda: loader.statistics().buffers_free == 8)

    def test_stopping_with_copies_under_way(self, slow):
        with fork(Numbers(80), 4, Rows(), 2) as loader:
            iterator = iter(loader)
            kept = [next(iterator)[1][0] for _ in range(3)]
            size = loader._engine._parts.ring.first_slots.nbytes
            assert slow.locked == size > 0
            assert slow.done < 3
        assert slow.locked == 0  # which looks at the memory, and that all copies are done
        for number, mini_batch in enumerate(kept):
            check(mini_batch, 4 * number, 4)
        with pytest.raises(LoaderClosed):
            next(iterator)

    def test_a_loader_that_is_dropped(self, slow):
        loader = fork(Numbers(80), 4, Rows(), 2).start()
        kept = next(iter(loader))[1][0]
        del loader
        gc.collect()
        assert slow.locked == 0
        check(kept, 0, 4)

    def test_a_start_that_fails_leaves_nothing(self, monkeypatch):
        device = SlowDevice()
        device.lock_pages = lambda memory: 1 / 0
        use_devices(monkeypatch, device)
        loader = fork(Numbers(80), 4, Rows(), 2)
        with pytest.raises(ZeroDivisionError):
            loader.start()
        assert not psutil.Process().children()

    def test_pages_that_cannot_be_locked(self, monkeypatch):
        device = SlowDevice(refuses=True)
        use_devices(monkeypatch, device)
        loader = fork(Numbers(80), 4, Rows(), 1)
        with pytest.warns(RuntimeWarning, match="could not be page-locked"):
            loader.start()
        kept = [mini_batch for _, (mini_batch,) in loader]
        device.synchronize()
        loader.stop()
        check(kept[19], 76, 4)

    def test_none_is_warned_of_where_there_are_no_slots_to_lock(self, slow):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for worker, shared_memory in ((FreeForm(), True), (Rows(), False)):
                fork(Numbers(8), 4, worker, 1, shared_memory=shared_memory).start().stop()


class TestRing:
    def test_it_does_not_grow(self, slow):
        with fork(Numbers(4), 4, Rows(), 2) as loader:  # tiny
            assert loader._engine._parts.ring.limit == 256
        with fork(Numbers(4), 4, Rows((3, 256, 256)), 2) as loader:  # 6.3 MB
            assert loader._engine._parts.ring.limit == 6
        for shared_memory, most, limit in ((3, None, 3), (3, 9, 3), (True, 5, 5)):
            options = {"shared_memory": shared_memory, "max_buffers": most}
            with fork(Numbers(4), 4, Rows(), 2, **options) as loader:
                assert loader._engine._parts.ring.limit == limit
                assert slow.locked == limit * loader._engine._parts.ring.geometry.stride

    def test_one_for_views_does(self):
        with fork(Numbers(4), 4, Rows(), 2, device="cpu") as loader:
            assert loader._engine._parts.ring.limit > 256


@both
def test_ranges_in_the_profiler(slow, nworkers):
    from torch.profiler import ProfilerActivity, profile

    with (
        fork(Numbers(40), 4, Rows(), nworkers) as loader,
        profile(activities=[ProfilerActivity.CPU]) as profiler,
    ):
        assert len(list(loader)) == 10
    names = [event.name for event in profiler.events()]
    assert names.count("crumpets_like: copy to cpu") == 10  # the name of the fake device
    assert 1 <= names.count("crumpets_like: wait for a mini-batch") <= 11
