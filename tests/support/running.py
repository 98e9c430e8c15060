"""Workers and datasets for the tests of the runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import BufferWorker, Worker

__all__ = ["Bulk", "BulkReading", "Fields", "Free", "Reading", "expected"]


class Fields(BufferWorker):
    """Two fields and a list."""

    def __init__(self, big: bool = False) -> None:
        super().__init__()
        self.add_buffer("x", ((), np.int32))
        self.add_buffer("pair", ((2,), np.float32, (-1, -2)))
        if big:
            self.add_buffer("big", ((300,), np.float64))  # too large for scratch rows

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][...] = sample
        buffers["pair"][0] = sample / 2
        batch["name"].append(f"sample {sample}")


class Bulk(Fields):
    """The same at once."""

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][...] = samples
        buffers["pair"][:, 0] = np.asarray(samples) / 2
        batch["name"] += [f"sample {sample}" for sample in samples]


class Free(Worker):
    """The same without buffers."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"x": sample, "name": f"sample {sample}"}


def expected(keys: Sequence[int]) -> dict[str, Sequence[Any]]:
    """What all of them make of some samples."""
    return {
        "x": keys,
        "pair": [[key / 2, -2] for key in keys],
        "name": [f"sample {key}" for key in keys],
    }


class Reading:
    """A dataset that notes how it is read."""

    def __init__(self, length: int = 100) -> None:
        self.length = length
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        return index


class BulkReading(Reading):
    """One that is read at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        assert all(type(index) is int for index in indices)
        self.calls.append(indices)
        return indices
