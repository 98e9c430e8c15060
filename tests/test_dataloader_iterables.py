"""Iterables whose samples travel, samplers and batch samplers: what is read of them, and when."""

from __future__ import annotations

import itertools
import threading
import time

import numpy as np
import pytest

from crumpets_like import LoaderClosed, LoaderTimeout, TurboDataLoader, Worker
from tests.support.loading import Items, items, run_epoch, run_items, wait_until
from tests.support.planning import OwnIterator, Sized, Unsized

both = pytest.mark.parametrize("nworkers", [0, 2])


def fork(iterable, batch_size, nworkers=2, worker=None, **options):
    """Return a loader that starts quickly."""
    worker = worker or Items()
    return TurboDataLoader(iterable, batch_size, worker, nworkers, start_method="fork", **options)


class Echo(Worker):
    """Returns the sample and its index."""

    def process(self, sample):
        return {"item": sample, "index": self.index}


class TestIterables:
    @both
    @pytest.mark.parametrize("kind", [Sized, Unsized])
    def test_a_new_pass_calls_iter_again(self, nworkers, kind):
        iterable = kind(range(10))
        with fork(iterable, 4, nworkers) as loader:
            for count in (1, 2, 3):
                assert run_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
                assert iterable.passes == count
                assert iterable.read == 10 * count

    @both
    def test_nothing_is_read_past_the_end_of_the_epoch(self, nworkers):
        iterable = OwnIterator(100)
        with fork(iterable, 3, nworkers, length=12) as loader:
            for epoch in range(4):
                assert iterable.read == 12 * epoch
                first = 12 * epoch
                assert run_items(loader) == list(range(first, first + 12))
        assert iterable.read == 48

    @both
    def test_an_endless_iterable(self, nworkers):
        with fork(Counting(), 4, nworkers) as loader:
            loader.set_length(8)
            assert len(loader) == 2
            assert run_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
            loader.set_epoch_iterations(1)
            assert run_epoch(loader) == [[8, 9, 10, 11]]
            assert run_epoch(loader) == [[12, 13, 14, 15]]

    @both
    def test_without_a_length_len_raises(self, nworkers):
        with fork(Unsized(range(10)), 4, nworkers) as loader:
            assert loader.length is None
            assert loader.epoch_iterations is None
            with pytest.raises(TypeError, match=r"set_length\(\) or set_epoch_iterations\(\)"):
                len(loader)
            assert len(list(loader)) == 3

    @both
    def test_its_own_iterator_goes_on(self, nworkers):
        with fork(OwnIterator(10), 2, nworkers, length=4) as loader:
            assert run_items(loader) == [0, 1, 2, 3]
            assert run_items(loader) == [4, 5, 6, 7]

    @both
    def test_exhausted(self, nworkers):
        with fork(iter(range(5)), 4, nworkers) as loader:
            assert run_epoch(loader) == [[0, 1, 2, 3], [4]]
            with pytest.raises(RuntimeError, match="exhausted"):
                run_epoch(loader)

    @both
    def test_an_error_comes_behind_the_batches_before_it(self, nworkers):
        with fork(Breaking(), 4, nworkers) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0, 1, 2, 3]
            with pytest.raises(ZeroDivisionError):
                next(iterator)

    def test_reads_at_most_the_window_ahead(self):
        iterable = Unsized(range(400))
        with fork(iterable, 4, shared_memory=4) as loader:
            for number, _ in enumerate(loader, 1):
                assert iterable.read <= 4 * (number + 4)
                if number == 10:
                    break
            time.sleep(0.05)
            assert iterable.read <= 4 * 14

    def test_works_ahead(self):
        iterable = Unsized(range(400))
        with fork(iterable, 4, shared_memory=4) as loader:
            next(iter(loader))
            assert wait_until(lambda: loader.statistics().buffers_ready >= 3)

    @pytest.mark.parametrize("iterable", [Unsized(range(1000)), Sized(range(1000))])
    def test_break(self, iterable):
        with fork(iterable, 4) as loader:
            for _ in range(20):
                for _, mini_batches in loader:
                    assert items(mini_batches) == [0, 1, 2, 3]
                    break

    @pytest.mark.parametrize("seconds", [0, 0.01])
    def test_break_of_its_own_iterator(self, seconds):
        # Its thread may be inside of the generator when the next epoch begins.
        with fork(slowly(seconds), 2, shared_memory=4) as loader:
            last = -1
            for _ in range(6):
                for _, mini_batches in loader:
                    first, second = items(mini_batches)
                    break
                assert last < first == second - 1
                last = second

    def test_break_of_a_pass_that_hangs(self):
        iterable = Blocking()
        with fork(iterable, 1, timeout=0.2) as loader:
            for _ in loader:
                break
            with pytest.raises(LoaderTimeout, match="iterable"):
                iter(loader)
            iterable.release.set()
            assert run_items(loader) == [0, 1]

    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    def test_one_that_hangs_is_the_likely_cause(self, start_method):
        iterable = Blocking()
        options = {"start_method": start_method, "timeout": 0.2}
        with TurboDataLoader(iterable, 1, Items(), 1, **options) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0]
            with pytest.raises(LoaderTimeout, match="that the iterable has given are done"):
                next(iterator)
            iterable.release.set()

    def test_stop_does_not_wait_for_the_iterable(self):
        iterable = Blocking()
        try:
            with fork(iterable, 1, shared_memory=4) as loader:
                assert items(next(iter(loader))[1]) == [0]
                started = time.monotonic()
            assert time.monotonic() - started < 2.0
        finally:
            iterable.release.set()

    def test_stop_from_another_thread_ends_the_wait(self):
        iterable = Blocking()
        with fork(iterable, 1, shared_memory=4) as loader:
            iterator = iter(loader)
            next(iterator)
            timer = threading.Timer(0.2, loader.stop)
            timer.start()
            try:
                with pytest.raises(LoaderClosed, match="stopped"):
                    next(iterator)
            finally:
                iterable.release.set()
                timer.join()


