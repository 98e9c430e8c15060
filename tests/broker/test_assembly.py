import itertools
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.broker.assembly import RawBatch, assemble
from crumpets_like.broker.buffers import BufferSpec, SlotLayout
from crumpets_like.broker.encoding import Arena, encode
from crumpets_like.broker.failures import describe_failure, pack_errors
from crumpets_like.broker.protocol import Segment, Status
from crumpets_like.broker.ring import BufferRing
from crumpets_like.broker.segment import NO_SLOT


@pytest.fixture
def ring():
    made = BufferRing(SlotLayout({"x": BufferSpec((), "i4")}, 4), 2, 1, max_buffers=2)
    yield made
    made.close()


@pytest.fixture
def free_form():
    made = BufferRing(None, 2, 1, max_buffers=2)
    yield made
    made.close()


def raw(*columns, slot=NO_SLOT, sizes=None, arena=None, skipped=()):
    """A mini-batch of one segment for each dict of columns; some of its rows were skipped."""
    segments, frames, start = [], [], 0
    for number, column in enumerate(columns):
        size = sizes[number] if sizes else 1
        mine = [bytes(frame) for frame in encode(column, arena)]
        rows = [row for row in range(size) if start + row in skipped]
        if rows:
            mine.append(
                pack_errors([(row, describe_failure(KeyError(start + row))) for row in rows])
            )
        segments.append(Segment(start, size, len(mine), 10 * start, len(rows)))
        frames += mine
        start += size
    return RawBatch(slot, start, Status.DONE, segments, frames)


class TestFields:
    def test_arrays_and_lists(self, ring):
        slot = ring.take()
        batch = assemble(raw({"n": ["a", "b"]}, {"n": ["c"]}, slot=slot, sizes=[2, 1]), ring)
        assert batch["n"] == ["a", "b", "c"]
        assert batch["x"].shape == (3,)
        assert batch["x"].flags.writeable
        assert ring.held == 1

    def test_nothing_but_arrays(self, ring):
        batch = assemble(raw({}, {}, slot=ring.take()), ring)
        assert list(batch) == ["x"]
        assert batch["x"].shape == (2,)

    def test_without_slots_they_come_in_messages(self):
        ring = BufferRing(SlotLayout({"x": BufferSpec((), "i4")}, 4), 0, 1)
        pieces = [{"x": np.arange(2), "n": [1, 2]}, {"x": np.arange(2, 3), "n": [3]}]
        batch = assemble(raw(*pieces, sizes=[2, 1]), ring)
        ring.close()
        assert batch["x"].tolist() == [0, 1, 2]
        assert batch["n"] == [1, 2, 3]

    def test_a_list_that_some_samples_do_not_have(self, ring):
        for pieces, index in [(({"n": [1]}, {}), 10), (({}, {"n": [1]}), 0)]:
            with pytest.raises(ValueError, match=rf"batch\['n'\] has no value .* index {index}:"):
                assemble(raw(*pieces, slot=ring.take()), ring)
            assert ring.held == 0, "the slot goes back"


class Unloadable:
    """Pickles to what cannot be loaded."""

    def __reduce__(self):
        return int, ("not a number",)


def test_a_value_that_cannot_be_unpickled(ring):
    slot = ring.take()
    with pytest.raises(ValueError, match="not a number") as caught:
        assemble(raw({"n": ["a"]}, {"n": [Unloadable()]}, slot=slot), ring)
    (note,) = caught.value.__notes__
    assert note == (
        "What 1 sample(s), the first one with index 10, gave was pickled by the worker, but cannot "
        "be unpickled in the training process."
    )
    del caught
    assert ring.held == 0, "the slot goes back"


