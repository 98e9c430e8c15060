"""Values arrive as they were returned, however a mini-batch was cut; wrong ones are refused."""

from __future__ import annotations

import datetime
import time
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like import BufferWorker, TurboDataLoader, Worker

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


class Wrong(BufferWorker):
    """Does something wrong with sample 5."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.add_buffer("x", ((3, 8, 8), np.float32))
        self.add_buffer("small", ((), np.uint8))
        self.add_buffer("label", ((), np.int64))
        self.mistake = mistake

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        values: dict[str, tuple[str, Any]] = {
            "shape": ("x", np.zeros((3, 8, 9))),
            "NaN array": ("label", np.array(np.nan)),
            "NaN": ("small", float("nan")),
            "int": ("small", 300),
            "numpy int": ("small", np.int64(300)),
            "int array": ("small", np.array(-1)),
            "huge int": ("label", 2**70),
            "huge float": ("label", np.array(1e300)),
            "unknown": ("zz", 0),
        }
        if sample == 5:
            if self.mistake in values:
                key, value = values[self.mistake]
                buffers[key][...] = value
            elif self.mistake == "exchanged":
                buffers["label"] = sample
            elif self.mistake == "twice":
                batch["name"].append("again")
            elif self.mistake == "missing":
                return
        batch["name"].append(str(sample))


MISTAKES = {
    "shape": (ValueError, r"\(3,8,9\) into shape \(3,8,8\)"),
    "NaN array": (Exception, "NaN|invalid value|nan"),
    "NaN": (ValueError, "nan|NaN"),
    "int": (OverflowError, "300 out of bounds for uint8"),
    "numpy int": (OverflowError, "from 300 to 300 .* do not fit uint8"),
    "int array": (OverflowError, "from -1 to -1 .* do not fit uint8"),
    "huge int": (OverflowError, "too large"),
    "huge float": (Exception, "1e|invalid value"),
    "unknown": (KeyError, "no buffer 'zz', the buffers are: 'x', 'small', 'label'"),
    "exchanged": (TypeError, r"buffers\['label'\]\[\.\.\.\] = value"),
    "twice": (ValueError, r"batch\['name'\] got 2 values"),
    "missing": (ValueError, r"batch\['name'\] has no value"),
}


@pytest.mark.parametrize("nworkers", [0, 2])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_values_are_refused(mistake: str, nworkers: int) -> None:
    kind, text = MISTAKES[mistake]
    method = "fork" if nworkers else None
    with (
        TurboDataLoader(range(20), 4, Wrong(mistake), nworkers, start_method=method) as loader,
        pytest.raises(kind, match=text) as caught,
    ):
        for _ in loader:
            pass
    notes = "".join(getattr(caught.value, "__notes__", [])) + str(caught.value.__cause__)
    assert "sample with index 5" in notes
    assert "x=BufferSpec((3, 8, 8), float32)" in notes
    assert "small=BufferSpec((), uint8)" in notes


class Filled(BufferWorker):
    """Writes a part of its padded fields."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("scalar", ((8,), np.int64, -1))
        self.add_buffer("channels", ((3, 2, 2), np.float32, (1, 2, 3)))
        self.add_buffer("template", np.arange(4, dtype=np.int16))
        self.add_buffer("big", ((4096,), np.int64, 7))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        count = sample % 8
        buffers["scalar"][:count] = 100
        buffers["big"][:count] = 100
        buffers["template"][:1] = 50
        if sample % 2:
            buffers["channels"][...] = 9


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("nworkers", [0, 2])
def test_padded_fields_hold_their_fill_values(nworkers: int, shared_memory: bool) -> None:
    with TurboDataLoader(
        range(203), 8, Filled(), nworkers, shared_memory=shared_memory, start_method="fork"
    ) as loader:
        seen = 0
        for _ in range(2):
            for number, (_, (mini_batch,)) in enumerate(loader):
                rows = len(mini_batch["scalar"])
                assert rows == (8 if number < 25 else 3)
                for row in range(rows):
                    i = 8 * number + row
                    scalar = [100] * (i % 8) + [-1] * (8 - i % 8)
                    assert mini_batch["scalar"][row].tolist() == scalar
                    assert mini_batch["big"][row, :8].tolist() == [
                        v if v > 0 else 7 for v in scalar
                    ]
                    assert mini_batch["template"][row].tolist() == [50, 1, 2, 3]
                    channels = mini_batch["channels"][row][:, 0, 0].tolist()
                    assert channels == ([9, 9, 9] if i % 2 else [1, 2, 3])
                    seen += 1
    assert seen == 406
