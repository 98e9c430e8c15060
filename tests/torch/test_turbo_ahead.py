"""Mini-batches that are copied to a device: ahead of the caller, in order, and no byte too late."""

from __future__ import annotations

import gc
import warnings

import psutil
import pytest

torch = pytest.importorskip("torch")

from crumpets_like import LoaderClosed, LoaderError, Worker  # noqa: E402
from tests.support.devices import (  # noqa: E402
    Mixed,
    SlowDevice,
    check_numbers,
    fork,
    use_devices,
)
from tests.support.leasing import FreeForm, Listed, Numbers, Rows  # noqa: E402
from tests.support.loading import wait_until  # noqa: E402

both = pytest.mark.parametrize("nworkers", [0, 2])


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
            check_numbers(mini_batch, 4 * number, 4)
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
            check_numbers(mini_batch, 4 * number, 4)

    def test_copies_that_are_done_hold_no_buffers(self, slow):
        with fork(Numbers(80), 4, Rows(), 2) as loader:
            for _ in loader:
                pass
            assert loader.statistics().buffers_held == 20
            slow.synchronize()
            assert loader.statistics().buffers_held == 0

    @both
    def test_what_is_begun_in_inference_mode_may_be_used_outside(self, slow, nworkers):
        with fork(Numbers(80), 4, Rows(), nworkers) as loader:
            iterator = iter(loader)
            with torch.inference_mode():
                next(iterator)
                if nworkers:
                    assert wait_until(lambda: loader.statistics().buffers_ready > 1)
                next(iterator)
            for _, (mini_batch,) in iterator:
                assert not mini_batch["x"].is_inference()
        assert slow.modes == {False}

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
        check_numbers(kept[19][1][0], 76, 4)

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

    def test_sparse_and_nested_tensors(self, slow):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested ones are a prototype
            with fork(Numbers(40), 4, Odd(), 2) as loader:
                kept = [mini_batch for _, (mini_batch,) in loader]
        for number, mini_batch in enumerate(kept):
            assert torch.equal(mini_batch["sparse"].to_dense(), torch.eye(3) * number)
            assert mini_batch["sparse"].layout is torch.sparse_coo
            assert [len(part) for part in mini_batch["nested"].unbind()] == [2, 3]

    def test_without_shared_memory(self, slow):
        with fork(Numbers(40), 4, Rows(), 1, shared_memory=False) as loader:
            kept = [mini_batch for _, (mini_batch,) in loader]
            slow.synchronize()
        check_numbers(kept[9], 36, 4)


class Odd(Worker):
    def process(self, sample):
        return {"number": int(sample) // 4}

    def collate(self, results):
        parts = [torch.ones(2), torch.ones(3)]
        sparse = (torch.eye(3) * results[0]["number"]).to_sparse()
        return {"sparse": sparse, "nested": torch.nested.nested_tensor(parts)}


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
        check_numbers(kept[7], 28, 4)

    @pytest.mark.parametrize("number", [0, 5])
    def test_a_copy_ahead_for_which_there_is_no_memory_yet(self, monkeypatch, number):
        device = SlowDevice(fails_at=number, error=torch.OutOfMemoryError)
        use_devices(monkeypatch, device)
        with fork(Numbers(80), 4, Rows(), 2) as loader:
            kept, error = received(loader)
            device.synchronize()
        assert len(kept) == (20 if number else 0)
        assert isinstance(error, type(None) if number else torch.OutOfMemoryError)
        for number, mini_batch in enumerate(kept):
            check_numbers(mini_batch, 4 * number, 4)

    @pytest.mark.parametrize(("worker", "kind"), [(Bad(24), KeyError), (Unpicklable(), ValueError)])
    def test_a_sample_that_fails_is_raised_in_its_turn(self, slow, worker, kind):
        with fork(Numbers(80), 4, worker, 2) as loader:
            kept, error = received(loader)
            assert len(kept) == 6
            assert isinstance(error, kind)
            slow.synchronize()
        check_numbers(kept[5], 20, 4)

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
        check_numbers(third, 8, 4)
        assert len(kept) == 20
        for number, mini_batch in enumerate(kept):
            check_numbers(mini_batch, 4 * number, 4)

    def test_leaving_with_errors_ahead(self, monkeypatch):
        use_devices(monkeypatch, SlowDevice(lag=0))
        with fork(Numbers(80), 4, Bad(8, 12), 2, shared_memory=8) as loader:
            for _ in range(3):
                iterator = iter(loader)
                next(iterator)
                assert wait_until(lambda: loader.statistics().buffers_ready >= 2)
                next(iterator)
                loader._current.close()
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
            check_numbers(mini_batch, 4 * number, 4)
        with pytest.raises(LoaderClosed):
            next(iterator)

    def test_a_loader_that_is_dropped(self, slow):
        loader = fork(Numbers(80), 4, Rows(), 2).start()
        kept = next(iter(loader))[1][0]
        del loader
        gc.collect()
        assert slow.locked == 0
        check_numbers(kept, 0, 4)

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
        check_numbers(kept[19], 76, 4)

    def test_none_is_warned_of_where_there_are_no_slots_to_lock(self, slow):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for worker, shared_memory in ((FreeForm(), True), (Rows(), False)):
                fork(Numbers(8), 4, worker, 1, shared_memory=shared_memory).start().stop()


class TestState:
    """A state counts what the caller has received, not what is on the device already."""

    def test_copies_ahead_do_not_count(self, monkeypatch):
        options = {"prefetch": 6, "shared_memory": 8, "shuffle": True, "seed": 3}
        with fork(Numbers(400), 4, Rows(), 0, device="cpu", **options) as loader:
            whole = [mini_batch["y"].tolist() for _, (mini_batch,) in loader]
            following = [mini_batch["y"].tolist() for _, (mini_batch,) in loader]
        slow = SlowDevice(lag=0)
        use_devices(monkeypatch, slow)
        states = {0: fork(Numbers(400), 4, Rows(), 1, **options).state_dict()}
        with fork(Numbers(400), 4, Rows(), 1, **options) as loader:
            most = 0
            for received, _ in enumerate(loader, 1):
                most = max(most, slow.begun - received)
                states[received] = loader.state_dict()
                if received < 80:  # near the end there are fewer
                    assert wait_until(lambda: loader.statistics().buffers_ready >= 3, 60)
            assert most >= 3
            states[101] = loader.state_dict()
        for received in (0, 1, 37, 99, 100, 101):
            with fork(Numbers(400), 4, Rows(), 1, **options) as loader:
                loader.load_state_dict(states[received])
                rest = [(number, mb["y"].tolist()) for number, (mb,) in loader]
            first = min(received, 100)
            expected = list(enumerate([*whole, *following]))[first : 200 if first == 100 else 100]
            assert rest == expected

    def test_a_break_with_errors_ahead(self, monkeypatch):
        """What the caller has not come to is tried again."""
        use_devices(monkeypatch, SlowDevice(lag=0))
        with fork(Numbers(80), 4, Bad(12), 2, shared_memory=8) as loader:
            iterator = iter(loader)
            next(iterator)
            assert wait_until(lambda: loader.statistics().buffers_ready >= 2)
            next(iterator)
            state = loader.state_dict()
            loader._current.close()
        with fork(Numbers(80), 4, Rows(), 2) as loader:
            loader.load_state_dict(state)
            kept = [mini_batch for _, (mini_batch,) in loader]
        assert len(kept) == 18
        check_numbers(kept[0], 8, 4)


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