class TestFreeForm:
    def test_parts_are_joined(self, free_form):
        pieces = [{"a": np.zeros((2, 3)), "b": ["x", "y"]}, {"a": np.ones((1, 3)), "b": ["z"]}]
        batch = assemble(raw(*pieces, slot=free_form.take(), sizes=[2, 1]), free_form)
        assert batch["a"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
        assert batch["b"] == ["x", "y", "z"]
        assert free_form.largest_free_form == 9 * 8

    def test_arrays_of_the_slot_are_views(self, free_form):
        slot = free_form.take()
        geometry = free_form.geometry
        arena = Arena(free_form.mapping, geometry.offset(slot), 0, geometry.stride)
        values = np.arange(10_000.0)
        batch = assemble(raw({"a": values}, slot=slot, arena=arena), free_form)
        del arena
        assert np.array_equal(batch["a"], values)
        assert free_form.held == 1
        view = batch["a"][5:]
        del batch
        assert free_form.held == 1
        del view
        assert free_form.held == 0

    def test_a_slot_without_arrays_goes_back(self, free_form):
        batch = assemble(raw({"a": ["text"]}, slot=free_form.take()), free_form)
        assert batch == {"a": ["text"]}
        assert free_form.held == 0

    def test_other_keys(self, free_form):
        pieces = [{"a": [1]}, {"b": [1]}]
        with pytest.raises(ValueError, match=r"keys \['b'\] for sample 1 .* \['a'\] for sample 0"):
            assemble(raw(*pieces, slot=free_form.take()), free_form)
        assert free_form.held == 0


ROWS = 4


class TestSkipped:
    """The rows of samples that were skipped are closed up."""

    @given(skipped=st.sets(st.integers(0, ROWS - 1)), cuts=st.sets(st.integers(1, ROWS - 1)))
    def test_rows_and_lists_anywhere(self, skipped, cuts):
        ring = BufferRing(SlotLayout({"x": BufferSpec((2,), "i4")}, ROWS), 2, 1, max_buffers=2)
        try:
            slot = ring.take()
            rows = ring.layout.rows_at(ring.mapping, ring.geometry.offset(slot), 0, ROWS)
            rows["x"][...] = np.arange(2 * ROWS).reshape(ROWS, 2)
            edges = [0, *sorted(cuts), ROWS]
            parts = [range(*edge) for edge in itertools.pairwise(edges)]
            lists = [[row for row in part if row not in skipped] for part in parts]
            sizes = [len(part) for part in parts]
            columns = [{"n": values} if values else {} for values in lists]
            batch_came = raw(*columns, slot=slot, sizes=sizes, skipped=skipped)
            assert batch_came.skipped == len(skipped)
            batch = assemble(batch_came, ring)
            left = [row for row in range(ROWS) if row not in skipped]
            if not left:
                assert batch is None
                assert (ring.held, ring.idle) == (0, 2), "the slot has come back"
                return
            assert batch["n"] == left
            assert batch["x"].tolist() == [[2 * row, 2 * row + 1] for row in left]
            assert ring.held == 1
            if not skipped:
                return
            batch["x"][0, 0] = -1
            assert rows["x"][0, 0] == -1, "they are still in their slot"
        finally:
            batch = rows = None
            ring.close()

    def test_every_field(self):
        specs = {
            "x": BufferSpec((), "i4"),
            "y": BufferSpec((3,), "f4"),
            "none": BufferSpec((0,), "u1"),
        }
        ring = BufferRing(SlotLayout(specs, ROWS), 2, 1, max_buffers=2)
        slot = ring.take()
        rows = ring.layout.rows_at(ring.mapping, ring.geometry.offset(slot), 0, ROWS)
        rows["x"][...] = range(ROWS)
        rows["y"][...] = np.arange(ROWS)[:, None]
        batch = assemble(raw({}, slot=slot, sizes=[ROWS], skipped={1}), ring)
        found = {name: array.tolist() for name, array in batch.items()}
        del rows, batch
        ring.close()
        assert found == {"x": [0, 2, 3], "y": [[0] * 3, [2] * 3, [3] * 3], "none": [[]] * 3}

    def test_arrays_in_messages(self):
        """There the worker has left those rows out."""
        ring = BufferRing(SlotLayout({"x": BufferSpec((), "i4")}, ROWS), 0, 1)
        pieces = [{"x": np.array([0]), "n": [0]}, {"x": np.array([3]), "n": [3]}]
        batch = assemble(raw(*pieces, sizes=[2, 2], skipped={1, 2}), ring)
        nothing = assemble(raw({"x": np.zeros(0)}, sizes=[2], skipped={0, 1}), ring)
        ring.close()
        assert batch["x"].tolist() == [0, 3]
        assert batch["n"] == [0, 3]
        assert nothing is None

    def test_free_form(self, free_form):
        pieces = [{"a": np.zeros(2), "b": ["x", "y"]}, {}, {"a": np.ones(1), "b": ["z"]}]
        came = raw(*pieces, slot=free_form.take(), sizes=[3, 2, 1], skipped={1, 3, 4})
        batch = assemble(came, free_form)
        assert batch["a"].tolist() == [0, 0, 1]
        assert batch["b"] == ["x", "y", "z"]

    def test_free_form_without_anything(self, free_form):
        came = raw({}, {}, slot=free_form.take(), sizes=[1, 2], skipped={0, 1, 2})
        assert assemble(came, free_form) is None
        assert (free_form.held, free_form.idle) == (0, 2)

    def test_a_list_that_some_samples_do_not_have(self, ring):
        came = raw({"n": [1]}, {}, {}, slot=ring.take(), sizes=[1, 1, 1], skipped={1})
        with pytest.raises(ValueError, match=r"batch\['n'\] has no value .* index 20:"):
            assemble(came, ring)

    def test_other_keys(self, free_form):
        came = raw({}, {"a": [1]}, {"b": [1]}, slot=free_form.take(), skipped={0})
        with pytest.raises(ValueError, match=r"\['b'\] for sample 2 .* \['a'\] for sample 1"):
            assemble(came, free_form)

    def test_each_is_logged_with_its_reason(self, ring, caplog):
        with caplog.at_level(logging.INFO, "crumpets_like"):
            assemble(raw({}, {}, slot=ring.take(), sizes=[2, 2], skipped={0, 3}), ring)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
        assert [record.getMessage() for record in caplog.records][1:] == [
            "skipped a sample: KeyError: 0",
            "skipped a sample: KeyError: 3",
        ]
