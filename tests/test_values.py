"""Free-form results arrive as they were returned, however a mini-batch was cut."""

from __future__ import annotations

import datetime
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crumpets_like import TurboDataLoader, Worker

Pair = namedtuple("Pair", "a b")


class Point:
    """An object that only pickle can carry."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    def __hash__(self) -> int:
        return self.x


def stacked(i: int) -> dict[str, Any]:
    """Values that become one array."""
    return {
        "float32": np.full((2, 3), i, np.float32),
        "bool array": np.array([i % 2 == 0, True]),
        "uint16": np.full(3, i, np.uint16),
        "big endian": np.full(4, i, ">f4"),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3) + i),
        "reversed": (np.arange(5) + i)[::-1],
        "0-d": np.array(i * 1.5),
        "empty": np.zeros((0, 4)),
        "int": i,
        "float": i * 0.5,
        "bool": i % 3 == 0,
        "mixed numbers": [1, 2.5, True][i % 3],
        "complex": 1j * i,
        "numpy scalar": np.float32(i),
        "large": np.full((100, 100), i, np.int32),
        "date64": np.datetime64("2020-01-01") + np.timedelta64(i, "D"),
        "strings": np.array(["a", "bb"]),
    }


def listed(i: int) -> dict[str, Any]:
    """Values that stay themselves, in a list."""
    return {
        "str": f"s{i}",
        "bytes": b"b%d" % i,
        "none": None,
        "set": {i, 1},
        "datetime": datetime.datetime(2020, 1, 1 + i % 20),
        "tuple": (i, "x"),
        "namedtuple": Pair(i, 2),
        "huge": 2**80 + i,
        "nested": {"a": [i, {1: (2,)}], "b": {"c": None}},
        "object": Point(i),
        "lone surrogate": "\ud800",
        "function": len,
        "number or str": [1, "a"][i % 2],
    }


class FreeForm(Worker):
    """Returns all of them; slow samples make the mini-batch come from several workers."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    def process(self, sample: Any) -> dict[str, Any]:
        if self.seconds:
            time.sleep(self.seconds)
        uneven = {
            "uneven": np.arange(sample + 1),
            "uneven large": np.full((50 + sample, 50), sample),
        }
        return {**stacked(sample), **listed(sample), **uneven}


CASES = [(0, 0.0, True), (3, 0.0, True), (3, 0.01, True), (3, 0.0, False), (3, 0.01, False)]


@pytest.mark.parametrize(("nworkers", "seconds", "shared_memory"), CASES)
def test_free_form_results(nworkers: int, seconds: float, shared_memory: bool) -> None:
    method = "thread" if nworkers and not shared_memory else None
    with TurboDataLoader(
        range(20), 8, FreeForm(seconds), nworkers, shared_memory=shared_memory, start_method=method
    ) as loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            indices = range(8 * number, min(8 * number + 8, 20))
            for key in stacked(0):
                values = [stacked(i)[key] for i in indices]
                expected = np.array(values) if "mixed" in key else np.stack(values)
                array = mini_batch[key]
                assert type(array) is np.ndarray, key
                assert array.dtype == expected.dtype, key
                assert array.shape == expected.shape, key
                assert (array == expected).all(), key
                assert array.flags.writeable, key
            for key in listed(0):
                values = [listed(i)[key] for i in indices]
                assert mini_batch[key] == values, key
                assert [type(v) for v in mini_batch[key]] == [type(v) for v in values], key
            for i, small, large in zip(
                indices, mini_batch["uneven"], mini_batch["uneven large"], strict=True
            ):
                assert small.tolist() == list(range(i + 1))
                assert large.shape == (50 + i, 50)
                assert (large == i).all()


def test_large_arrays_lie_in_the_ring() -> None:
    with TurboDataLoader(range(8), 8, FreeForm(), 1) as loader:
        _, (mini_batch,) = next(iter(loader))
        base: Any = mini_batch["large"]
        while isinstance(base, np.ndarray):
            base = base.base
        assert type(base).__name__ == "mmap"


class Padding(Worker):
    """Pads in `collate`, which needs all samples of the mini-batch."""

    def process(self, sample: Any) -> dict[str, Any]:
        time.sleep(0.005)
        return {"ids": np.arange(sample % 7)}

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(result["ids"]) for result in results)
        padded = np.full((len(results), longest), -1)
        for row, result in zip(padded, results, strict=True):
            row[: len(result["ids"])] = result["ids"]
        return {"ids": padded, "samples": len(results)}


