import contextlib
import itertools
import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like import BufferWorker, Worker
from crumpets_like.broker.failures import rebuild_exception
from crumpets_like.broker.protocol import Kind, Outcome, Part, Status
from crumpets_like.broker.segment import NO_SLOT
from crumpets_like.broker.worker import overrides
from crumpets_like.seeding import preserve_globals
from tests.support.runner import ROWS, Bench
from tests.support.running import Bulk, BulkReading, Fields, Free, Reading, expected


class TestRows:
    @pytest.mark.parametrize("slot", [0, 1, NO_SLOT])
    @pytest.mark.parametrize("make", [Fields, Bulk])
    def test_any_part_of_a_slot(self, make, slot):
        bench = Bench(make())
        for start, keys in [(0, [3, 1, 4]), (3, [1]), (4, [5, 9, 2, 6])]:
            assert bench.fill(keys, slot=slot, start=start) == expected(keys)

    def test_rows_that_are_too_large_for_scratch(self):
        bench = Bench(Fields(big=True))
        found = bench.fill([5, 6], start=2)
        del found["big"]
        assert found == expected([5, 6])

    def test_other_rows_are_not_touched(self):
        bench = Bench(Fields())
        bench.fill([1] * 8)
        bench.fill([2, 2], start=3)
        views = bench.runner._layout.views(memoryview(bench.memory)[bench.geometry.offset(1) :], 8)
        assert views["x"].tolist() == [1, 1, 1, 2, 2, 1, 1, 1]

    def test_fill_values_are_there_again(self):
        class Once(Fields):
            def prepare(self, sample, batch, buffers):
                if sample == 0:
                    buffers["pair"][...] = 50

        bench = Bench(Once())
        bench.fill([0, 0])
        assert bench.fill([1, 0, 1])["pair"] == [[-1, -2], [50, 50], [-1, -2]]

    @pytest.mark.parametrize("kind", [Kind.KEYS, Kind.SAMPLES])
    def test_keys_and_samples(self, kind):
        bench = Bench(Fields(), {10: 1, 20: 2} if kind is Kind.KEYS else None)
        keys = [10, 20] if kind is Kind.KEYS else [1, 2]
        assert bench.fill(keys, kind=kind) == expected([1, 2])

    def test_free_form(self):
        assert Bench(Free()).fill([3, 4]) == {"x": [3, 4], "name": ["sample 3", "sample 4"]}

    def test_free_form_parts_stay_inside_their_share_of_the_slot(self):
        class Large(Worker):
            def process(self, sample):
                return {"x": np.full(4096, sample, np.uint8)}

        bench = Bench(Large())
        parts = [(0, [1]), (1, [2, 3]), (3, [4, 5, 6, 7, 8])]
        for start, keys in parts:
            found = bench.fill(keys, start=start)
            assert [row[0] for row in found["x"]] == keys
        offset = bench.geometry.offset(1)
        assert set(bench.memory[bench.geometry.header : offset]) == {0}
        for start, keys in parts:
            first = offset + (1 << 15) + 4096 * start
            assert set(bench.memory[first : first + 4096 * len(keys)]) == set(keys)

    def test_free_form_needs_dicts(self):
        class NoDict(Worker):
            def process(self, sample):
                return [sample]

        with pytest.raises(TypeError, match="must return a dict, it returned list") as caught:
            Bench(NoDict()).fill([3])
        assert "sample with index 3" in caught.value.__notes__[0]


class TestReading:
    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_one_by_one(self, make):
        bench = Bench(make(), Reading())
        assert bench.fill([5, 3])["x"] == [5, 3]
        assert bench.runner._reader.dataset.calls == [5, 3]
        assert all(type(index) is int for index in bench.runner._reader.dataset.calls)

    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_getitems(self, make):
        bench = Bench(make(), BulkReading())
        assert bench.fill([5, 3])["x"] == [5, 3]
        assert bench.runner._reader.dataset.calls == [[5, 3]]

    @pytest.mark.parametrize("make", [Fields, Bulk, Free])
    def test_an_array(self, make):
        assert Bench(make(), np.arange(100) * 2).fill([5, 3])["x"] == [10, 6]

    def test_not_in_bulk_with_seeded_globals(self):
        bench = Bench(Fields(), BulkReading(), seed_globals=True)
        with preserve_globals():
            bench.fill([5, 3])
        assert bench.runner._reader.dataset.calls == [5, 3]

    def test_too_few_samples(self):
        class Short(BulkReading):
            def __getitems__(self, indices):
                return indices[1:]

        with pytest.raises(ValueError, match="returned 1 samples for 2 indices"):
            Bench(Fields(), Short()).fill([5, 3])


