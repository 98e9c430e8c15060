"""What a soak run loads: numbers whose results tell their index, epoch and position."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker import BufferWorker, Worker

FACTOR = 1000
"""``x`` of sample i holds FACTOR * i + 0, 1, 2, ..."""

FILL = -5


@dataclass(frozen=True)
class Troubles:
    """What goes wrong with samples.

    Attributes
    ----------
    bad : frozenset of int
        Indices that raise ValueError.
    slow : frozenset of int
        Indices that take `seconds`.
    seconds : float
    """

    bad: frozenset[int] = frozenset()
    slow: frozenset[int] = frozenset()
    seconds: float = 0.0

    def meet(self, index: int) -> None:
        """Sleep, or raise, as `index` does."""
        if index in self.slow:
            time.sleep(self.seconds)  # a slow sample
        if index in self.bad:
            raise ValueError(f"bad {index}")


class Numbers:
    """``range(samples)``; odd ones among the bad raise here, even ones in the worker."""

    def __init__(self, samples: int, troubles: Troubles) -> None:
        self.samples = samples
        self.bad = frozenset(index for index in troubles.bad if index % 2)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"bad {index}")
        return int(index)


class ManyNumbers(Numbers):
    """The same, read in chunks."""

    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        return [self[index] for index in indices]


class Stream:
    """The same as an iterable without a length."""

    def __init__(self, samples: int, troubles: Troubles) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))


def array(samples: int, troubles: Troubles) -> NDArray[np.int64]:
    """The same as an array."""
    return np.arange(samples)


class Rows(BufferWorker):
    """Writes small rows, one after the other."""

    size = 3
    fill: int | None = None

    def __init__(self, troubles: Troubles) -> None:
        super().__init__()
        self.troubles = troubles
        self.add_buffer("x", ((self.size,), np.int64, self.fill))
        self.add_buffer("draw", ((), np.float64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        batch["name"].append(str(sample))
        batch["epoch"].append(self.epoch)
        buffers["draw"][...] = self.rng.random()
        buffers["x"][: self.written] = row(int(sample), self.written)
        self.troubles.meet(int(sample))

    @property
    def written(self) -> int:
        """Length of what is written in each row; the rest keeps the fill value."""
        return self.size


class LargeRows(Rows):
    """Rows of several pages."""

    size = 2000


class FilledRows(Rows):
    """Rows whose second half keeps the fill value."""

    size = 40
    fill = FILL

    @property
    def written(self) -> int:
        return self.size // 2


class BulkRows(Rows):
    """Writes a chunk of rows at once."""

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        batch["name"] += [str(sample) for sample in samples]
        batch["epoch"] += [self.epoch] * len(samples)
        buffers["draw"][...] = [rng.random() for rng in self.rngs]
        buffers["x"][...] = [row(int(sample), self.size) for sample in samples]
        for sample in samples:
            self.troubles.meet(int(sample))


class FreeForm(Worker):
    """Returns a dict for each sample."""

    def __init__(self, troubles: Troubles) -> None:
        super().__init__()
        self.troubles = troubles

    def process(self, sample: Any) -> dict[str, Any]:
        self.troubles.meet(int(sample))
        return {
            "x": row(int(sample), Rows.size),
            "draw": np.float64(self.rng.random()),
            "name": str(sample),
            "epoch": self.epoch,
        }


class Collated(FreeForm):
    """Joins the dicts by itself, so one worker makes the whole mini-batch."""

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "x": np.stack([result["x"] for result in results]),
            "draw": np.array([result["draw"] for result in results]),
            "name": [result["name"] for result in results],
            "epoch": [result["epoch"] for result in results],
        }


WORKERS: dict[str, type[Rows] | type[FreeForm]] = {
    "rows": Rows,
    "large": LargeRows,
    "filled": FilledRows,
    "bulk": BulkRows,
    "free": FreeForm,
    "collate": Collated,
}
SOURCES: dict[str, Any] = {
    "list": Numbers,
    "bulk": ManyNumbers,
    "array": array,
    "stream": Stream,
}


def row(index: int, size: int) -> NDArray[np.int64]:
    """Return ``x`` of a sample, shape (size,)."""
    return np.arange(index * FACTOR, index * FACTOR + size)


def expected_rows(kind: str, indices: Sequence[int]) -> NDArray[np.int64]:
    """Return ``x`` of a mini-batch, shape (n, size)."""
    worker = WORKERS[kind]
    size = getattr(worker, "size", Rows.size)
    rows = np.array(indices)[:, None] * FACTOR + np.arange(size)
    if kind == "filled":
        rows[:, size // 2 :] = FILL
    return rows
