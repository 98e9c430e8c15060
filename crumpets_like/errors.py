"""Exceptions of the loader.

Every error that does not come from user code is a :class:`LoaderError`; each
carries its facts as attributes and says what happened, the numbers, the likely
cause and the knob to turn.
"""

from __future__ import annotations

import signal
import textwrap
from dataclasses import dataclass
from typing import Any

__all__ = [
    "BufferExhausted",
    "LoaderClosed",
    "LoaderError",
    "LoaderTimeout",
    "Whereabouts",
    "WorkerDied",
    "WorkerError",
]


MOST_SHOWN = 8  # indices in a text
_MOST_TEXT = 100  # characters of a key


@dataclass(frozen=True)
class Whereabouts:
    """A worker and what it was working on; None, or empty, where there was nothing.

    Attributes
    ----------
    worker_id, pid : int
        The worker and its process.
    index : int or None
        Index of the sample in the dataset; of one that came from an iterable, its number in the
        epoch.
    epoch, batch : int or None
        The epoch, and the number of the mini-batch in it.
    indices : tuple of int
        Indices of several samples that were read or prepared at once, of which any may be meant.
    keys : tuple
        The same where samples have other keys: of the sample, or of several.
    during : str
        What it did where that was none of its samples, such as ``"start_epoch"``.
    """

    worker_id: int
    pid: int
    index: int | None = None
    epoch: int | None = None
    batch: int | None = None
    indices: tuple[int, ...] = ()
    keys: tuple[Any, ...] = ()
    during: str = ""

    @property
    def task(self) -> str:
        """What it was working on, in words."""
        if self.index is not None:
            what = f"the sample with index {self.index}"
        elif len(self.keys) == 1:
            what = f"the sample with key {_shown(self.keys)}"
        elif several := self.indices or self.keys:
            kind = "indices" if self.indices else "keys"
            what = f"one of {len(several)} samples at once, with the {kind} {_shown(several)}"
        else:
            what = self.during or "a sample"
        batch = "" if self.batch is None else f", mini-batch {self.batch}"
        return f"{what} (epoch {self.epoch}{batch})"


def _shown(keys: tuple[Any, ...]) -> str:
    some = ", ".join([textwrap.shorten(repr(key), _MOST_TEXT) for key in keys[:MOST_SHOWN]])
    return some + (", ..." if len(keys) > MOST_SHOWN else "")


class LoaderError(RuntimeError):
    """Base class of the loader's own errors."""


class _Located:
    """An error that has a :class:`Whereabouts`, and each of its facts as an attribute, too."""

    def _locate(self, where: Whereabouts | None) -> None:
        self.where = where
        self.worker_id = None if where is None else where.worker_id
        self.pid = None if where is None else where.pid
        self.index = None if where is None else where.index
        self.indices = () if where is None else where.indices
        self.epoch = None if where is None else where.epoch
        self.batch = None if where is None else where.batch


class LoaderClosed(LoaderError):
    """The loader, or the iterator, was used while it was not open."""


class BufferExhausted(LoaderError, MemoryError):
    """The caller holds every buffer that the loader may use.

    Attributes
    ----------
    held : int
        Mini-batches the caller still holds (through any view of their arrays).
    limit : int
        Most buffers that may exist.
    knob : str
        What raises that limit.
    """

    def __init__(self, held: int, limit: int, knob: str = "raise max_buffers") -> None:
        others = f"; {limit - held} are for the batch that comes next" if held < limit else ""
        super().__init__(
            f"All {limit} buffers are in use: the caller still holds {held} mini-batches (an "
            f"array, a slice or a tensor of a mini-batch keeps its buffer){others}. Drop some of "
            f"them, copy what has to be kept, or {knob}."
        )
        self.held = held
        self.limit = limit
        self.knob = knob

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.held, self.limit, self.knob), self.__dict__


_SLOW_SAMPLE = (
    "Likely causes: a sample that hangs or is very slow, or too few workers. Raise timeout= (None: "
    "no limit) if samples may take that long."
)