class Drawing(Worker):
    def process(self, sample):
        return {"draw": float(self.rng.random()), "again": float(self.rng.random())}


class BulkDrawing(BufferWorker):
    def __init__(self):
        super().__init__()
        self.add_buffer("draw", ((), "f8"))
        self.add_buffer("again", ((), "f8"))

    def prepare_batch(self, samples, batch, buffers):
        for row, rng in enumerate(self.rngs):
            buffers["draw"][row] = rng.random()
            buffers["again"][row] = rng.random()


class GlobalDrawing(Worker):
    def process(self, sample):
        return {"draw": random.random(), "again": float(np.random.random())}


class TestRandomness:
    @pytest.mark.parametrize("make", [Drawing, BulkDrawing])
    @given(cuts=st.sets(st.integers(1, 7)), first=st.integers(0, 10**9), epoch=st.integers(0, 99))
    def test_draws_do_not_depend_on_the_cuts(self, make, cuts, first, epoch):
        whole = Bench(Drawing(), worker_id=0).fill([0] * 8, position=first, epoch=epoch)
        bench = Bench(make())
        found = {"draw": [], "again": []}
        edges = [0, *sorted(cuts), 8]
        for start, stop in itertools.pairwise(edges):
            part = bench.fill(
                [0] * (stop - start), start=start, position=first + start, epoch=epoch
            )
            for key, values in part.items():
                found[key] += values
        assert found == whole
        assert len({*found["draw"], *found["again"]}) == 16

    def test_they_depend_on_seed_epoch_and_position(self):
        draws = [
            Bench(Drawing(), seed=seed).fill([0], position=position, epoch=epoch)["draw"][0]
            for seed in (0, 1)
            for epoch in (0, 1)
            for position in (0, 1)
        ]
        assert len(set(draws)) == 8

    def test_also_for_one_position_after_another_time(self):
        bench = Bench(Drawing())
        found = [bench.fill([0], position=5, epoch=epoch)["draw"] for epoch in (0, 1, 0)]
        expected = [Bench(Drawing()).fill([0], position=5, epoch=e)["draw"] for e in (0, 1, 0)]
        assert found == expected

    def test_seeded_globals(self):
        with preserve_globals():
            whole = Bench(GlobalDrawing(), seed_globals=True).fill([0] * 4, position=5)
            random.random()
            part = Bench(GlobalDrawing(), seed_globals=True).fill([0] * 2, position=7)
        assert part == {key: values[2:] for key, values in whole.items()}

    def test_a_sample_draws_from_its_seeded_globals_once(self):
        def draw(_):
            return random.random(), float(np.random.random())

        class Dataset(Reading):
            def __getitem__(self, key):
                return draw(key)

        class Each(BufferWorker):
            def __init__(self):
                super().__init__()
                self.add_buffer("x", ((), "i8"))

            def prepare(self, sample, batch, buffers):
                batch["read"].append(sample)
                batch["drawn"].append(draw(sample))

        class Chunks(Each):
            def prepare_batch(self, samples, batch, buffers):
                for sample in samples:
                    self.prepare(sample, batch, buffers)

        class Collating(Worker):
            def process(self, sample):
                return {"read": sample, "drawn": draw(sample)}

            def collate(self, results):
                return super().collate(results) | {"collate": [draw(r) for r in results]}

        with preserve_globals():
            found = [
                Bench(make(), Dataset(), seed_globals=True).fill([0] * ROWS, position=5)
                for make in (Each, Chunks, Collating)
            ]
        drawn = [[tuple(pair) for pair in found[0][name]] for name in ("read", "drawn")]
        for part in found:
            assert [[tuple(pair) for pair in part[name]] for name in ("read", "drawn")] == drawn
        drawn.append(found[2]["collate"])
        for numbers in zip(*itertools.chain(*drawn), strict=True):
            assert len(set(numbers)) == 3 * ROWS

    def test_the_guard_is_around_user_code(self):
        inside = []

        @contextlib.contextmanager
        def guard():
            inside.append("in")
            yield
            inside.append("out")

        class Notes(Free):
            def setup(self):
                inside.append("setup")

            def start_epoch(self, epoch):
                inside.append("start_epoch")

            def process(self, sample):
                inside.append("process")
                return {}

            def teardown(self):
                inside.append("teardown")

        bench = Bench(Notes(), guard=guard)
        bench.runner.setup()
        bench.fill([1])
        bench.runner.teardown()
        assert inside == [
            *("in", "setup", "out"),
            *("in", "start_epoch", "process", "out"),
            *("in", "teardown", "out"),
        ]


