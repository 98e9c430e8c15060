"""A shared list is the list it was made of, in every process, and takes its memory once."""

from __future__ import annotations

import collections
import copy
import gc
import io
import pathlib
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like import SharedList, TurboDataLoader, Worker
from tests.support import sharing
from tests.support.scenario import run_scenario
from tests.support.scripts import SHARED_ITEMS

PROCESSES = ("fork", "forkserver", "spawn")
ALL = ("0", *PROCESSES, "thread")

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

Pair = collections.namedtuple("Pair", "a b")

values = st.one_of(
    st.text(st.characters()),  # lone surrogates as well
    st.binary(),
    st.none(),
    st.integers(),
    st.tuples(st.text(), st.integers()),
    st.dictionaries(st.text(), st.lists(st.integers())),
)
indices = st.integers(-30, 30)
slices = st.builds(
    slice,
    st.none() | indices,
    st.none() | indices,
    st.none() | st.integers(-5, 5).filter(bool),
)


# -- as a sequence ---------------------------------------------------------------------------


@given(st.lists(values, max_size=20), indices, slices, slices)
def test_it_is_the_list_it_was_made_of(
    items: list[Any], index: int, first: slice, second: slice
) -> None:
    whole = SharedList(items)
    for shared, expected in (
        (whole, items),
        (whole[first], items[first]),
        (whole[first][second], items[first][second]),
    ):
        assert isinstance(shared, SharedList)
        assert len(shared) == len(expected)
        assert list(shared) == expected
        assert [type(item) for item in shared] == [type(item) for item in expected]
        assert list(reversed(shared)) == expected[::-1]
        assert shared == expected
        assert bool(shared) == bool(expected)
        if -len(expected) <= index < len(expected):
            assert shared[index] == expected[index]
            number: Any = np.int64(index)
            assert shared[number] == expected[index]
            assert expected[index] in shared
            assert shared.index(expected[index]) == expected.index(expected[index])
            assert shared.count(expected[index]) == expected.count(expected[index])
        else:
            with pytest.raises(IndexError, match=rf"Index {index} .* of {len(expected)} items"):
                shared[index]


class Text(str):
    """A string of another type."""


@pytest.mark.parametrize(
    "item",
    [
        *["", "ä€😀", "\0", "\ud800", b"", b"\0t", bytearray(b"x"), Text("x"), "x" * 3_000_000],
        *[Pair(1, "x"), len, Pair, 1.5, True, 2**80, {1, 2}, {"a": [None]}],
        pathlib.PurePath("a/b"),
    ],
    ids=lambda item: repr(item)[:20],
)
def test_items_keep_their_type_and_their_value(item: Any) -> None:
    before, found, after = SharedList(["before", item, "after"])
    assert (before, found, after) == ("before", item, "after")
    assert type(found) is type(item)


def test_arrays_and_local_functions() -> None:
    class Local:
        value = 5

    items: list[Any] = [np.arange(6).reshape(2, 3), lambda x: x + 1, Local()]
    array, function, local = SharedList(items)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert function(1) == 2
    assert local.value == 5


def test_an_item_is_made_anew_each_time() -> None:
    shared = SharedList([[1, 2]])
    shared[0].append(3)
    assert shared[0] == [1, 2]


def test_equality() -> None:
    nan = float("nan")
    shared = SharedList(["a", "b", ("c", 1)])
    assert shared == ["a", "b", ("c", 1)]
    assert shared == ("a", "b", ("c", 1))
    assert ["a", "b", ("c", 1)] == shared  # noqa: SIM300  the other side is asked first
    assert shared == SharedList(list(shared))
    assert shared[:2] == SharedList("ab")
    assert shared != ["a", "b"]
    assert shared != ["a", "b", ("c", 2)]
    assert shared != "ab"
    assert SharedList("ab") != "ab"
    assert SharedList([nan]) != [nan]
    with pytest.raises(TypeError, match="unhashable"):
        hash(shared)


def test_wrong_indices() -> None:
    shared: Any = SharedList("abc")
    for index in (3, -4, 10**30):
        with pytest.raises(IndexError, match=rf"Index {index} is out of range .* of 3 items"):
            shared[index]
    wrong: list[Any] = [1.0, "1", None, (0, 1)]
    for index in wrong:
        with pytest.raises(TypeError, match=r"must be an integer or a slice, not .*\("):
            shared[index]
    with pytest.raises(ValueError, match="step"):
        shared[::0]
    with pytest.raises(TypeError):
        shared[0] = "d"
    with pytest.raises(IndexError, match="of 0 items"):
        SharedList()[0]


def test_repr_is_short() -> None:
    shared = SharedList("x" * 100 for _ in range(50_000))
    assert repr(shared) == "<SharedList of 50,000 items in a segment of 5.5 MB>"
    assert repr(shared[:3]) == "<SharedList of 3 items in a segment of 5.5 MB>"


def test_copies_are_the_list_itself() -> None:
    shared = SharedList(range(3))
    assert copy.copy(shared) is shared
    assert copy.deepcopy({"x": shared})["x"] is shared


# -- how it is made --------------------------------------------------------------------------


def test_an_item_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(TypeError, match=r"Item 2 of SharedList\(items\), a lock, .*pickle"):
        SharedList(["a", 1, threading.Lock()])  # its descriptor: see the leak guard


def failing() -> Iterator[str]:
    yield "a"
    raise KeyError("mine")


def test_an_iterable_that_fails() -> None:
    with pytest.raises(KeyError, match="mine"):
        SharedList(failing())