class LoaderTimeout(_Located, LoaderError, TimeoutError):
    """The caller has waited too long for a mini-batch.

    Attributes
    ----------
    seconds : float
        The limit that was exceeded, in seconds.
    where : Whereabouts or None
        The worker that does not get on, which was ended, and its sample; None if there is none.
    worker_id, pid, index, indices, epoch, batch
        The facts of `where`; None if there is none. Where samples are read or prepared at once, one
        of `indices` is to blame, and `index` is None.
    stack : str
        Where in its code the worker was; empty if that is not known.
    cause : str
        What is likely, if that is not a sample.
    """

    def __init__(
        self,
        seconds: float,
        where: Whereabouts | None = None,
        stack: str = "",
        cause: str = "",
    ) -> None:
        what = ""
        if where is not None:
            what = (
                f" Worker {where.worker_id} (pid {where.pid}) has not got on with {where.task} "
                f"since half of that time; it was replaced."
            )
        super().__init__(
            f"No mini-batch arrived within {seconds:g} seconds.{what} {cause or _SLOW_SAMPLE}"
            f"{_stack_text(stack)}"
        )
        self._locate(where)
        self.seconds = seconds
        self.stack = stack
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seconds, self.where, self.stack, self.cause), self.__dict__


class WorkerError(_Located, LoaderError):
    """An exception in a worker that cannot be raised again with its own type.

    Attributes
    ----------
    class_name : str
        Qualified name of the original exception's class.
    text : str
        Its text.
    worker_traceback : str
        The worker's traceback.
    where : Whereabouts or None
        Worker and sample, if they are known.
    worker_id, pid, index, indices, epoch, batch
        The facts of `where`; None if it is not known.
    """

    def __init__(
        self,
        class_name: str,
        text: str,
        worker_traceback: str = "",
        where: Whereabouts | None = None,
    ) -> None:
        super().__init__(f"{class_name}: {text}\n\n{worker_traceback}".rstrip())
        self.class_name = class_name
        self.text = text
        self.worker_traceback = worker_traceback
        self._locate(where)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.class_name, self.text, self.worker_traceback, self.where)
        return type(self), arguments, self.__dict__


class WorkerDied(_Located, LoaderError):
    """A worker process ended by itself or was killed.

    Attributes
    ----------
    where : Whereabouts
        All that is known of the worker and its sample; what follows is part of it.
    why : str
        Why that is an error: other workers are replaced.
    worker_id : int
        Number of the worker, 0-based.
    pid : int
        Its process id.
    exit_code : int
        Exit code; negative for a signal, as in :mod:`subprocess`.
    signal_name : str or None
        Name of the signal that ended it, such as ``"SIGKILL"``.
    index : int or None
        Index of the sample it was working on, if it was working on a known one. Samples of an
        iterable are counted in their epoch.
    indices : tuple of int
        Indices of several samples that it read or prepared at once.
    epoch, batch : int or None
        Epoch of that sample, and the number of its mini-batch in the epoch.
    stack : str
        Where in its code the worker was; empty if that is not known (after SIGKILL, for one).
    """

    def __init__(self, where: Whereabouts, exit_code: int, why: str, stack: str = "") -> None:
        self._locate(where)
        self.exit_code = exit_code
        self.signal_name = signal_name(exit_code)
        self.why = why
        self.stack = stack
        ended = (
            f"was ended by {self.signal_name}"
            if self.signal_name
            else f"ended with exit code {exit_code}"
        )
        at = f" while it worked on {where.task}" if where.epoch is not None else ""
        if self.signal_name == "SIGKILL":
            cause = "out of memory (see the kernel log), or a kill from outside"
        elif self.signal_name is not None:
            cause = "a crash in native code, such as an extension module's"
        else:
            cause = "code that ends the process, such as os._exit() or sys.exit()"
        sample = at and not where.during
        knob = ' A TurboDataLoader leaves it out with on_error="skip".' if sample else ""
        super().__init__(
            f"Worker {self.worker_id} (pid {self.pid}) {ended}{at}. {why} Likely cause: {cause}."
            f"{knob}{_stack_text(stack)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.exit_code, self.why, self.stack), self.__dict__


def _stack_text(stack: str) -> str:
    return f"\nThe worker's stack:\n{stack.rstrip()}" if stack else ""


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
