"""Datasets of the benchmark cases.

They live in a module that every worker process can import and pull in nothing but NumPy.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Sample = tuple[Any, Any]

#: Values in one sample of the cases that are not about images.
FEATURES = 32


class VectorDataset:
    """Rows of 32 float32 values, each with an int64 label.

    Parameters
    ----------
    samples : int
        Number of rows.

    Attributes
    ----------
    x : ndarray of float32, shape (samples, 32)
    y : ndarray of int64, shape (samples,)
    """

    def __init__(self, samples: int) -> None:
        rng = np.random.default_rng(samples)
        self.x: NDArray[np.float32] = rng.random((samples, FEATURES), dtype=np.float32)
        self.y: NDArray[np.int64] = np.arange(samples, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Sample:
        return self.x[index], self.y[index]


def vector_records(samples: int) -> NDArray[np.void]:
    """Return the same rows as one structured array: our loader reads a chunk in one call.

    Parameters
    ----------
    samples : int
        Number of rows.

    Returns
    -------
    structured ndarray, shape (samples,)
        Fields ``x`` and ``y`` as in `VectorDataset`.
    """
    rows = VectorDataset(samples)
    records = np.empty(samples, [("x", np.float32, FEATURES), ("y", np.int64)])
    records["x"] = rows.x
    records["y"] = rows.y
    return records


class BulkVectorDataset(VectorDataset):
    """The same rows, of which a whole chunk is read in one call, as a pair of arrays."""

    def __getitems__(self, indices: Any) -> Sample:
        return self.x[indices], self.y[indices]


class ListedVectorDataset(VectorDataset):
    """The same rows; a chunk is the list of samples that torch's default collate wants."""

    def __getitems__(self, indices: list[int]) -> list[Sample]:
        return list(zip(self.x[indices], self.y[indices], strict=True))


class DrawingVectorDataset(VectorDataset):
    """The same rows, each scaled by one draw from a single generator (never reseeded)."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Sample:
        return self.x[index] * (0.9 + 0.2 * self.rng.random()), self.y[index]


class ImageDataset:
    """Float32 images of 602 kB that are in memory already: only the copy costs.

    A few distinct images serve all indices, so that the source stays in the processor's caches.
    """

    DISTINCT = 8

    def __init__(self, samples: int) -> None:
        self.samples = samples
        rng = np.random.default_rng(0)
        self.images = rng.random((self.DISTINCT, 3, 224, 224), dtype=np.float32)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        return self.images[index % self.DISTINCT], index


class WaitingDataset:
    """Samples that cost time but no CPU, as if they came over a network.

    Parameters
    ----------
    samples : int
        Number of samples.
    seconds : float
        What a sample takes.
    slow_seconds : float, optional
        What every 16th sample takes; the same as the others if not given.
    """

    SLOW_EVERY = 16

    def __init__(self, samples: int, seconds: float, slow_seconds: float | None = None) -> None:
        self.samples = samples
        self.seconds = seconds
        self.slow_seconds = seconds if slow_seconds is None else slow_seconds
        self.x: NDArray[np.float32] = np.ones(FEATURES, np.float32)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        # Stands for work that waits, such as reading from a network.
        time.sleep(self.seconds if index % self.SLOW_EVERY else self.slow_seconds)
        return self.x, index


class EndlessDataset:
    """As many indices as one asks for, and nothing stored."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.x: NDArray[np.float32] = np.ones(FEATURES, np.float32)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        return self.x, index
