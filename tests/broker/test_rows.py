import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.broker.buffers import BufferSpec, IntegerRows, SlotLayout
from crumpets_like.broker.rows import RowBuffers, RowWriter

SMALL = {"x": BufferSpec((2,), "f4"), "n": BufferSpec((), "i8", -1), "s": BufferSpec((), "U5")}
LARGE = {**SMALL, "big": BufferSpec((1024,), "f8")}


class Slots:
    """Two slots of eight rows, and a writer for them."""

    def __init__(self, specs, rows=8):
        self.layout = SlotLayout(specs, rows)
        self.memory = bytearray(100 + 2 * self.layout.stride)
        self.writer = RowWriter(self.layout)
        self.offset = 100 + self.layout.stride

    def write_each(self, start, values):
        rows, copy = self.writer.each_row(self.memory, self.offset, start, len(values))
        for row, value in zip(rows, values, strict=False):
            row["x"][...] = value
            row["n"][...] = value
            row["s"][...] = str(value)
        copy()

    def write_all(self, start, values):
        rows = self.writer.all_rows(self.memory, self.offset, start, len(values))
        rows["x"][...] = np.array(values)[:, None]
        rows["n"][:] = values
        rows["s"][:] = list(map(str, values))

    def read(self):
        views = self.layout.views(memoryview(self.memory)[self.offset :], 8)
        return [views[key].tolist() for key in ("x", "n", "s")]


@pytest.mark.parametrize("specs", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("write", [Slots.write_each, Slots.write_all])
@given(start=st.integers(0, 7), data=st.data())
def test_rows_that_are_written_and_no_others(specs, write, start, data):
    values = data.draw(st.lists(st.integers(0, 99), max_size=8 - start))
    slots = Slots(specs)
    slots.write_all(0, [7] * 8)
    write(slots, start, values)
    expected = [7] * 8
    expected[start : start + len(values)] = values
    assert slots.read() == [[[v, v] for v in expected], expected, list(map(str, expected))]
    assert not any(slots.memory[: slots.offset])


@pytest.mark.parametrize("specs", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("how", ["each_row", "all_rows"])
def test_given_fill_values_are_there_before(specs, how):
    slots = Slots(specs)
    slots.write_all(0, [7] * 8)
    rows = getattr(slots.writer, how)(slots.memory, slots.offset, 2, 3)
    if how == "each_row":
        assert [row["n"].item() for row, _ in zip(rows[0], range(3), strict=False)] == [-1] * 3
        rows[1]()
    else:
        assert rows["n"].tolist() == [-1] * 3
    assert slots.read()[1] == [7, 7, -1, -1, -1, 7, 7, 7]


@pytest.mark.parametrize("specs", [SMALL, LARGE], ids=["small", "large"])
def test_rows_have_their_shapes_and_are_written_to_in_place(specs):
    slots = Slots(specs)
    rows, _ = slots.writer.each_row(slots.memory, slots.offset, 0, 1)
    row = next(iter(rows))
    for name, spec in specs.items():
        assert row[name].shape == spec.shape
        assert row[name].dtype == spec.dtype
        assert row[name].flags.writeable
    rows = slots.writer.all_rows(slots.memory, slots.offset, 1, 4)
    assert {name: array.shape for name, array in rows.items()} == {
        name: (4, *spec.shape) for name, spec in specs.items()
    }


@pytest.mark.parametrize("specs", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("value", [2**64, np.uint64(2**63), float("nan"), [1.0, 1e30], "x"])
def test_integers_are_checked(specs, value):
    slots = Slots(specs)
    rows, _ = slots.writer.each_row(slots.memory, slots.offset, 0, 1)
    with pytest.raises((OverflowError, ValueError)):
        next(iter(rows))["n"][...] = value
    with pytest.raises((OverflowError, ValueError)):
        slots.writer.all_rows(slots.memory, slots.offset, 0, 2)["n"][:] = value


def test_only_integers_cost_a_look():
    slots = Slots(SMALL)
    rows = slots.writer.all_rows(slots.memory, slots.offset, 0, 2)
    assert isinstance(rows["n"], IntegerRows)
    assert type(rows["x"]) is type(rows["s"]) is np.ndarray


class TestRowBuffers:
    def test_they_are_changed_in_place(self):
        rows = RowBuffers(x=np.full(3, 8.0))
        rows["x"] /= 2
        assert rows["x"].tolist() == [4.0, 4.0, 4.0]

    def test_assigning_to_a_key_would_be_lost(self):
        rows = RowBuffers(x=np.zeros(3))
        with pytest.raises(TypeError, match=r"buffers\['x'\]\[\.\.\.\] = value"):
            rows["x"] = np.ones(3)
        assert not rows["x"].any()

    def test_unknown_keys(self):
        with pytest.raises(KeyError, match="no buffer 'y', the buffers are: 'x', 'z'"):
            RowBuffers(x=np.zeros(3), z=np.zeros(3))["y"]
        with pytest.raises(KeyError, match="the buffers are: none"):
            RowBuffers()["y"]
