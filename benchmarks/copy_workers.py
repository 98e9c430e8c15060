"""Workers of the benchmark cases: each copies a sample ``(x, y)`` into its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from crumpets_like.broker import BufferWorker


class CopyWorker(BufferWorker):
    """One sample at a time.

    Parameters
    ----------
    shape : tuple of int
        Shape of ``x``.
    dtype : dtype
        Data type of ``x``.
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        super().__init__()
        self.add_buffer("x", (shape, dtype))
        self.add_buffer("y", ((), np.int64))

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        buffers["x"][...] = sample[0]
        buffers["y"][...] = sample[1]


class BulkCopyWorker(CopyWorker):
    """A whole chunk of a structured array at once."""

    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        buffers["x"][...] = samples["x"]
        buffers["y"][...] = samples["y"]


class DrawingWorker(CopyWorker):
    """Scales each sample by one draw from the worker's seeded generator."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        np.multiply(sample[0], 0.9 + 0.2 * self.rng.random(), out=buffers["x"])
        buffers["y"][...] = sample[1]