class Counting:
    """Never ends."""

    def __iter__(self):
        return itertools.count()


class Breaking:
    def __iter__(self):
        yield from range(6)
        raise ZeroDivisionError


def slowly(seconds):
    for number in itertools.count():
        time.sleep(seconds)
        yield number


class Blocking:
    """Gives one sample and then waits."""

    def __init__(self):
        self.release = threading.Event()

    def __iter__(self):
        yield 0
        self.release.wait(30)
        yield 1


class TestSamplesThatTravel:
    @both
    def test_arrays(self, nworkers):
        samples = [np.full((3, 4), number, np.float32) for number in range(5)]
        with fork(Unsized(samples), 2, nworkers, Echo()) as loader:
            batches = [mini_batches for _, mini_batches in loader]
        arrays = np.concatenate([batch[0]["item"] for batch in batches])
        assert arrays.dtype == np.float32
        assert np.array_equal(arrays, np.stack(samples))

    @both
    def test_bytes(self, nworkers):
        # The beginning and the end of a JPEG file, with all bytes between them.
        samples = [b"\xff\xd8" + bytes(range(256)) * number + b"\xff\xd9" for number in range(9)]
        with fork(Unsized(samples), 4, nworkers, Echo()) as loader:
            assert run_items(loader) == samples

    @both
    def test_objects_of_local_classes(self, nworkers):
        class Sample:
            def __init__(self, value):
                self.value = value

        class Local(Items):
            def prepare(self, sample, batch, buffers):
                assert isinstance(sample, Sample)
                super().prepare(sample.value, batch, buffers)

        with fork(Unsized([Sample(number) for number in range(9)]), 4, nworkers, Local()) as loader:
            assert run_items(loader) == list(range(9))

    @both
    def test_samples_have_no_index(self, nworkers):
        with fork(Unsized(range(3)), 4, nworkers, Echo()) as loader:
            assert run_epoch(loader, "index") == [[-1, -1, -1]]

    def test_a_sample_that_cannot_be_pickled(self):
        samples = [0, 1, threading.Lock(), 3]
        with fork(Unsized(samples), 2) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0, 1]
            with pytest.raises(TypeError, match="pickle"):
                next(iterator)


