import datetime
import enum
import pickle
from collections import OrderedDict, namedtuple
from decimal import Decimal
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import (
    array_shapes,
    arrays,
    boolean_dtypes,
    floating_dtypes,
    integer_dtypes,
    scalar_dtypes,
)

from crumpets_like.broker.encoding import (
    Arena,
    decode,
    encode,
    join,
    stack_or_list,
    stack_part,
)

Point = namedtuple("Point", "x y")


class Color(enum.IntEnum):
    RED = 1


class Text(str):
    """A str of another type."""


def there_and_back(columns, slot_bytes=None):
    """Through frames, and through a slot of so many bytes."""
    if slot_bytes is None:
        frames, base = encode(columns, None), None
    else:
        memory = bytearray(64 + slot_bytes)
        frames = encode(columns, Arena(memory, 64, 0, slot_bytes))
        base = np.ndarray((slot_bytes,), np.uint8, memory, 64)
    frames = [bytes(frame) for frame in frames]
    return decode(frames, base), frames


def same(left, right):
    """Equal, of the same types all the way down; arrays by dtype, shape and bytes."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype.hasobject:
            return same(left.tolist(), right.tolist())
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == (right.tobytes())
        )
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right) or (left != left and right != right)


VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    10**100,
    0.1,
    float("nan"),
    float("inf"),
    -0.0,
    1 + 2j,
    "",
    "größe",
    "\ud800",
    b"",
    b"\x00\xff",
    bytearray(b"abc"),
    (),
    (1, (2, [3, (4,)])),
    [],
    [[], [1], "2"],
    {},
    {"a": {1: (2, 3), (4, 5): None, None: True}},
    {1, 2},
    frozenset("a"),
    range(3),
    slice(1, 2),
    datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.UTC),
    datetime.datetime(2020, 1, 2),
    datetime.timedelta(1, 2, 3),
    Decimal("1.50"),
    Path("/a/b"),
    Point(1, [2]),
    Color.RED,
    Text("x"),
    OrderedDict([("b", 1), ("a", 2)]),
    np.float32(1.5),
    np.bool_(True),
    np.uint64(2**64 - 1),
    np.complex64(1 + 2j),
    np.float16(0.5),
    np.str_("text"),
    np.datetime64("2020-01-02"),
    np.dtype(">f4"),
    np.array(5),
    np.array([], np.int8),
    np.zeros((0, 4)),
    np.array(["a", "bcd"]),
    np.array([b"a", b"bcd"]),
    np.array(["2020-01-02"], "M8[D]"),
    np.array([1, 2], ">m8[s]"),
    np.array([], ">M8[Y]"),
    np.array([(1, 2.5)], [("a", "i4"), ("b", ">f8")]),
    np.array([None, "x", 1], object),
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.arange(6)[::-1],
    np.arange(5000, dtype=np.uint16),
    np.asfortranarray(np.arange(8000.0).reshape(80, 100)),
    np.arange(20_000)[::-2],
    np.array(["text"] * 2000),
    np.zeros(5000, bool),
    np.ma.masked_array([1, 2], [True, False]).filled(),
    [np.arange(5000), {"deep": (np.arange(3.0),)}],
]


# numpy's own pickle makes swapped dates native.
DTYPES = scalar_dtypes().filter(lambda dtype: dtype.isnative or dtype.kind not in "mM")


class TestValues:
    @pytest.mark.parametrize("slot_bytes", [None, 0, 1 << 16, 1 << 20])
    @pytest.mark.parametrize("number", range(len(VALUES)))
    def test_one(self, number, slot_bytes):
        value = VALUES[number]
        decoded, _ = there_and_back({"x": value}, slot_bytes)
        assert list(decoded) == ["x"]
        assert same(decoded["x"], value), decoded["x"]

    @pytest.mark.parametrize("slot_bytes", [None, 1 << 12, 1 << 20])
    def test_all_of_them(self, slot_bytes):
        columns = {f"key {number}": value for number, value in enumerate(VALUES)}
        decoded, _ = there_and_back(columns, slot_bytes)
        assert same(decoded, columns)

    @pytest.mark.parametrize("key", ["text", 1, (1, 2), None, b"bytes", Color.RED])
    def test_keys(self, key):
        decoded, _ = there_and_back({key: 1})
        assert decoded == {key: 1}

    def test_nothing_is_no_frame(self):
        assert encode({}, None) == []
        assert decode([], None) == {}

    def test_too_deep_for_pickle(self):
        value = []
        for _ in range(10_000):
            value = [value]
        with pytest.raises(pickle.PicklingError, match="deep"):
            encode({"x": value}, None)

    def test_local_classes_and_functions(self):
        class Local:
            value = 3

        decoded, _ = there_and_back({"a": Local(), "b": lambda: 4})
        assert decoded["a"].value == 3
        assert decoded["b"]() == 4

    @pytest.mark.parametrize("slot_bytes", [None, 0, 1 << 18])
    def test_large_arrays_beside_what_only_cloudpickle_can(self, slot_bytes):
        # The first pickler has given some arrays away when it meets the function.
        mixed = OrderedDict(a=np.zeros(5000), b=np.ones(5000), f=lambda: 4, c=np.full(5000, 7.0))
        decoded = there_and_back({"x": mixed}, slot_bytes)[0]["x"]
        assert [decoded[name].mean() for name in "abc"] == [0, 1, 7]
        assert decoded["f"]() == 4

    def test_the_second_attempt_takes_no_more_of_the_slot(self):
        arena = Arena(bytearray(1 << 18), 0, 0, 1 << 18)
        encode({"x": OrderedDict(a=np.zeros(5000), f=lambda: 4)}, arena)
        assert arena.wanted == 40_000

    def test_what_does_not_fit_is_wanted_once(self):
        arena = Arena(bytearray(1 << 12), 0, 0, 1 << 12)
        encode({"x": [np.zeros(5000)]}, arena)
        assert arena.wanted == 40_000

    def test_a_memoryview_comes_back_as_bytes(self):
        assert there_and_back({"x": [memoryview(b"abc")]})[0] == {"x": [b"abc"]}

    def test_a_memmap_comes_back_as_an_array(self, tmp_path):
        values = np.memmap(tmp_path / "values", np.int32, "w+", shape=(9, 500))
        values[...] = 3
        for value in (values, values[:2, :5]):
            decoded, _ = there_and_back({"x": [value]}, 1 << 16)
            assert same(decoded["x"][0], np.array(value))

    def test_arrays_that_cannot_be_written_to_come_back_writable(self):
        fixed = np.broadcast_to(np.float32(1), (5000,))
        for value in (fixed, fixed[:5], np.frombuffer(bytes(9000), np.uint8)):
            for slot_bytes in (None, 1 << 16):
                decoded, _ = there_and_back({"x": [value]}, slot_bytes)
                decoded["x"][0][0] = 5

    def test_swapped_dates_inside_of_other_things(self):
        for size in (2, 5000):
            dates = {"dates": (np.arange(size).astype(">M8[D]"), np.ones(size, ">m8[s]"))}
            assert same(there_and_back({"x": dates}, 1 << 17)[0]["x"], dates)

    def test_buffers_of_other_objects(self):
        for slot_bytes in (None, 1 << 17):
            value = pickle.PickleBuffer(bytearray(b"a" * 9000))
            decoded, frames = there_and_back({"x": value}, slot_bytes)
            assert bytes(decoded["x"]) == b"a" * 9000
            assert len(frames[0]) < 200

    def test_what_cannot_be_pickled(self):
        with pytest.raises(TypeError, match="generator"):
            encode({"x": (i for i in ())}, None)

    @given(
        st.dictionaries(
            st.text(max_size=3),
            st.recursive(
                st.none()
                | st.booleans()
                | st.integers()
                | st.floats(allow_nan=False)
                | st.text(alphabet=st.characters())
                | st.binary()
                | arrays(DTYPES, array_shapes(min_dims=0, max_side=4, min_side=0)),
                lambda inner: (
                    st.lists(inner, max_size=3)
                    | st.tuples(inner, inner)
                    | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=3)
                ),
                max_leaves=6,
            ),
            max_size=3,
        ),
        st.sampled_from([None, 0, 1 << 16]),
    )
    def test_anything(self, columns, slot_bytes):
        decoded, _ = there_and_back(columns, slot_bytes)
        assert same(decoded, columns)


class TestWhere:
    LARGE = np.arange(10_000, dtype=np.float32)

    def test_large_arrays_lie_in_the_slot(self):
        decoded, frames = there_and_back({"x": self.LARGE, "y": [self.LARGE]}, 1 << 20)
        assert sum(map(len, frames)) < 300
        for array in (decoded["x"], decoded["y"][0]):
            assert array.ctypes.data % 64 == (decoded["x"].ctypes.data) % 64
            assert array.base is not None
            assert array.flags.writeable

    def test_also_inside_of_other_objects(self):
        holder = OrderedDict(inner=(self.LARGE, "text"))
        decoded, frames = there_and_back({"x": holder}, 1 << 20)
        assert sum(map(len, frames)) < 500, "pickled out of band"
        assert same(decoded["x"], holder)

    def test_what_does_not_fit_travels_in_a_frame(self):
        columns = {name: self.LARGE + number for number, name in enumerate("abc")}
        decoded, frames = there_and_back(columns, 50_000)
        assert [len(frame) for frame in frames[2:]] == [40_000, 40_000]
        assert same(decoded, columns)
        for array in decoded.values():
            array[0] = 5  # all of them can be written to

    def test_small_ones_travel_in_the_message(self):
        _, frames = there_and_back({"x": np.arange(100)}, 1 << 20)
        assert len(frames) == 1
        assert len(frames[0]) > 800

    def test_without_a_slot_arrays_are_not_pickled(self):
        frames = encode({"x": self.LARGE}, None)
        assert np.shares_memory(frames[-1], self.LARGE), "not even copied"


class TestArena:
    def test_front_to_back_aligned_and_inside(self):
        memory = np.zeros(1000, np.uint8)
        arena = Arena(memory, 100, 70, 500)
        places = []
        while (place := arena.place((3, 5), np.dtype("f4"))) is not None:
            array, offset = place
            array[...] = 1
            places.append(offset)
        assert places == [128, 192, 256, 320, 384]
        assert memory[100 + 128 :].any()
        assert not memory[: 100 + 128].any()
        assert not memory[100 + 500 :].any()

    def test_no_bytes_at_all(self):
        arena = Arena(bytearray(64), 0, 0, 64)
        array, _ = arena.place((0, 4), np.dtype("f4"))
        assert array.shape == (0, 4)


class TestStacking:
    @pytest.mark.parametrize(
        "values",
        [
            [1, 2],
            [True, False],
            [1, 2.5],
            [1, 2 + 1j],
            [np.float32(1), np.float32(2)],
            [np.array(1), np.array(2)],
            [np.zeros((0, 4)), np.zeros((0, 4))],
            [np.zeros(3, ">f4"), np.ones(3, ">f4")],
            [np.asfortranarray(np.ones((2, 3))), np.zeros((2, 3))],
            [np.arange(4)[::-1], np.arange(4)],
            [np.zeros(2, bool), np.ones(2, np.uint16)],
            [np.array(["a"]), np.array(["bcd"])],
            [np.array(["2020"], "M8[Y]"), np.array(["2021"], "M8[Y]")],
        ],
        ids=repr,
    )
    def test_what_is_stacked(self, values):
        stacked = stack_or_list(values)
        assert isinstance(stacked, np.ndarray)
        assert same(stacked, np.stack([np.asarray(value) for value in values]))

    @pytest.mark.parametrize(
        "values",
        [
            ["a", "b"],
            [b"a", b"b"],
            [None, None],
            [1, None],
            [1, "a"],
            [{1}, {2}],
            [(1, 2), (3, 4)],
            [[1], [2]],
            [{"a": 1}, {"a": 2}],
            [datetime.date(2020, 1, 2)] * 2,
            [np.zeros(2), np.zeros(3)],
            [np.zeros(2), [0, 0]],
            [np.zeros(()), 1.0],
            [Color.RED, Color.RED],
            [10**30, 1],
            [2**63 + 1, -1],
            [np.ma.masked_array([1, 2], [True, False])] * 2,
            [np.array([None]), np.array([None])],
            [np.zeros(1, [("a", "i4")])] * 2,
            [np.zeros(1), np.zeros(1, [("a", "i4")])],
            [np.array(["2020"], "M8[Y]"), np.zeros(1)],
        ],
        ids=repr,
    )
    def test_what_stays_a_list(self, values):
        assert stack_or_list(values) is values


MIXED = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(0, 1),
    st.sampled_from([np.float32(0.1), np.int8(3), np.array(2), np.array(5, ">i4"), np.array("x")]),
)
NUMBERS = boolean_dtypes() | integer_dtypes() | floating_dtypes()
ROWS = st.one_of(
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=6),
    st.lists(st.booleans() | st.integers(0, 9) | st.floats(0, 1), min_size=1, max_size=6),
    st.lists(st.text(max_size=2) | st.none() | st.integers(0, 9), min_size=1, max_size=6),
    st.lists(arrays("i4", array_shapes(max_dims=2, max_side=2)), min_size=1, max_size=6),
    st.lists(arrays(NUMBERS, 2), min_size=1, max_size=6),
    st.lists(arrays(scalar_dtypes(), 2), min_size=1, max_size=6),
    st.lists(MIXED, min_size=1, max_size=6),
    st.lists(st.integers(-2, 2) | st.integers(2**63 - 2, 2**64 + 2), min_size=1, max_size=6),
    st.lists(
        st.sampled_from([None, np.float32(1), np.float64(2), np.array(3, "i2"), 4]),
        min_size=1,
        max_size=6,
    ),
    st.lists(
        st.sampled_from([np.ones(2, dtype) for dtype in ("i2", "u2", "f4", ">f4", "?")]),
        min_size=1,
        max_size=6,
    ),
)


class TestJoining:
    @given(ROWS, st.lists(st.booleans(), min_size=5, max_size=5))
    def test_cuts_do_not_show(self, values, cuts):
        chunks = [[values[0]]]
        for value, cut in zip(values[1:], cuts, strict=False):
            if cut:
                chunks.append([])
            chunks[-1].append(value)
        joined = join([{"x": stack_part(chunk)} for chunk in chunks])["x"]
        assert same(joined, stack_or_list(values)), (chunks, joined)

    def test_one_part_is_stacked_as_if_it_were_whole(self):
        part = {"n": stack_part([1, 2]), "t": stack_part(["a", "b"])}
        assert same(join([part])["n"], np.array([1, 2]))
        assert join([part])["t"] == ["a", "b"]

    def test_dtypes_without_a_common_one(self):
        dates = np.array(["2020"], "M8[Y]")
        joined = join([{"x": np.zeros((1, 1), bool)}, {"x": dates.reshape(1, 1)}])["x"]
        assert same(joined, [np.zeros(1, bool), dates])

    def test_own_joins_of_the_user(self):
        columns = [{"n": np.zeros((2, 3)), "m": ["a", "b"]}, {"n": np.ones((1, 3)), "m": ["c"]}]
        joined = join(columns)
        assert same(joined["n"], np.array([[0.0] * 3, [0.0] * 3, [1.0] * 3]))
        assert joined["m"] == ["a", "b", "c"]


def test_the_first_frame_is_a_pickle_and_the_second_one_tells_the_places_of_its_buffers():
    columns = {"x": [1, "a"], "y": np.zeros(5000)}
    memory = bytearray(64 + 40_000)
    stream, places, data = encode(columns | {"z": np.ones(5000)}, Arena(memory, 64, 0, 40_000))
    assert msgpack.unpackb(places) == [[0, 40_000], None]
    ones = np.ones(5000)
    assert bytes(data) == ones.tobytes()
    loaded = pickle.loads(stream, buffers=[bytearray(40_000), bytearray(data)])
    assert same(loaded, columns | {"z": ones})


def test_what_has_no_large_arrays_is_its_pickle_alone():
    (stream,) = encode({"x": [1, "a"], "y": np.zeros(5)}, None)
    assert same(pickle.loads(stream), {"x": [1, "a"], "y": np.zeros(5)})
