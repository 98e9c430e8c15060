"""One ``for`` over a loader: :class:`EpochIterator`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

from .epochs import EpochPlan
from .errors import BufferExhausted, LoaderClosed, LoaderTimeout
from .passes import Mark

if TYPE_CHECKING:
    from .dataloader import TurboDataLoader

__all__ = ["Clock", "EpochIterator"]


class Clock:
    """Where the caller's time goes."""

    def __init__(self) -> None:
        self.asked: float | None = None  # when the first batch was asked for
        self.samples = 0
        self.waited = 0.0
        self.worked = 0.0

    def waited_since(self, up: float | None) -> float:
        """Seconds that the caller waited, but for the start of the workers, `up` at its end."""
        if up is None or self.asked is None:
            return 0.0
        return max(0.0, self.waited - max(0.0, up - self.asked))


def _may_go_on(error: BaseException) -> bool:
    """Whether the iterator that raised can go on: nothing of the epoch has got lost."""
    if isinstance(error, LoaderTimeout):
        return error.where is None
    return isinstance(error, BufferExhausted)


class EpochIterator:
    """Iterator of one epoch.

    Attributes
    ----------
    plan : EpochPlan
        The epoch's batches.
    mark : Mark
        Where it goes on behind what the caller has received.
    """

    def __init__(self, loader: TurboDataLoader, engine: Any, plan: EpochPlan, this: Any) -> None:
        self._loader = loader
        self._engine = engine
        self._pass = this
        self.plan = plan
        self.mark: Mark = this.mark
        self.closed = False
        self._why_closed = "The iterator was closed: a newer one of the same loader is in use."
        self._ended = False
        self._left = time.perf_counter()
        self._lock = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, list[dict[str, Any]]]:
        with self._lock:  # an iterator that threads share gives each batch to one of them
            return self._next()

    def _next(self) -> tuple[int, list[dict[str, Any]]]:
        if self._ended:
            raise StopIteration
        if self.closed:
            raise LoaderClosed(self._why_closed)
        loader, clock = self._loader, self._loader._clock
        loader._torn = True  # until this call ends in a way that it knows
        entered = time.perf_counter()
        clock.worked += entered - self._left
        delivered = self._pass.delivered
        try:
            batch = self._engine.next_batch(self._pass)
        except BaseException as error:
            loader._torn = not self._engine.knows(error)
            if not _may_go_on(error):
                self.close(f"The iterator was closed, since it raised {type(error).__name__}.")
            raise
        finally:
            self._left = time.perf_counter()
            clock.waited += self._left - entered
        if batch is None:
            self._ended = True
            self.mark = self._pass.mark._replace(over=True)
            self.close()
            loader._torn = False
            raise StopIteration
        if self.plan.ahead and self._pass.exhausted:
            loader._open_ahead(self._pass)
        iteration = loader._iterations
        loader._iterations += 1
        self.mark = self._pass.mark
        clock.samples += self._pass.delivered - delivered
        loader._torn = False
        return iteration, batch

    def close(self, why: str | None = None) -> None:
        """End the epoch early."""
        if not self.closed:
            self.closed = True
            self._why_closed = why or self._why_closed
            self._engine.close_pass(self._pass)

    def join(self) -> None:
        """Wait until the iterable is not read any more for an epoch that was closed."""
        timeout = self._loader._timeout
        if not self._pass.join(timeout):
            raise LoaderTimeout(
                timeout or 0.0, detail="The iterable still makes a sample for the epoch before."
            )
