"""A runner in the test's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crumpets_like.broker.encoding import decode
from crumpets_like.broker.protocol import Kind, Part
from crumpets_like.broker.runner import Runner
from crumpets_like.broker.segment import NO_SLOT, RingGeometry, StatusPage
from crumpets_like.broker.worker import Worker

__all__ = ["ROWS", "Bench"]

ROWS, _STRIDE = 8, 1 << 15


class Bench:
    """A runner with two slots of `ROWS` rows, and its line in the status page."""

    def __init__(
        self, worker: Worker, dataset: Any = None, *, seed: int = 7, **options: Any
    ) -> None:
        self.geometry = RingGeometry(nworkers=2, stride=_STRIDE, slots=2)
        self.memory = bytearray(self.geometry.size)
        self.page = StatusPage(self.memory, 2)
        self.runner = Runner(
            worker,
            range(100) if dataset is None else dataset,
            self.memory,
            self.geometry,
            ROWS,
            **{"worker_id": 1, "seed": seed, "seed_globals": False, **options},
        )

    def fill(
        self,
        keys: Sequence[Any],
        *,
        slot: int = 1,
        start: int = 0,
        position: int = 0,
        epoch: int = 0,
        kind: Kind = Kind.INDICES,
    ) -> dict[str, list[Any]]:
        """Raise, or return the lists and the arrays of the rows that were filled."""
        part = Part(slot, ROWS, start, len(keys), position)
        if kind is Kind.INDICES:
            keys = np.array(keys)  # type: ignore[assignment]
        frames = [bytes(frame) for frame in self.runner.fill_part(part, epoch, kind, keys)]
        base = None
        if slot != NO_SLOT:
            base = np.ndarray((_STRIDE,), np.uint8, self.memory, self.geometry.offset(slot))
        found = decode(frames, base)
        layout = self.runner._layout
        if layout is not None and base is not None:
            arrays = layout.views(base, ROWS)
            found |= {name: array[start : start + len(keys)] for name, array in arrays.items()}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}
