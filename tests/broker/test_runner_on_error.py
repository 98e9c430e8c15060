import contextlib
import gc
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like import WorkerDied
from crumpets_like.broker.failures import describe_failure, pack_errors
from crumpets_like.broker.protocol import Kind, Part
from crumpets_like.broker.segment import NO_SLOT
from crumpets_like.errors import Whereabouts
from tests.support.runner import Bench
from tests.support.running import Bulk, BulkReading, Fields, Free, Reading, expected


class BadReading(Reading):
    """Some samples cannot be read."""

    BAD = frozenset((3, 5))

    def __getitem__(self, index):
        self.calls.append(index)
        if index in self.BAD:
            raise ValueError(f"bad {index}")
        return index


class BadBulkReading(BadReading):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class BigFields(Fields):
    def __init__(self):
        super().__init__(big=True)


class BadFields(Fields):
    """Some samples cannot be prepared, which is noticed late."""

    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        if sample in BadReading.BAD:
            buffers["pair"][...] = 99
            batch["another"].append(1)
            raise ValueError(f"bad {sample}")


class BadBigFields(BadFields):
    def __init__(self):
        super().__init__(big=True)


class BadBulk(Bulk):
    """Some samples cannot be prepared, which the others of the chunk have to suffer."""

    def prepare_batch(self, samples, batch, buffers):
        super().prepare_batch(samples, batch, buffers)
        for sample in samples:
            if sample in BadReading.BAD:
                buffers["pair"][...] = 99
                batch["another"].append(1)
                raise ValueError(f"bad {sample}")


def without(found, *keys):
    return {key: values for key, values in found.items() if key not in keys}


