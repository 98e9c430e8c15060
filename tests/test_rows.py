"""Rows that workers fill: wrong values are refused, fields are padded, lists stay aligned."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like import BufferWorker, TurboDataLoader


class Wrong(BufferWorker):
    """Does something wrong with sample 5."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.add_buffer("x", ((3, 8, 8), np.float32))
        self.add_buffer("small", ((), np.uint8))
        self.add_buffer("label", ((), np.int64))
        self.add_buffer("few", ((2,), np.int16))
        self.mistake = mistake

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        values: dict[str, tuple[str, Any]] = {
            "shape": ("x", np.zeros((3, 8, 9))),
            "NaN array": ("label", np.array(np.nan)),
            "NaNs": ("few", np.array([1.0, np.nan])),
            "NaN": ("small", float("nan")),
            "int": ("small", 300),
            "numpy int": ("small", np.int64(300)),
            "int array": ("small", np.array(-1)),
            "uint64": ("label", np.uint64(2**63)),
            "huge int": ("label", 2**70),
            "huge float": ("label", np.array(1e300)),
            "unknown": ("zz", 0),
        }
        if sample == 5:
            if self.mistake in values:
                key, value = values[self.mistake]
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")  # as many users do
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
    "NaN array": (ValueError, r"nan \(float64\) do not fit int64"),
    "NaNs": (ValueError, r"nan \(float64\) do not fit int16"),
    "NaN": (ValueError, r"nan \(float64\) do not fit uint8"),
    "int": (OverflowError, "300 out of bounds for uint8"),
    "numpy int": (OverflowError, r"from 300 to 300 \(int64\) do not fit uint8"),
    "int array": (OverflowError, r"from -1 to -1 \(int64\) do not fit uint8"),
    "uint64": (OverflowError, r"9223372036854775808 \(uint64\) do not fit int64"),
    "huge int": (OverflowError, "too large"),
    "huge float": (ValueError, r"1e\+300 \(float64\) do not fit int64"),
    "unknown": (KeyError, "no buffer 'zz', the buffers are: 'x', 'small', 'label', 'few'"),
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


class Listed(BufferWorker):
    """Appends to lists; `times` holds how often for some samples, where not once."""

    def __init__(self, times: dict[int, int] | None = None) -> None:
        super().__init__()
        self.add_buffer("item", ((), np.int64))
        self.times = times or {}

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["item"][...] = sample
        batch["text"].append(f"sample {sample}")
        for _ in range(self.times.get(sample, 1)):
            batch["shape"].append(np.zeros(sample))
        if sample == self.times.get(-1):
            raise KeyError(sample)


class ListedInBulk(Listed):
    """The same, a chunk at a time."""

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        super().prepare_batch(samples, batch, buffers)


WORKERS: dict[str, type[Listed]] = {"each": Listed, "bulk": ListedInBulk}


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("nworkers", [0, 1, 3, 8])
def test_lists_are_joined_in_sample_order(nworkers: int, kind: str, shared_memory: bool) -> None:
    with TurboDataLoader(
        range(20), 8, WORKERS[kind](), nworkers, shared_memory=shared_memory, start_method="fork"
    ) as loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            indices = list(range(8 * number, min(8 * number + 8, 20)))
            assert mini_batch["item"].tolist() == indices
            assert mini_batch["text"] == [f"sample {index}" for index in indices]
            assert [array.shape for array in mini_batch["shape"]] == [(i,) for i in indices]


# How often samples append, and which ones the error may name.
LISTS: dict[str, tuple[dict[int, int], Iterable[int]]] = {
    "missing": ({2: 0}, [2]),
    "missing first": ({0: 0}, [0]),
    "all but the last": (dict.fromkeys(range(7), 0), range(7)),
    "twice": ({5: 2}, [5]),
    "twice first": ({0: 2}, [0]),
    "missing, then twice": ({0: 0, 1: 2}, (0, 1)),
    "twice, then missing": ({6: 2, 7: 0}, (6, 7)),
}


@pytest.mark.parametrize("nworkers", [0, 1, 4, 8])
@pytest.mark.parametrize("what", LISTS)
def test_every_list_needs_one_value_of_each_sample(what: str, nworkers: int) -> None:
    times, culprits = LISTS[what]
    with (
        TurboDataLoader(range(8), 8, Listed(times), nworkers, start_method="fork") as loader,
        pytest.raises(ValueError, match=r"batch\['shape'\] (has no|got 2) value") as caught,
    ):
        next(iter(loader))
    text = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert any(f"sample with index {index}" in text for index in culprits), text


def test_appends_of_a_failed_sample_are_undone() -> None:
    with TurboDataLoader(range(8), 4, Listed({-1: 6}), 1, start_method="fork") as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert next(iterator)[1][0]["text"] == [f"sample {index}" for index in range(4)]
            with pytest.raises(KeyError, match="6"):
                next(iterator)


def test_a_list_must_not_have_the_name_of_a_buffer() -> None:
    with (
        TurboDataLoader(range(4), 4, Clash(), 0) as loader,
        pytest.raises(ValueError, match=r"batch\['item'\] was appended to, but 'item' is a buffer"),
    ):
        next(iter(loader))


class Clash(BufferWorker):
    """Uses one name for two things."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("item", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        batch["item"].append(sample)
