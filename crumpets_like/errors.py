"""Exceptions of the loader.

Every error that does not come from user code is a :class:`LoaderError`; each
carries its facts as attributes and says what happened, the numbers, the likely
cause and the knob to turn.
"""

from __future__ import annotations

import signal
from typing import Any

__all__ = [
    "BufferExhausted",
    "LoaderClosed",
    "LoaderError",
    "LoaderTimeout",
    "WorkerDied",
    "WorkerError",
]


class LoaderError(RuntimeError):
    """Base class of the loader's own errors."""


class LoaderClosed(LoaderError):
    """The loader, or the iterator, was used while it was not open."""


class BufferExhausted(LoaderError, MemoryError):
    """The caller holds every buffer that the loader may use.

    Attributes
    ----------
    held : int
        Mini-batches the caller still holds (through any view of their arrays).
    limit : int
        Most buffers that may exist (`max_buffers`).
    """

    def __init__(self, held: int, limit: int) -> None:
        super().__init__(
            f"All {limit} buffers are in use: the caller still holds {held} mini-batches (an "
            "array, a slice or a tensor of a mini-batch keeps its buffer). Drop some of them, copy "
            "what has to be kept, or raise max_buffers."
        )
        self.held = held
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.held, self.limit), self.__dict__


class LoaderTimeout(LoaderError, TimeoutError):
    """No mini-batch arrived in time.

    Attributes
    ----------
    seconds : float
        The limit that was exceeded, in seconds.
    """

    def __init__(self, seconds: float, detail: str = "") -> None:
        super().__init__(
            f"No mini-batch arrived within {seconds:g} seconds.{detail} Likely causes: a sample "
            "that hangs or is very slow, or too few workers. Raise timeout= (None: no limit) if "
            "samples may take that long."
        )
        self.seconds = seconds
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.detail), self.__dict__


class WorkerError(LoaderError):
    """An exception in a worker that cannot be raised again with its own type.

    Attributes
    ----------
    class_name : str
        Qualified name of the original exception's class.
    text : str
        Its text.
    worker_traceback : str
        The worker's traceback.
    """

    def __init__(self, class_name: str, text: str, worker_traceback: str = "") -> None:
        super().__init__(f"{class_name}: {text}\n\n{worker_traceback}".rstrip())
        self.class_name = class_name
        self.text = text
        self.worker_traceback = worker_traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.class_name, self.text, self.worker_traceback), self.__dict__


class WorkerDied(LoaderError):
    """A worker process ended by itself or was killed.

    Attributes
    ----------
    worker_id : int
        Number of the worker, 0-based.
    pid : int
        Its process id.
    exit_code : int
        Exit code; negative for a signal, as in :mod:`subprocess`.
    signal_name : str or None
        Name of the signal that ended it, such as ``"SIGKILL"``.
    index : int or None
        Index of the sample it was working on, if it was working.
    """

    def __init__(
        self, worker_id: int, pid: int, exit_code: int, index: int | None, why: str
    ) -> None:
        self.worker_id = worker_id
        self.pid = pid
        self.exit_code = exit_code
        self.signal_name = signal_name(exit_code)
        self.index = index
        self.why = why
        ended = (
            f"was ended by {self.signal_name}"
            if self.signal_name
            else f"ended with exit code {exit_code}"
        )
        where = f" while it worked on the sample with index {index}" if index is not None else ""
        cause = (
            " Likely cause: out of memory (see the kernel log), or a kill from outside."
            if self.signal_name == "SIGKILL"
            else ""
        )
        super().__init__(f"Worker {worker_id} (pid {pid}) {ended}{where}. {why}{cause}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.worker_id, self.pid, self.exit_code, self.index, self.why)
        return type(self), arguments, self.__dict__


def signal_name(exit_code: int) -> str | None:
    """Name of the signal behind a negative exit code, None for others."""
    if exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class WorkerTraceback(Exception):
    """Carries a worker's traceback as text; it is the `__cause__` of what is raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}\n"""'
