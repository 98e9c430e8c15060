"""Mini-batches of one pass on their way from the receiving thread to the caller."""

from __future__ import annotations

import queue
import threading
from typing import Any

from .assembly import RawBatch

__all__ = ["CLOSED", "EMPTY", "END", "NUDGE", "Stream"]


class _Signal:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


END = _Signal("END")  # no more mini-batches in this pass
EMPTY = _Signal("EMPTY")  # a mini-batch of which all samples were skipped
CLOSED = _Signal("CLOSED")  # nobody receives any more
NUDGE = _Signal("NUDGE")  # look again: something changed


class Stream:
    """Mini-batches of one pass, put in order.

    Parameters
    ----------
    in_order : bool
        Deliver by number; False: as they are finished.
    """

    def __init__(self, in_order: bool = True) -> None:
        self._in_order = in_order
        self._lock = threading.Lock()
        self._early: dict[int, RawBatch] = {}
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._next = 0  # number of the next mini-batch to deliver
        self._total: int | None = None
        self._error: BaseException | None = None
        self.received = 0

    @property
    def awaited(self) -> int:
        """Number of the mini-batch that is delivered next; -1: any."""
        return self._next if self._in_order else -1

    def add(self, number: int, batch: RawBatch) -> None:
        """A mini-batch is finished."""
        with self._lock:
            self.received += 1
            if self._in_order:
                self._early[number] = batch
                while (batch_in_turn := self._early.pop(self._next, None)) is not None:
                    self._ready.put(batch_in_turn)
                    self._next += 1
            else:
                self._ready.put(batch)
                self._next += 1
            self._end_if_complete()

    def end(self, total: int, error: BaseException | None = None) -> None:
        """There are `total` mini-batches; then `error` is raised, or the pass ends."""
        with self._lock:
            self._total, self._error = total, error
            self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._next == self._total:
            self._ready.put(END if self._error is None else self._error)

    def put(self, mark: Any) -> None:
        """Put a mark or an exception behind what is ready."""
        self._ready.put(mark)

    def get(self, timeout: float | None) -> Any:
        """Next mini-batch, mark or exception; raises queue.Empty after `timeout` seconds."""
        return self._ready.get(timeout=timeout)

    def get_ready(self) -> RawBatch | None:
        """Next mini-batch if it is there; marks and exceptions are left for :meth:`get`."""
        while True:
            try:
                item = self._ready.get_nowait()
            except queue.Empty:
                return None
            if isinstance(item, RawBatch):
                return item
            if item is not NUDGE:  # of no use for who does not wait
                self._ready.put(item)
                return None

    def drain(self) -> list[RawBatch]:
        """Take out everything that was not delivered."""
        with self._lock:
            left = list(self._early.values())
            self._early.clear()
        while True:
            try:
                item = self._ready.get_nowait()
            except queue.Empty:
                return left
            if isinstance(item, RawBatch):
                left.append(item)