class TestEpochs:
    def test_started_once_each_and_the_dataset_knows(self):
        class Dataset(Reading):
            def set_epoch(self, epoch):
                self.calls.append(f"epoch {epoch}")

        class Notes(Free):
            def start_epoch(self, epoch):
                self.seen = [*getattr(self, "seen", []), (epoch, self.epoch)]

        bench = Bench(Notes(), Dataset())
        for epoch in (0, 0, 1, 3, 3):
            bench.fill([epoch], epoch=epoch)
        calls = bench.runner._reader.dataset.calls
        assert calls == ["epoch 0", 0, 0, "epoch 1", 1, "epoch 3", 3, 3]
        assert bench.runner.worker.seen == [(0, 0), (1, 1), (3, 3)]

    def test_one_that_failed_to_start_is_started_again(self):
        class Fails(Free):
            def start_epoch(self, epoch):
                self.tries = getattr(self, "tries", 0) + 1
                if self.tries == 1:
                    raise ValueError("first try")

        bench = Bench(Fails())
        with pytest.raises(ValueError, match="first try") as caught:
            bench.fill([1])
        assert "start of an epoch" in caught.value.__notes__[0]
        bench.fill([1])
        assert bench.runner.worker.tries == 2


class TestAttributes:
    def test_of_each_sample(self):
        class Notes(Free):
            def process(self, sample):
                return {"facts": (self.worker_id, self.epoch, self.index)}

        found = Bench(Notes()).fill([5, 3], epoch=2)
        assert found["facts"] == [(1, 2, 5), (1, 2, 3)]

    def test_samples_that_travel_have_no_index(self):
        class Notes(Free):
            def process(self, sample):
                return {"index": self.index}

        assert Bench(Notes()).fill([5], kind=Kind.SAMPLES) == {"index": [-1]}

    def test_of_a_chunk(self):
        class Notes(BulkDrawing):
            def prepare_batch(self, samples, batch, buffers):
                batch["index"] += self.indices.tolist()
                batch["count"] += [len(self.rngs)] * len(samples)
                buffers["draw"][:] = [rng.random() for rng in self.rngs]
                buffers["again"][:] = [rng.random() for rng in self.rngs]
                with pytest.raises(RuntimeError, match=r"Use self\.rngs"):
                    self.rng  # noqa: B018
                assert self.index == -1

        found = Bench(Notes()).fill([5, 3, 9])
        assert found["index"] == [5, 3, 9]
        assert found["count"] == [3, 3, 3]
        drawn = Bench(Drawing()).fill([0, 0, 0])
        assert [found["draw"], found["again"]] == [drawn["draw"], drawn["again"]]

    def test_prepare_called_by_an_own_prepare_batch_has_them_too(self):
        class Both(Fields):
            def prepare(self, sample, batch, buffers):
                buffers["x"][...] = self.index
                batch["draw"].append(float(self.rng.random()))

            def prepare_batch(self, samples, batch, buffers):
                super().prepare_batch(samples, batch, buffers)

        found = Bench(Both()).fill([5, 3])
        assert found["x"] == [5, 3]
        assert found["draw"] == Bench(Drawing()).fill([0, 0])["draw"]

    def test_nothing_of_it_is_left_behind(self):
        bench = Bench(Bulk())
        bench.fill([5, 3])
        worker = bench.runner.worker
        assert (worker.index, worker.indices) == (-1, None)
        with pytest.raises(RuntimeError, match="belongs to a sample"):
            worker.rng  # noqa: B018
        with pytest.raises(RuntimeError, match="only defined in prepare_batch"):
            worker.rngs  # noqa: B018


