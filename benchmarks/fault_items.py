"""Datasets whose item 17 does something terrible, for both loaders of the fault table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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


class KeywordError(Exception):
    """Takes a keyword only."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class FussyError(Exception):
    """Raises another error where it is made anew."""

    def __init__(self, *arguments: object) -> None:
        if len(arguments) != 2:
            raise KeyError("in the constructor")
        super().__init__("two arguments")


class LockedError(Exception):
    """Holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def sleep_for_ever() -> None:
    """Hang: in a call that signals interrupt, as in a read from a dead file server."""
    while True:
        time.sleep(1)


def raise_error(make: Callable[[], BaseException]) -> Callable[[], object]:
    """A function that raises what `make` returns; its name is in the traceback."""

    def raise_it() -> None:
        raise make()

    return raise_it


FAULTS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "os._exit(0)": lambda: os._exit(0),
    "os._exit(3)": lambda: os._exit(3),
    "sys.exit()": lambda: sys.exit(),
    "abort": os.abort,
    "hang": sleep_for_ever,
}

_MAKERS: tuple[Callable[[], BaseException], ...] = (
    lambda: TwoArgumentsError("broken", "the end"),
    lambda: KeywordError(code=3),
    lambda: FussyError(1, 2),
    lambda: LockedError("mine"),
    lambda: subprocess.CalledProcessError(3, "a command"),
    lambda: KeyError("k"),
    lambda: ExceptionGroup("several", [ValueError("1")]),
    lambda: IndexError("out"),
    lambda: StopIteration("stop"),
    lambda: GeneratorExit("over"),
    lambda: KeyboardInterrupt("pressed"),
)
ERRORS: dict[str, tuple[Callable[[], object], str]] = {
    f"raises {type(made()).__name__}": (raise_error(made), type(made()).__name__)
    for made in _MAKERS
}
"""By name: what raises it, and the name of its class. No text tells the index."""

FAULTS |= {name: raises for name, (raises, _) in ERRORS.items()}


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
    texts : sequence of str, optional
        Of which an item reads its own.
    """

    def __init__(
        self,
        length: int,
        folder: str,
        fault: str | None = None,
        once: bool = False,
        floats: int = 1,
        seconds: float = 0.0,
        texts: Sequence[str] | None = None,
    ) -> None:
        self.length = length
        self.note = Path(folder) / "fault"
        self.fault = fault
        self.once = once
        self.floats = floats
        self.seconds = seconds
        self.texts = texts

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        if self.seconds:
            time.sleep(self.seconds)  # stands for the work of a sample
        if self.texts is not None and int(self.texts[index]) != index:
            raise AssertionError(f"text {index} is {self.texts[index]}")
        if index == CULPRIT and self.fault is not None:
            first = not self.note.exists()
            if first:
                note_fault(self.note)
            if first or not self.once:
                FAULTS[self.fault]()
        return np.full(self.floats, index, np.float32)


class Locked(Items):
    """Holds a lock."""

    def __init__(self, length: int, folder: str) -> None:
        super().__init__(length, folder)
        self.lock = threading.Lock()


class NoState:
    """Cannot be pickled."""

    def __getstate__(self) -> Any:
        raise TypeError("it has no state")


class Objects(Items):
    """Dicts; item 17 holds what cannot be pickled."""

    def __getitem__(self, index: int) -> Any:
        if index == CULPRIT:
            note_fault(self.note)
        return {"x": index, "extra": NoState() if index == CULPRIT else None}


def note_fault(path: Path) -> None:
    """Write down that the first fault happens now; the caller may read it at a second one."""
    with suppress(FileExistsError), path.open("x", encoding="ascii") as file:
        file.write(repr(time.monotonic()))


class Copy(BufferWorker):
    """Copies an item into its row."""

    def __init__(self, floats: int) -> None:
        super().__init__()
        self.add_buffer("x", ((floats,), np.float32))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][...] = sample
