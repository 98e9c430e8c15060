"""A runner in the test's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crumpets_like.broker.encoding import decode
from crumpets_like.broker.failures import rebuild_exception, unpack_errors
from crumpets_like.broker.protocol import Kind, Part
from crumpets_like.broker.runner import Runner
from crumpets_like.broker.segment import NO_SLOT, RingGeometry, StatusPage
from crumpets_like.broker.worker import Worker

__all__ = ["ROWS", "Bench"]

ROWS, _STRIDE = 8, 1 << 16


class Bench:
    """A runner with two slots of `ROWS` rows, and its line in the status page."""

    def __init__(
        self, worker: Worker, dataset: Any = None, *, seed: int = 7, **options: Any
    ) -> None:
        self.skipped: dict[int, BaseException] = {}
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
        lost: bytes = b"",
    ) -> dict[str, list[Any]]:
        """Raise, or return the lists and the arrays of the rows that hold samples.

        The errors of those that do not are in `skipped` then.
        """
        part = Part(slot, ROWS, start, len(keys), position)
        if kind is Kind.INDICES:
            keys = np.array(keys)  # type: ignore[assignment]
        made, skipped = self.runner.fill_part(part, epoch, kind, keys, lost)
        frames = [bytes(frame) for frame in made]
        errors = unpack_errors(frames.pop()) if skipped else []
        self.skipped = {row: rebuild_exception(error) for row, error in errors}
        assert len(self.skipped) == skipped
        base = None
        if slot != NO_SLOT:
            base = np.ndarray((_STRIDE,), np.uint8, self.memory, self.geometry.offset(slot))
        found = decode(frames, base)
        layout = self.runner._layout
        if layout is not None and base is not None:
            arrays = layout.views(base, ROWS)
            left = [start + row for row in range(len(keys)) if row not in self.skipped]
            found |= {name: array[left] for name, array in arrays.items()}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in found.items()}