class Told(Sized):
    """Sampler that notes the epochs it was told, and orders its indices by them."""

    def __init__(self, items):
        super().__init__(items)
        self.told = []

    def set_epoch(self, epoch):
        self.told.append(epoch)

    def __iter__(self):
        return iter(self.items[self.told[-1] :] + self.items[: self.told[-1]])


class TestSamplers:
    @both
    def test_gives_the_order(self, nworkers):
        with fork(range(10), 2, nworkers, sampler=[7, 0, 7]) as loader:
            assert (len(loader), loader.length) == (2, 3)
            assert run_epoch(loader) == [[7, 0], [7]]
            assert run_epoch(loader) == [[7, 0], [7]]

    @both
    def test_is_iterated_anew_in_each_epoch(self, nworkers):
        sampler = Unsized([3, 1, 2])
        with fork(range(10), 2, nworkers, sampler=sampler) as loader:
            for passes in (1, 2, 3):
                assert run_epoch(loader) == [[3, 1], [2]]
                assert sampler.passes == passes

    @both
    def test_set_epoch(self, nworkers):
        sampler = Told(range(3))
        with fork(range(3), 3, nworkers, sampler=sampler) as loader:
            assert [run_items(loader) for _ in range(3)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]
        assert sampler.told == [0, 1, 2]

    @both
    def test_set_epoch_of_a_batch_sampler(self, nworkers):
        sampler = Told([[0, 1], [2], [3]])
        with fork(range(4), 2, nworkers, batch_sampler=sampler) as loader:
            assert run_epoch(loader) == [[0, 1], [2], [3]]
            assert run_epoch(loader) == [[2], [3], [0, 1]]
        assert sampler.told == [0, 1]

    @both
    def test_last_batch(self, nworkers):
        sampler = list(range(9, -1, -1))
        with fork(range(10), 4, nworkers, sampler=sampler, last_batch="rollover") as loader:
            assert run_epoch(loader) == [[9, 8, 7, 6], [5, 4, 3, 2]]
            assert run_epoch(loader) == [[1, 0, 9, 8], [7, 6, 5, 4], [3, 2, 1, 0]]

    @both
    def test_a_batch_sampler_gives_batches_of_any_length(self, nworkers):
        lists = [[1], [2, 3, 4], [5, 6], [7, 8, 9, 0]]
        options = {"batch_sampler": lists, "num_mini_batches": 2}
        with fork(range(10), 4, nworkers, **options) as loader:
            assert len(loader) == 4
            for _ in range(2):
                assert run_epoch(loader) == lists
            counts = [[len(mb["item"]) for mb in mini_batches] for _, mini_batches in loader]
        assert counts == [[1], [2, 1], [2], [2, 2]]

    @both
    def test_iterated_in_the_callers_thread(self, nworkers):
        threads = []

        def order():
            for index in range(40):
                threads.append(threading.current_thread())
                yield index

        with fork(range(40), 2, nworkers, sampler=order()) as loader:
            assert run_items(loader) == list(range(40))
        assert set(threads) == {threading.current_thread()}

    @both
    def test_keys_of_other_kinds(self, nworkers):
        dataset = {"a": 1, ("b", 2): 2, None: 3, "é": 4}
        with fork(dataset, 3, nworkers, Echo(), sampler=list(dataset)) as loader:
            assert run_items(loader) == [1, 2, 3, 4]
            assert run_items(loader, "index") == [-1] * 4

    @both
    def test_integer_keys_of_a_mapping_are_not_checked(self, nworkers):
        dataset = {1000: 1, -5: 2}
        with fork(dataset, 3, nworkers, Echo(), sampler=[1000, -5]) as loader:
            assert run_items(loader) == [1, 2]
            assert run_items(loader, "index") == [1000, -5]

    @both
    def test_integers_and_other_keys_mixed(self, nworkers):
        dataset = {0: 10, 1: 11, "a": 12, "b": 13, 2**80: 14}
        lists = [[0, 1], ["a", 0], [1], ["b"], [2**80, 0], [0]]
        with fork(dataset, 2, nworkers, Echo(), batch_sampler=lists) as loader:
            assert run_epoch(loader) == [[10, 11], [12, 10], [11], [13], [14, 10], [10]]
