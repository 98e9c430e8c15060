"""One ``for`` over a loader: an :class:`Epoch`, and the :class:`EpochIterator` of the caller."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

from .epochs import EpochPlan
from .errors import BufferExhausted, LoaderClosed, LoaderTimeout
from .passes import Mark

if TYPE_CHECKING:
    from .broker.contract import AnyEngine, AnyPass
    from .dataloader import TurboDataLoader

__all__ = ["Clock", "Epoch", "EpochIterator"]


class Clock:
    """Where the caller's time goes."""

    def __init__(self) -> None:
        self.asked: float | None = None  # when the first batch was asked for
        self.samples = 0
        self.waited = 0.0
        self.waited_for_last = 0.0  # of that, when all of the epoch had been requested
        self.worked = 0.0

    def note_waited(self, seconds: float, all_requested: bool) -> None:
        """The caller has waited so long, `all_requested`: for the last batches of the epoch."""
        self.waited += seconds
        self.waited_for_last += seconds * all_requested

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


class Epoch:
    """An epoch that is under way; what its loader knows of it.

    Attributes
    ----------
    plan : EpochPlan
        The epoch's batches.
    mark : Mark
        Where it goes on behind what the caller has received.
    closed : bool
        True once no more batches are given.
    torn : bool
        Whether code of ours that moved it on was interrupted.
    lock : threading.RLock
        Held by who moves it on.
    """

    def __init__(
        self, engine: AnyEngine, plan: EpochPlan, this: AnyPass, timeout: float | None
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.requests = this
        self.mark: Mark = this.mark
        self.closed = False
        self.torn = False
        self.lock = threading.RLock()
        self.why_closed = "The iterator was closed: a newer one of the same loader is in use."
        self._timeout = timeout
        self._dropped = False

    def close(self, why: str | None = None, patience: float | None = None) -> None:
        """End it early, also while another thread waits for its next batch.

        Raises
        ------
        LoaderTimeout
            If that thread does not come back within `patience` seconds (default: the loader's
            limit), for instance from a sampler.
        """
        if not self.closed:
            self.why_closed = why or self.why_closed
            self.closed = True
        patience = self._timeout if patience is None else patience
        if not self.lock.acquire(blocking=False):
            self.engine.interrupt(self.requests)
            if not self.lock.acquire(timeout=-1 if patience is None else patience):
                raise LoaderTimeout(
                    patience or 0.0,
                    cause="Another thread still makes a batch of the epoch before. Raise timeout= "
                    "if that may take so long.",
                )
        try:
            if not self._dropped:
                torn, self.torn = self.torn, True  # until this ends
                self.engine.close_pass(self.requests)
                self._dropped, self.torn = True, torn
        finally:
            self.lock.release()

    def join(self) -> None:
        """Wait until the iterable is not read any more for an epoch that was closed."""
        if not self.requests.join(self._timeout):
            raise LoaderTimeout(
                self._timeout or 0.0,
                cause="The iterable still makes a sample for the epoch before. Raise timeout= if "
                "that may take so long.",
            )


class EpochIterator:
    """Iterator of one epoch: keeps its loader alive, which knows only the :class:`Epoch`."""

    def __init__(self, loader: TurboDataLoader, epoch: Epoch) -> None:
        self._loader = loader
        self._epoch = epoch
        self._ended = False
        self._left = time.perf_counter()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, list[dict[str, Any]]]:
        with self._epoch.lock:  # an iterator that threads share gives each batch to one of them
            return self._next()

    def _next(self) -> tuple[int, list[dict[str, Any]]]:
        epoch = self._epoch
        if self._ended:
            raise StopIteration
        if epoch.closed:
            raise LoaderClosed(epoch.why_closed)
        loader, clock, requests = self._loader, self._loader._clock, epoch.requests
        epoch.torn = True  # until this call ends in a way that it knows
        entered = time.perf_counter()
        clock.worked += entered - self._left
        delivered = requests.delivered
        try:
            batch = epoch.engine.next_batch(requests)
        except BaseException as error:
            epoch.torn = not epoch.engine.knows(error)
            if not _may_go_on(error):
                epoch.close(f"The iterator was closed, since it raised {type(error).__name__}.")
            raise
        finally:
            self._left = time.perf_counter()
            clock.note_waited(self._left - entered, requests.exhausted)
        if batch is None:
            self._ended = True
            epoch.mark = requests.mark._replace(over=True)
            epoch.close()
            epoch.torn = False
            raise StopIteration
        if epoch.plan.ahead and requests.exhausted:
            loader._open_ahead(requests)
        iteration = loader._iterations
        loader._iterations += 1
        epoch.mark = requests.mark
        clock.samples += requests.delivered - delivered
        epoch.torn = False
        return iteration, batch