class TestOnError:
    paths = pytest.mark.parametrize(
        ("make", "dataset", "slot"),
        [
            *itertools.product([Fields, Bulk, Free], [BadReading, BadBulkReading], [1]),
            (BigFields, BadReading, 1),
            (BadFields, Reading, 1),
            (BadBigFields, BulkReading, 1),
            (BadBulk, Reading, 1),
            (Fields, BadReading, NO_SLOT),
            (Bulk, BadReading, NO_SLOT),
            (BigFields, BadBulkReading, NO_SLOT),
            (Free, BadReading, NO_SLOT),
        ],
    )

    def check(self, found, keys):
        """The rows of `keys`, and nothing else."""
        wanted = {name: values for name, values in expected(keys).items() if name in found}
        assert without(found, "big") == wanted
        assert "x" in found or not keys

    @paths
    @given(data=st.data())
    def test_skipped_and_replaced(self, make, dataset, slot, data):
        keys = data.draw(st.permutations(range(8)))
        skip = data.draw(st.sets(st.sampled_from(sorted(BadReading.BAD))))
        asked = []

        def on_error(index, error):
            assert str(error) == f"bad {index}"
            asked.append(index)
            return "skip" if index in skip else 100 + index

        bench = Bench(make(), dataset(), on_error=on_error)
        found = bench.fill(keys, slot=slot, position=70)
        left = [key for key in keys if key not in skip]
        self.check(found, [100 + key if key in BadReading.BAD else key for key in left])
        assert asked == [key for key in keys if key in BadReading.BAD]
        assert {row: str(error) for row, error in bench.skipped.items()} == {
            keys.index(key): f"bad {key}" for key in skip
        }
        assert bench.page.position(1) == -1
        self.check(bench.fill([0, 1], slot=slot, start=2), [0, 1])
        assert bench.skipped == {}

    @paths
    def test_nothing_is_left(self, make, dataset, slot):
        bench = Bench(make(), dataset(), on_error="skip")
        found = bench.fill([3, 5], slot=slot)
        assert all(values == [] for values in found.values())
        assert sorted(bench.skipped) == [0, 1]

    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_the_reason_says_where_it_was(self, make):
        bench = Bench(make(), BadReading(), on_error="skip")
        bench.fill([1, 3], epoch=2)
        (note,) = bench.skipped[1].__notes__
        assert note.startswith("In worker 1, epoch 2: ")
        assert "index 3." in note or "indices [3]." in note

    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_samples_that_travel_are_counted(self, make):
        class Refuses(make):
            def prepare(self, sample, batch, buffers):
                self.refuse([sample])
                super().prepare(sample, batch, buffers)

            def prepare_batch(self, samples, batch, buffers):
                self.refuse(samples)
                super().prepare_batch(samples, batch, buffers)

            def process(self, sample):
                self.refuse([sample])
                return super().process(sample)

            def refuse(self, samples):
                if 3 in samples:
                    raise ValueError("three")

        if make is Fields:
            del Refuses.prepare_batch
        asked = []
        bench = Bench(Refuses(), on_error=lambda index, error: asked.append(index) or "skip")
        self.check(bench.fill([1, 3, 2], kind=Kind.SAMPLES, position=40), [1, 2])
        assert asked == [41]

    @pytest.mark.parametrize("answer", ["raise", lambda *_: None])
    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_an_error_keeps_nothing_alive(self, make, answer):
        """Not even the garbage collector is needed: the caller's frames hold mini-batches."""
        bench = Bench(make(), BadReading(), on_error=answer)
        references = []

        def caller():
            held = np.zeros(1)
            references.append(weakref.ref(held))
            bench.fill([1, 3])

        gc.disable()
        try:
            with contextlib.suppress(ValueError):
                caller()
            assert references[0]() is None
        finally:
            gc.enable()

    @pytest.mark.parametrize("make", [Fields, Bulk])
    def test_a_replacement_that_fails(self, make):
        bench = Bench(make(), BadReading(), on_error=lambda *_: "no number")
        with pytest.raises((ValueError, TypeError), match=r"(?i)str|no number"):
            bench.fill([1, 3])
        assert bench.page.position(1) == -1

    @pytest.mark.parametrize("dataset", [Reading, BulkReading, np.arange(100)])
    @pytest.mark.parametrize("make", [Fields, BigFields, Bulk, Free])
    def test_what_has_ended_a_worker_is_not_tried_again(self, make, dataset):
        tried = []

        class Notes(make):
            def prepare(self, sample, batch, buffers):
                tried.append(sample)
                super().prepare(sample, batch, buffers)

            def prepare_batch(self, samples, batch, buffers):
                tried.extend(samples)
                super().prepare_batch(samples, batch, buffers)

            def process(self, sample):
                tried.append(sample)
                return super().process(sample)

        if make in (Fields, BigFields):
            del Notes.prepare_batch
        died = WorkerDied(Whereabouts(0, 42, 5, 0, 0), -9, "Why.")
        lost = pack_errors([(41, describe_failure(died))])
        data = dataset if isinstance(dataset, np.ndarray) else dataset()
        bench = Bench(Notes(), data, on_error="skip")
        self.check(bench.fill([4, 5, 6], position=40, lost=lost), [4, 6])
        assert 5 not in tried
        if data is not dataset:
            assert set(np.ravel(data.calls)) == {4, 6}
        assert str(bench.skipped[1]) == str(died)
        assert not hasattr(bench.skipped[1], "__notes__")
        self.check(bench.fill([4, 5, 6], position=40), [4, 5, 6])

    def test_what_has_ended_a_worker_can_be_replaced_or_raised(self):
        lost = pack_errors([(1, describe_failure(KeyError("its end")))])
        for answer in ("raise", lambda index, error: None):
            with pytest.raises(KeyError, match="its end"):
                Bench(Fields(), on_error=answer).fill([4, 5], lost=lost)
        bench = Bench(Fields(), on_error=lambda index, error: 100 + index)
        assert bench.fill([4, 5], lost=lost) == expected([4, 105])

    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_only_exceptions(self, make, error):
        class Raises(Reading):
            def __getitem__(self, index):
                raise error

        with pytest.raises(error):
            Bench(make(), Raises(), on_error="skip").fill([1])


class TestExit:
    @pytest.mark.parametrize("on_error", ["raise", "skip"])
    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_of_the_process_leaves_the_position(self, make, on_error):
        """It tells whose fault it is."""

        class Exits(Reading):
            def __getitem__(self, index):
                if index == 3:
                    raise SystemExit(2)
                return index

        bench = Bench(make(), Exits(), may_exit=True, on_error=on_error)
        part = Part(1, 8, 0, 2, 70)
        with pytest.raises(SystemExit):
            bench.runner.run_part(part, 0, Kind.INDICES, np.array([1, 3]))
        assert bench.page.position(1) == 71