class TestStatusPage:
    @pytest.mark.parametrize("kind", ["read", "prepare"])
    def test_the_current_sample_is_noted_before_it_begins(self, kind):
        noted = []

        class Dataset(Reading):
            def __getitem__(self, index):
                if kind == "read":
                    noted.append(bench.page.position(1))
                return index

        class Notes(Fields):
            def prepare(self, sample, batch, buffers):
                if kind == "prepare":
                    noted.append(bench.page.position(1))

        bench = Bench(Notes(), Dataset())
        bench.fill([5, 3], position=70)
        assert noted == [70, 71]
        assert bench.page.position(1) == -1
        assert bench.page.position(0) == 0, "another worker's"

    @pytest.mark.parametrize("make", [Bulk, Free, Fields])
    def test_it_is_none_after_an_error_too(self, make):
        class Fails(Reading):
            def __getitem__(self, index):
                raise ValueError(bench.page.position(1))

        bench = Bench(make(), Fails())
        with pytest.raises(ValueError, match="42"):
            bench.fill([42])
        assert bench.page.position(1) == -1

    def test_seconds(self):
        class Slow(Free):
            def process(self, sample):
                time.sleep(0.01)
                return {}

        bench = Bench(Slow())
        bench.fill([1, 2, 3])
        bench.fill([1], kind=Kind.SAMPLES)
        assert 0.04 <= bench.page.busy_seconds(1) < 1
        assert bench.page.busy_seconds(0) == 0


class TestErrors:
    def test_a_part_that_fails(self):
        class Fails(Fields):
            def prepare(self, sample, batch, buffers):
                if sample == 5:
                    buffers["missing"][...] = 1

        bench = Bench(Fails())
        part = Part(1, 8, 0, 3, 0)
        keys = np.array([4, 5, 6])
        outcome, frames = bench.runner.run_part(part, 3, Kind.INDICES, keys)
        assert outcome == Outcome(Status.FAILED, 1, 4, 0)
        error = rebuild_exception(frames[0])
        assert isinstance(error, KeyError)
        (note,) = error.__notes__
        assert note.startswith("In worker 1, epoch 3: sample with index 5.")
        assert "x=BufferSpec((), int32)" in note
        assert "pair=BufferSpec((2,), float32, fill_value=(-1, -2))" in note

    def test_any_exception_is_the_callers_to_see(self):
        class Exits(Free):
            def process(self, sample):
                raise SystemExit(2)

        bench = Bench(Exits())
        part = Part(1, 8, 0, 1, 40)
        outcome, frames = bench.runner.run_part(part, 0, Kind.SAMPLES, [1])
        assert outcome == Outcome(Status.FAILED, 1, -1, 0)
        error = rebuild_exception(frames[0])
        assert isinstance(error, SystemExit)
        assert "sample number 40 of the epoch" in error.__notes__[0]

    def test_a_chunk_is_named_by_its_indices(self):
        class Fails(Bulk):
            def prepare_batch(self, samples, batch, buffers):
                raise ValueError

        with pytest.raises(ValueError) as caught:  # noqa: PT011
            Bench(Fails()).fill([5, 3])
        assert "samples with the indices [5, 3]" in caught.value.__notes__[0]

    @pytest.mark.parametrize(
        ("values", "text"), [([], "has no value"), ([1, 2], "got 2 values"), (None, "has no value")]
    )
    def test_lists_need_one_value_of_each_sample(self, values, text):
        class Odd(Fields):
            def prepare(self, sample, batch, buffers):
                if sample == 2 and values is None:
                    return
                for value in values if sample == 2 else [0]:
                    batch["list"].append(value)

        with pytest.raises(ValueError, match=rf"batch\['list'\] {text} for this sample") as caught:
            Bench(Odd()).fill([1, 2, 3])
        assert "index 2" in caught.value.__notes__[0]

    def test_in_a_chunk_too(self):
        class Odd(Bulk):
            def prepare_batch(self, samples, batch, buffers):
                batch["list"] += [1, 2]

        with pytest.raises(ValueError, match=r"appended 2 values to batch\['list'\] for 3 samples"):
            Bench(Odd()).fill([1, 2, 3])

    def test_a_list_with_the_name_of_a_buffer(self):
        class Odd(Fields):
            def prepare(self, sample, batch, buffers):
                batch["x"].append(1)

        with pytest.raises(ValueError, match="'x' is a buffer"):
            Bench(Odd()).fill([1])

    def test_teardown_releases_the_page_in_any_case(self):
        class Fails(Free):
            def teardown(self):
                raise ValueError("mine")

        bench = Bench(Fails())
        with pytest.raises(ValueError, match="mine"):
            bench.runner.teardown()
        with pytest.raises(ValueError, match="released"):
            bench.runner._standing.cell[0]


def test_overrides():
    class Collates(Free):
        def collate(self, results):
            return {}

    assert overrides(Bulk(), "prepare_batch")
    assert not overrides(Fields(), "prepare_batch")
    assert overrides(Fields(), "prepare")
    assert overrides(Collates(), "collate")
    assert not overrides(Free(), "collate")
