import numpy as np
import pytest

from crumpets_like import LoaderError
from crumpets_like.broker.assembly import RawBatch, assemble
from crumpets_like.broker.buffers import BufferSpec, SlotLayout
from crumpets_like.broker.encoding import Arena, encode
from crumpets_like.broker.failures import describe_failure, rebuild_exception
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


def raw(*columns, slot=NO_SLOT, sizes=None, arena=None):
    """A mini-batch of one segment for each dict of columns."""
    segments, frames, start = [], [], 0
    for number, column in enumerate(columns):
        size = sizes[number] if sizes else 1
        mine = [bytes(frame) for frame in encode(column, arena)]
        segments.append(Segment(start, size, len(mine), 10 * start, 0))
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


class TestFailures:
    def test_are_raised_and_the_slot_goes_back(self, ring):
        failed = RawBatch(ring.take(), 2, Status.FAILED, [], [describe_failure(KeyError("mine"))])
        with pytest.raises(KeyError, match="mine"):
            assemble(failed, ring)
        assert (ring.held, ring.idle) == (0, 1)

    @pytest.mark.parametrize("data", [b"", b"no pickle", describe_failure(KeyError())[:-5]])
    def test_that_cannot_be_read(self, data):
        error = rebuild_exception(data)
        assert isinstance(error, LoaderError)
        assert "could not be unpickled" in str(error)
