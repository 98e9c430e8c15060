from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crumpets_like.broker.buffers import (
    ALIGNMENT,
    BufferSpec,
    IntegerRows,
    SlotLayout,
    align,
    check_range,
)

INTEGERS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]


def test_align():
    assert [align(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert align(5, 4096) == 4096


class TestBufferSpec:
    @pytest.mark.parametrize(
        ("buffer", "shape", "dtype"),
        [
            (((3, 8, 8), np.uint8), (3, 8, 8), "u1"),
            (((), "f4"), (), "f4"),
            (([2, np.int64(3)], ">f4", 1.5), (2, 3), ">f4"),
            (((0, 4), bool), (0, 4), "?"),
            (np.ones((2, 2), np.int16), (2, 2), "i2"),
            (BufferSpec((5,), "U7"), (5,), "U7"),
        ],
    )
    def test_forms(self, buffer, shape, dtype):
        spec = BufferSpec.parse(buffer)
        assert spec.shape == shape
        assert spec.dtype == np.dtype(dtype)
        assert spec.nbytes == int(np.prod(shape)) * np.dtype(dtype).itemsize

    @pytest.mark.parametrize("buffer", [5, "u1", ((3,),), ((3,), "u1", 0, 0), [(3,), "u1"], None])
    def test_other_forms(self, buffer):
        with pytest.raises(TypeError, match="buffer must be"):
            BufferSpec.parse(buffer)

    @pytest.mark.parametrize("shape", [5, (2.5,), ("3",), None, ((1, 2),)])
    def test_shapes_of_anything_but_integers(self, shape):
        with pytest.raises(TypeError, match="shape must be a sequence of integers"):
            BufferSpec(shape, "u1")

    def test_negative_extent(self):
        with pytest.raises(ValueError, match=r"negative extents, got \(3, -1\)"):
            BufferSpec((3, -1), "u1")

    def test_objects(self):
        with pytest.raises(TypeError, match="Python objects, got object"):
            BufferSpec((), object)

    @pytest.mark.parametrize("dtype", ["U", "S", "V"])
    def test_text_without_a_length(self, dtype):
        with pytest.raises(ValueError, match=f"such as '{dtype}20'"):
            BufferSpec((), dtype)

    def test_without_fill_value_rows_are_not_reset(self):
        rows = np.full((2, 3), 7)
        BufferSpec((3,), rows.dtype).fill(rows)
        assert (rows == 7).all()

    @pytest.mark.parametrize(
        ("shape", "fill", "expected"),
        [
            ((2, 3), 4, np.full((2, 3), 4)),
            ((), 4, np.array(4)),
            ((2, 3), (1, 2), [[1, 1, 1], [2, 2, 2]]),
            ((2, 3), [[1, 2, 3]], [[1, 2, 3], [1, 2, 3]]),
            ((1, 3), [[1, 2, 3]], [[1, 2, 3]]),
            ((3, 3), [1, 2, 3], [[1, 1, 1], [2, 2, 2], [3, 3, 3]]),
        ],
    )
    def test_fill_value_is_padded_on_the_right(self, shape, fill, expected):
        rows = np.zeros((4, *shape), np.int32)
        BufferSpec(shape, np.int32, fill).fill(rows)
        assert (rows == np.asarray(expected)).all()

    def test_a_template_array_is_its_own_fill_value_and_copied(self):
        template = np.arange(6, dtype=np.float32).reshape(2, 3)
        spec = BufferSpec.parse(template)
        template[...] = 0
        rows = np.empty((2, 2, 3), np.float32)
        spec.fill(rows)
        assert (rows == np.arange(6).reshape(2, 3)).all()

    @pytest.mark.parametrize(
        ("shape", "dtype", "fill", "error", "text"),
        [
            ((2,), "f4", [[1, 2]], ValueError, "has 2 dimensions"),
            ((2,), "f4", [1, 2, 3], ValueError, r"shape \(3,\) does not fit shape \(2,\)"),
            ((2,), "u1", 256, OverflowError, "do not fit uint8, which holds 0 to 255"),
            ((2,), "u1", float("nan"), ValueError, "do not fit uint8"),
        ],
    )
    def test_impossible_fill_values(self, shape, dtype, fill, error, text):
        with pytest.raises(error, match=text):
            BufferSpec(shape, dtype, fill)

    def test_equality_and_repr(self):
        assert BufferSpec((3,), "f4") == BufferSpec([3], np.float32)
        assert hash(BufferSpec((3,), "f4")) == hash(BufferSpec((3,), "f4", 1))
        assert BufferSpec((3,), "f4") != BufferSpec((3,), "f4", 0)
        assert BufferSpec((3,), "f4", 1) != BufferSpec((3,), "f4", 2)
        assert BufferSpec((3,), "f4") != BufferSpec((3,), "f8")
        assert BufferSpec((3,), "f4") != ((3,), "f4")
        assert repr(BufferSpec((3,), "f4", (1, 2, 3))) == (
            "BufferSpec((3,), float32, fill_value=(1, 2, 3))"
        )
        assert repr(BufferSpec((), "u1")) == "BufferSpec((), uint8)"
        assert "<array>" in repr(BufferSpec.parse(np.zeros(100)))


def exactly_fits(values, dtype):
    info = np.iinfo(dtype)
    return all(
        np.isfinite(value) and info.min <= int(value) <= info.max for value in values.tolist()
    )


FLOATS = st.sampled_from(["f2", "f4", "f8"])


class TestCheckRange:
    @given(
        st.sampled_from(INTEGERS),
        st.sampled_from(INTEGERS).flatmap(lambda dtype: arrays(dtype, st.integers(0, 3))),
    )
    def test_integers(self, dtype, values):
        if exactly_fits(values, dtype):
            check_range(values, dtype)
            assert (values.astype(dtype) == values).all()
        else:
            with pytest.raises(OverflowError, match=f"do not fit {dtype}"):
                check_range(values, dtype)

    @given(
        st.sampled_from(INTEGERS),
        FLOATS.flatmap(lambda dtype: arrays(np.dtype(dtype), st.integers(0, 3))),
    )
    def test_floats(self, dtype, values):
        if exactly_fits(values, dtype):
            check_range(values, dtype)
            assert values.astype(dtype).tolist() == [int(value) for value in values.tolist()]
        else:
            with pytest.raises(ValueError, match=f"do not fit {dtype}"):
                check_range(values, dtype)

    @pytest.mark.parametrize("dtype", INTEGERS)
    @pytest.mark.parametrize("floats", ["f2", "f4", "f8"])
    def test_floats_at_the_limits(self, dtype, floats):
        info = np.iinfo(dtype)
        with np.errstate(over="ignore"):
            for limit in (info.min, info.max):
                at = np.array(limit, floats)
                around = [np.nextafter(at, -np.inf, dtype=floats), at]
                around += [np.nextafter(at, np.inf, dtype=floats), at - 1, at + 1]
                for value in map(np.asarray, around):
                    if exactly_fits(value.reshape(1), dtype):
                        check_range(value, dtype)
                    else:
                        with pytest.raises(ValueError, match="do not fit"):
                            check_range(value, dtype)

    def test_nan_among_others(self):
        with pytest.raises(ValueError, match="has no NaN"):
            check_range(np.array([0.0, np.nan, 1.0]), np.dtype("i4"))

    def test_bools_and_nothing_always_fit(self):
        check_range(np.array([True]), np.dtype("u1"))
        check_range(np.array([], "f8"), np.dtype("u1"))


class TestIntegerRows:
    @pytest.fixture
    def rows(self):
        return np.zeros((2, 3), np.uint8).view(IntegerRows)

    @pytest.mark.parametrize(
        "value", [255, True, [1, 2, 3], 254.7, np.uint8(200), np.int64(200), np.array([9.0])]
    )
    def test_values_that_fit(self, rows, value):
        plain = np.zeros(rows.shape, rows.dtype)
        rows[0] = value
        plain[0] = value
        assert (rows == plain).all()

    @pytest.mark.parametrize(
        ("value", "error"),
        [
            (256, OverflowError),
            (-1, OverflowError),
            ([1, 2, 300], OverflowError),
            (np.int64(-1), OverflowError),
            (np.array([1, 2, 256]), OverflowError),
            (float("nan"), ValueError),
            (np.array([1.0, np.inf, 2.0]), ValueError),
            (256.0, ValueError),
            (2**70, OverflowError),
            (np.zeros(4, np.uint8), ValueError),
            ("x", ValueError),
        ],
    )
    def test_values_that_do_not(self, rows, value, error):
        with pytest.raises(error):
            rows[0] = value
        assert not rows.any()

    def test_views_of_it_check_too(self, rows):
        with pytest.raises(OverflowError):
            rows[1:][..., ::2][...] = np.int64(1000)
        row = rows[0, ...]
        with pytest.raises(OverflowError):
            row[1] = np.int64(1000)


class TestSlotLayout:
    SPECS: ClassVar[dict[str, BufferSpec]] = {
        "flag": BufferSpec((), "?"),
        "image": BufferSpec((3, 5), "f4"),
        "none": BufferSpec((0, 4), "i8"),
        "text": BufferSpec((2,), "U3"),
    }

    def test_fields_are_aligned_and_do_not_overlap(self):
        layout = SlotLayout(self.SPECS, rows=7)
        slot = np.zeros(layout.stride, np.uint8)
        views = layout.views(slot, 7)
        assert list(views) == list(self.SPECS)
        spans = []
        for name, view in views.items():
            assert view.shape == (7, *self.SPECS[name].shape)
            assert view.dtype == self.SPECS[name].dtype
            start = view.ctypes.data - slot.ctypes.data
            assert start % ALIGNMENT == 0
            spans.append((start, start + view.nbytes))
        spans.sort()
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        assert spans[-1][1] <= layout.stride

    def test_a_short_mini_batch_shows_its_rows_only(self):
        layout = SlotLayout(self.SPECS, rows=7)
        views = layout.views(np.zeros(layout.stride, np.uint8), 2)
        assert {view.shape[0] for view in views.values()} == {2}

    @given(st.data())
    def test_rows_are_those_of_the_views(self, data):
        rows = data.draw(st.integers(1, 9))
        start = data.draw(st.integers(0, rows))
        count = data.draw(st.integers(0, rows - start))
        layout = SlotLayout({"a": BufferSpec((3,), "i4"), "b": BufferSpec((), "u1")}, rows)
        memory = np.zeros(100 + 3 * layout.stride, np.uint8)
        offset = 100 + layout.stride
        for array in layout.rows_at(memory, offset, start, count).values():
            array[...] = 1
        slot = memory[offset : offset + layout.stride]
        for view in layout.views(slot, rows).values():
            assert view[start : start + count].all()
            assert view.astype(bool).sum() == view[start : start + count].size
        assert memory.sum() == memory[offset : offset + layout.stride].sum()

    def test_large_slots_are_whole_pages(self):
        assert SlotLayout({"a": BufferSpec((4097,), "u1")}, 1).stride == 2 * 4096
        assert SlotLayout({"a": BufferSpec((100,), "u1")}, 1).stride == 128
        assert SlotLayout({}, 4).stride == ALIGNMENT