def test_an_own_collate_gets_the_whole_mini_batch() -> None:
    with TurboDataLoader(range(32), 8, Padding(), 4) as loader:
        batches = [mini_batch for _, (mini_batch,) in loader]
    assert [batch["samples"] for batch in batches] == [8] * 4
    assert all(batch["ids"].shape == (8, 6) for batch in batches)


AWKWARD: dict[str, list[Any]] = {
    "dtypes": [np.ones(2, dtype) for dtype in ("i2", "u2", "f4", ">f4", "i2", "u2", "f4", "?")],
    "lengths": [np.ones(n, dtype) for n in (2, 3) for dtype in ("f4", "f8", "f4", ">i2")],
    "scalars or None": [*map(np.float32, range(5)), None, None, None],
    "0-d or None": [*map(np.array, range(5)), None, None, None],
    "numbers or None": [True, 2, 3.5, None, False, 5, 6, 7],
    "ints": [2**63 + 1, 1, 2, 3, -1, 5, 6, 7],
    "large ints": [1, 2, 3, 4, 5, 6, 7, 2**64],
    "numbers": [True, False, 2, 3, 4.5, 1, 1, 1j],
    "masked": [np.ma.masked_array([n, 2], [True, False]) for n in range(8)],
    "records": [np.array([(n, 2)], "i4,f8") for n in range(8)],
    "dates or numbers": [np.array(["2020"], "M8[Y]")] * 4 + [np.zeros(1)] * 4,
}


class Awkward(Worker):
    """Returns what becomes one thing or another, depending on all values of the mini-batch."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {key: values[sample] for key, values in AWKWARD.items()}


def exact(value: Any) -> Any:
    """Everything that there is to compare about a value."""
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.shape, value.tolist()
    return [exact(item) for item in value] if isinstance(value, list) else (type(value), value)


@pytest.mark.parametrize("nworkers", [1, 3, 8])
def test_results_do_not_depend_on_how_a_mini_batch_was_cut(nworkers: int) -> None:
    # The first mini-batch is cut into as many parts as there are workers.
    (expected,) = load(Awkward(), 8, 0)
    (mini_batch,) = load(Awkward(), 8, nworkers)
    for key in AWKWARD:
        assert exact(mini_batch[key]) == exact(expected[key]), key
    assert expected["dtypes"].dtype == np.float32
    assert expected["ints"] == AWKWARD["ints"]  # as an array they would lose their last digits
    assert all(row.mask.tolist() == [True, False] for row in expected["masked"])


def load(worker: Worker, samples: int, nworkers: int) -> list[dict[str, Any]]:
    """One epoch of mini-batches of 8."""
    with TurboDataLoader(range(samples), 8, worker, nworkers, start_method="fork") as loader:
        return [mini_batch for _, (mini_batch,) in loader]


class Uneven(Worker):
    """Returns one more key for some samples."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"a": 1, "b": 2} if sample >= 4 else {"a": 1}


@pytest.mark.parametrize("nworkers", [0, 2, 4])
def test_every_sample_needs_the_same_keys(nworkers: int) -> None:
    with pytest.raises(ValueError, match=r"\['a', 'b'\] for sample 4 .* \['a'\] for sample [0-3]"):
        load(Uneven(), 8, nworkers)


class Mapped(Worker):
    """Returns rows of a file that is mapped."""

    def __init__(self, path: str) -> None:
        self.path = path

    def setup(self) -> None:
        self.rows = np.memmap(self.path, np.int32, "r", shape=(8, 2000))

    def process(self, sample: Any) -> dict[str, Any]:
        return {"row": self.rows[sample], "uneven": self.rows[sample, sample:]}


@pytest.mark.parametrize("nworkers", [0, 1, 3])
def test_rows_of_a_mapped_file_become_plain_arrays(nworkers: int, tmp_path: Path) -> None:
    rows = np.arange(16_000, dtype=np.int32).reshape(8, 2000)
    rows.tofile(tmp_path / "rows")
    (mini_batch,) = load(Mapped(str(tmp_path / "rows")), 8, nworkers)
    assert type(mini_batch["row"]) is np.ndarray
    assert (mini_batch["row"] == rows).all()
    for number, row in enumerate(mini_batch["uneven"]):
        assert type(row) is np.ndarray
        assert (row == rows[number, number:]).all()


class NoDict(Worker):
    """Returns no dict."""

    def process(self, sample: Any) -> Any:
        return sample


@pytest.mark.parametrize("nworkers", [0, 2])
def test_process_must_return_a_dict(nworkers: int) -> None:
    with pytest.raises(TypeError, match="must return a dict, it returned int"):
        load(NoDict(), 8, nworkers)
