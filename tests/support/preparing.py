"""Call a worker's `prepare` on one sample, without a loader."""

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker import BufferWorker
from crumpets_like.broker.buffers import BufferSpec, IntegerRows
from crumpets_like.broker.current import Current
from crumpets_like.seeding import SampleRNG


def make_rows(specs: dict[str, BufferSpec]) -> dict[str, NDArray[Any]]:
    """Rows as a worker gets them, full of rubbish where they are not reset."""
    rows = {}
    for key, spec in specs.items():
        row = np.full((1, *spec.shape), 77, spec.dtype)
        spec.fill(row)
        rows[key] = row.view(IntegerRows)[0, ...] if spec.dtype.kind in "iu" else row[0, ...]
    return rows


def prepare(
    worker: BufferWorker, sample: Any, position: int = 0
) -> tuple[dict[str, NDArray[Any]], dict[str, list[Any]], Any]:
    """Return the rows, the lists, and what `prepare` returned, for the sample at `position`."""
    rows = make_rows(worker.buffer_specs)
    batch: dict[str, list[Any]] = defaultdict(list)
    current = worker._crumpets_current = Current(cell=[position])
    current.cell[0], current.source, current.one = position, SampleRNG(0), True
    try:
        result = worker.prepare(sample, batch, rows)
    finally:
        current.one = False
    return rows, batch, result
