"""What lies where in the shared segment: a status page, then slots.

Without numpy, since the broker starts with this while others still import it.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from typing import Any

__all__ = ["ALIGNMENT", "NO_SLOT", "RingGeometry", "Stage", "StatusPage", "align"]

ALIGNMENT = 64  # bytes: a cache line, and what vector instructions like best
NO_SLOT = -1  # a mini-batch whose arrays travel in messages
_STATUS_BYTES = 64  # per worker: one cache line, so that workers do not disturb each other


def align(size: int, unit: int = ALIGNMENT) -> int:
    """Round `size` up to a multiple of `unit` bytes."""
    return -(-size // unit) * unit


class Stage(IntEnum):
    """What the position that a worker has noted stands for."""

    SAMPLE = 0  # this sample
    SAMPLES = 1  # it and those behind it in its part of a mini-batch, all at once
    COLLATE = 2  # what was made of them, which is joined and pickled
    START_EPOCH = 3  # they wait until the epoch has begun


class StatusPage:
    """What each worker is doing, written by the worker, read by everyone.

    Per worker: the current sample's position in its epoch (-1: none), seconds spent on samples, and
    the :class:`Stage`. A write costs 30 ns.
    """

    def __init__(self, memory: Any, nworkers: int) -> None:
        view = memoryview(memory)[: nworkers * _STATUS_BYTES]
        self._integers = view.cast("q")
        self._floats = view.cast("d")
        self.nworkers = nworkers

    def clear(self) -> None:
        """No worker works on a sample."""
        for worker_id in range(self.nworkers):
            self.set_position(worker_id, -1)

    def cell(self, worker_id: int) -> memoryview:
        """The worker's position alone: ``cell[0]``."""
        word = _word(worker_id)
        return self._integers[word : word + 1]

    def position(self, worker_id: int) -> int:
        """Position of the sample that the worker is working on, -1 if none."""
        return self._integers[_word(worker_id)]

    def set_position(self, worker_id: int, position: int) -> None:
        """Note the sample that the worker is working on."""
        self._integers[_word(worker_id)] = position

    def stage(self, worker_id: int) -> Stage:
        """What the worker's position stands for."""
        return Stage(self._integers[_word(worker_id) + 2])

    def stage_cell(self, worker_id: int) -> memoryview:
        """The worker's stage alone: ``cell[0]``."""
        word = _word(worker_id) + 2
        return self._integers[word : word + 1]

    def busy_seconds(self, worker_id: int) -> float:
        """Seconds that the worker has spent on samples."""
        return self._floats[_word(worker_id) + 1]

    def add_work(self, worker_id: int, seconds: float) -> None:
        """Count finished work."""
        self._floats[_word(worker_id) + 1] += seconds

    def release(self) -> None:
        """Let go of the memory, so that its mapping can be closed."""
        self._integers.release()
        self._floats.release()


def _word(worker_id: int) -> int:
    """Number of the first 8-byte word of a worker."""
    return worker_id * _STATUS_BYTES // 8


class RingGeometry:
    """Sizes that all processes agree on; travels to the workers.

    Attributes
    ----------
    header : int
        Bytes of the status page in front of the slots.
    stride : int
        Bytes from one slot to the next, 0 if there are no slots.
    slots : int
        Most slots that may exist.
    nworkers : int
        Workers that have a line in the status page.
    """

    def __init__(self, nworkers: int, stride: int, slots: int) -> None:
        self.nworkers = nworkers
        self.stride = stride
        self.slots = slots
        self.header = align(max(1, nworkers) * _STATUS_BYTES, mmap.PAGESIZE)

    @property
    def size(self) -> int:
        """Bytes of the whole (sparse) segment."""
        return self.header + self.stride * self.slots

    def offset(self, slot: int) -> int:
        """First byte of a slot."""
        return self.header + slot * self.stride