def test_items_are_not_collected_while_it_is_made() -> None:
    tracemalloc.start()
    try:
        shared = SharedList(b"x" * 10_000 for _ in range(5_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(map(len, shared)) == 50_000_000
    assert peak < 5e6, f"{peak / 1e6:.0f} MB"


# -- descriptors -----------------------------------------------------------------------------


@linux
def test_the_descriptor_goes_with_the_last_view() -> None:
    before = sharing.descriptors()
    shared = SharedList("abcdef")
    open_then = sharing.descriptors()
    view = shared[1:][::2]
    iterator = iter(view)
    del shared
    gc.collect()
    assert sharing.descriptors() == open_then
    assert list(view) == ["b", "d", "f"]
    del view
    assert list(iterator) == ["b", "d", "f"]
    del iterator
    gc.collect()
    assert sharing.descriptors() == before


@pytest.mark.slow
@linux
@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_twenty_loaders_take_no_more_descriptors(start_method: str) -> None:
    run_scenario(sharing.through_loaders, start_method, 20, timeout=90).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_more_lists_than_descriptors_in_a_message(start_method: str) -> None:
    run_scenario(sharing.many_lists, start_method, timeout=60).check()


# -- in other processes ----------------------------------------------------------------------


@linux
@pytest.mark.parametrize("start_method", ALL)
def test_through_a_loader(start_method: str) -> None:
    run_scenario(sharing.through_a_loader, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", ALL)
def test_items_of_classes_of_main(start_method: str) -> None:
    run_scenario(SHARED_ITEMS, start_method, timeout=60).check()


class Same(Worker):
    """Says which list it has."""

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items

    def process(self, sample: Any) -> dict[str, Any]:
        return {"segment": id(self.items._segment), "sample": sample}


@pytest.mark.parametrize(("nworkers", "start_method"), [(0, None), (2, "thread")])
def test_this_process_has_one_object(nworkers: int, start_method: str | None) -> None:
    shared = SharedList("abcd")
    with TurboDataLoader(shared, 2, Same(shared), nworkers, start_method=start_method) as loader:
        batches = [mini_batch for _, (mini_batch,) in loader]
    assert [sample for batch in batches for sample in batch["sample"]] == list("abcd")
    assert {int(number) for batch in batches for number in batch["segment"]} == {
        id(shared._segment)
    }


class Nested:
    """Pickles its list within a pickle of its own."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def __reduce__(self) -> Any:
        return pickle.loads, (pickle.dumps(Wrapped(self.items)),)


class Wrapped(Nested):
    """The same without that."""

    def __reduce__(self) -> Any:
        return Wrapped, (self.items,)


class Free(Worker):
    """Hands on the sample."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"sample": sample}


def test_a_pickle_within_the_payload() -> None:
    with TurboDataLoader(Nested(SharedList("abcd")), 2, Free(), 1, start_method="fork") as loader:
        assert [s for _, (batch,) in loader for s in batch["sample"]] == list("abcd")


class Mixed(list[Any]):
    """A dataset with a list and with something that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.texts = SharedList("abc")
        self.lock = threading.Lock()


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_it_is_not_blamed_for_what_cannot_be_pickled(method: str) -> None:
    worker = Free()
    worker.mixed = Mixed()  # type: ignore[attr-defined]
    loader = TurboDataLoader(range(8), 4, worker, 2, start_method=method)
    with pytest.raises(TypeError, match=r"worker_template\.mixed\.lock cannot be sent"):
        loader.start()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_multiprocessing(start_method: str) -> None:
    run_scenario(sharing.handed_to_multiprocessing, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_torchs_loader(start_method: str) -> None:
    pytest.importorskip("torch", reason="needs torch")
    run_scenario(sharing.handed_to_torch, start_method, timeout=100).check()


def test_pickled_elsewhere() -> None:
    shared = SharedList("abc")
    text = r"SharedList \(3 items\) .* TurboDataLoader .* multiprocessing .* list\(shared_list\)"
    with pytest.raises(pickle.PicklingError, match=text):
        pickle.dumps([shared])
    with pytest.raises(pickle.PicklingError, match=text):
        pickle.Pickler(io.BytesIO()).dump(shared[1:])
    assert pickle.loads(pickle.dumps(list(shared))) == list("abc")


class Slices(Worker):
    """Returns views."""

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.items = items

    def process(self, sample: Any) -> dict[str, Any]:
        return {"view": self.items[sample : sample + 2]}


def test_a_result_of_a_worker_must_be_a_list() -> None:
    worker = Slices(SharedList("abcd"))
    with (
        TurboDataLoader(range(2), 2, worker, 1, start_method="fork") as loader,
        pytest.raises(pickle.PicklingError, match=r"list\(shared_list\)"),
    ):
        next(iter(loader))


# -- memory ----------------------------------------------------------------------------------


@pytest.mark.slow
@linux
def test_workers_take_no_memory_for_it() -> None:
    grown = {}
    for kind in ("nothing", "list", "SharedList"):
        result = run_scenario(sharing.list_memory, kind, "fork", timeout=100).check()
        grown[kind] = [int(number) for number in result.stdout.split()]
    size = 200_000 * (100 + 1 + 8)
    assert abs(grown["SharedList"][1]) < 0.1 * size, grown
    # Whole processes differ by some MB from run to run.
    assert grown["SharedList"][0] - grown["nothing"][0] < 0.5 * size, grown
    assert grown["list"][0] - grown["nothing"][0] > 4 * size, grown


@linux
def test_the_segment_cannot_be_written_to() -> None:
    memory = SharedList("abc")._segment.memory
    with pytest.raises(TypeError, match="readonly"):
        memory[0] = 0
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    assert {line.split()[1] for line in lines if "crumpets-list" in line} == {"r--s"}
