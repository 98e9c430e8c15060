"""What the drop-in DataLoaders stand on: batches of any structure, iterators beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from .broker.engine import Engine
from .broker.worker import Worker
from .errors import LoaderClosed
from .passes import Batch, EpochPlan, index_batch

__all__ = ["MOST_SAMPLES", "BatchIterator", "BatchPlan", "CollateWorker"]

MOST_SAMPLES = 2**31 - 1
"""As the engine's `mini_batch_size`: a batch sampler's lists may have any length."""


class CollateWorker(Worker):
    """Makes one batch of a list of samples: whatever `collate` returns.

    Parameters
    ----------
    collate : callable
        Gets the list of a batch's samples; runs in the worker.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def process(self, sample: Any) -> dict[str, Any]:
        """The sample as it is."""
        return {"": sample}

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch."""
        return {"": self._collate([result[""] for result in results])}


class BatchPlan(EpochPlan):
    """The batches of one pass as a batch sampler gives them.

    Parameters
    ----------
    epoch : int
        What workers know the pass by.
    batches : iterable of lists
        Keys of the samples of each batch; read as batches are requested.
    """

    kind = "indices"
    ahead = False

    def __init__(self, epoch: int, batches: Iterable[Iterable[Any]]) -> None:
        super().__init__(epoch, 1, None)
        self._batches = iter(batches)

    def __next__(self) -> Batch:
        return index_batch(list(next(self._batches)), None, "batch_sampler")


class BatchIterator(Iterator[Any]):
    """The batches of one pass over an engine that may carry several passes.

    Parameters
    ----------
    engine : Engine
        With a :class:`CollateWorker`.
    plan : EpochPlan
        Its batches.
    window : int
        Batches requested ahead: so many once this is made, then one for each that is received.
    at_once : bool
        Whether that one is requested as soon as another is received, not when the next one is
        asked for.
    goes_on : bool
        Whether the pass goes on behind a batch that raises an error of its own.

    Attributes
    ----------
    closed : bool
        Whether there is nothing left to come.
    """

    def __init__(
        self,
        engine: Engine,
        plan: EpochPlan,
        window: int,
        at_once: bool = True,
        goes_on: bool = False,
    ) -> None:
        self._engine = engine
        self._at_once = at_once
        self._goes_on = goes_on
        try:
            self._pass = engine.open(plan, window=window)
        except BaseException as error:
            self._distrust(error)
            raise
        self.closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.closed:
            raise StopIteration
        if self._engine.stopped:
            self.close()
            raise LoaderClosed(
                "The loader's workers were stopped when another of its passes was interrupted, or "
                "ended by an error: iterate the loader anew."
            )
        try:
            batch = self._engine.next_batch(self._pass)
            if self._at_once:
                self._engine.request(self._pass)
        except BaseException as error:
            self._distrust(error)
            goes_on = self._goes_on and not self._engine.stopped
            if not (goes_on and self._engine.pass_over(self._pass)):
                self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        return batch[0][""]

    def _distrust(self, error: BaseException) -> None:
        """Stop the engine if a signal handler raised within it: nothing of it is known then."""
        if not self._engine.knows(error):
            self._engine.stop()

    def widen(self) -> None:
        """Request one more batch ahead from now on."""
        self._pass.window.size += 1

    def close(self) -> None:
        """Drop what is left of the pass."""
        if not self.closed:
            self.closed = True
            self._engine.close_pass(self._pass)

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            self._engine.abandon(self._pass)
