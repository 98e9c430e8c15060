"""Datasets whose item 17 does something terrible, for both loaders of the fault table."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker import BufferWorker

CULPRIT = 17
BATCH_SIZE = 8
WORKERS = 4


class TwoArgumentsError(Exception):
    """Cannot be made from its `args`, so pickle cannot bring it back."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


def sleep_for_ever() -> None:
    """Hang."""
    while True:
        time.sleep(1)


def raise_two_arguments() -> None:
    """Raise what cannot be pickled; its text does not tell the index."""
    raise TwoArgumentsError("broken", "the end")


FAULTS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
    "sys.exit()": lambda: sys.exit(),
    "abort": os.abort,
    "hang": sleep_for_ever,
    "raises an unpicklable exception": raise_two_arguments,
}


class Items:
    """Arrays of equal numbers.

    Parameters
    ----------
    length : int
        Number of items.
    folder : str
        Where the moment of the first fault is noted, in a file named ``fault``.
    fault : str, optional
        One of `FAULTS`, which befalls item 17.
    once : bool
        Only the first time.
    floats : int
        Size of an item.
    seconds : float
        That an item takes.
    """

    def __init__(
        self,
        length: int,
        folder: str,
        fault: str | None = None,
        once: bool = False,
        floats: int = 1,
        seconds: float = 0.0,
    ) -> None:
        self.length = length
        self.note = Path(folder) / "fault"
        self.fault = fault
        self.once = once
        self.floats = floats
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        time.sleep(self.seconds)  # stands for the work of a sample
        if index == CULPRIT and self.fault is not None:
            first = not self.note.exists()
            if first:
                note_fault(self.note)
            if first or not self.once:
                FAULTS[self.fault]()
        return np.full(self.floats, index, np.float32)


def note_fault(path: Path) -> None:
    """Write down that the fault happens now."""
    path.write_text(repr(time.monotonic()), encoding="ascii")


class Copy(BufferWorker):
    """Copies an item into its row."""

    def __init__(self, floats: int) -> None:
        super().__init__()
        self.add_buffer("x", ((floats,), np.float32))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][...] = sample
