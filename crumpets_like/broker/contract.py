"""What front ends may ask of an engine, whichever it is."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from ..errors import LoaderClosed

if TYPE_CHECKING:
    from ..epochs import EpochPlan
    from ..passes import Mark

__all__ = ["AnyEngine", "AnyPass", "EngineFacts", "leave_at_exit"]


def leave_at_exit() -> NoReturn:
    """For callers of a loader that the exit of the interpreter has stopped."""
    if threading.current_thread().daemon:
        raise SystemExit  # which ends it silently, as the interpreter is about to do
    raise LoaderClosed(
        "The loader was stopped by the exit of the interpreter. An atexit handler can use it only "
        "if it is registered after the loader was started."
    )


class EngineFacts(NamedTuple):
    """State of an engine at one moment; buffers as in :class:`crumpets_like.Statistics`."""

    free: int
    filling: int
    ready: int
    held: int
    busy_seconds: tuple[float, ...]  # of each worker
    chunk_samples: int
    up_since: float | None  # when all workers were up, by time.perf_counter; None: not yet
    seconds_reading: float  # that the sampler or iterable took
    reads_ahead: bool  # in a thread of its own, not in the caller's
    works_ahead: bool  # workers, not the caller's thread
    skipped: int  # samples


class AnyPass(Protocol):
    """One pass over the data, as its caller sees it.

    Attributes
    ----------
    delivered : int
        Samples of the batches that were delivered.
    mark : Mark
        Where the plan goes on behind them.
    exhausted : bool
        Whether all of the plan is requested.
    """

    delivered: int
    mark: Mark
    exhausted: bool

    def join(self, timeout: float | None) -> bool:
        """Wait until nobody reads the plan any more; False after `timeout` seconds."""


class AnyEngine(Protocol):
    """Carries passes, one or several at once; each takes those that it has opened."""

    def open(self, plan: EpochPlan, after: Any = None) -> AnyPass:
        """Begin a pass; `after`: a pass behind which it is requested."""

    def next_batch(self, this: Any) -> list[Any] | None:
        """The next batch of a pass, a list of mini-batches; None at its end."""

    def knows(self, error: BaseException) -> bool:
        """Whether an error was raised where everything was in order, not by a signal handler."""

    def interrupt(self, this: Any) -> None:
        """End the wait of another thread that is in `next_batch`."""

    def close_pass(self, this: Any) -> None:
        """Drop what is left of a pass."""

    def update_dataset(self) -> bool:
        """Read the dataset as it is now; False if the engine must be started anew for that."""

    def facts(self) -> EngineFacts:
        """State of the buffers and of the workers."""

    def stop(self) -> None:
        """End everything; mini-batches that the caller holds stay valid."""
