"""Iterators of the drop-in loader: one pass each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from .. import seeding
from ..broker.snapshot import Snapshot
from ..independent import BatchIterator
from ..passes import Batch, EpochPlan
from .pool import Pool
from .replicas import Request

__all__ = ["RequestPlan", "SeededIterator", "WorkersIterator"]


class RequestPlan(EpochPlan):
    """The batches of one iterator, each a request.

    Parameters
    ----------
    request : Request
        What its requests have in common.
    source : iterator
        What each batch is made of.
    alive : mapping
        Iterators in use; this one is added.
    streams : int
        How many workers make the batches in turn, each of its own stream; 0: any worker may
        make any batch.
    snapshot : Snapshot
        Held as long as workers may have to read it.
    """

    kind = "indices"
    ahead = False

    def __init__(
        self,
        request: Request,
        source: Iterator[Any],
        alive: MutableMapping[int, Any],
        streams: int,
        snapshot: Snapshot,
    ) -> None:
        super().__init__(request.epoch, 1, None)
        self._request = request
        self._source = source
        self._alive = alive
        self._turns = deque(range(streams)) if streams else None
        self._snapshot = snapshot
        alive[request.epoch] = self

    def __next__(self) -> Batch:
        if self._turns is not None:
            if not self._turns:
                raise StopIteration
            self.worker = self._turns[0]
            self._turns.rotate(-1)
        what = next(self._source)
        number, self._given = self._given, self._given + 1
        return [self._request._replace(alive=tuple(self._alive), number=number, what=what)]

    def leave_out(self, worker: int) -> None:
        """The stream of a worker has ended: no more batches of it."""
        if self._turns is not None and worker in self._turns:
            self._turns.remove(worker)


class WorkersIterator(_BaseDataLoaderIter):
    """Batches that workers make.

    Parameters
    ----------
    loader : DataLoader
        Whose pass it is.
    pool : Pool
        Its workers.
    """

    def __init__(self, loader: Any, pool: Pool) -> None:
        if pool.persistent:
            vars(self).update(pool.persistent)
        else:
            super().__init__(loader)  # draws the base seed
            self._snapshot = pool.snapshot(loader)
            if loader.persistent_workers:
                pool.persistent = dict(vars(self))
        snapshot = self._snapshot
        engine = pool.engine(loader, snapshot)
        epoch = next(pool.epochs)
        place = None if pool.inherited(snapshot) else snapshot.place
        replica = 0 if loader.persistent_workers else epoch
        # Once more, as torch does: an __iter__ that draws must draw as often.
        self._sampler_iter = iter(self._index_sampler)
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._streams = isinstance(loader.dataset, IterableDataset)
        self._plan = RequestPlan(
            Request(epoch, (), replica, int(self._base_seed), place, 0, None),
            self._sampler_iter,
            pool.alive,
            loader.num_workers if self._streams else 0,
            snapshot,
        )
        window = max(1, loader.prefetch_factor * loader.num_workers)
        self._batches = BatchIterator(engine, self._plan, window)

    def __next__(self) -> Any:
        if self._streams or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return super().__next__()  # which shows this to the profiler, and looks at the length
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        made = next(self._batches)
        while isinstance(made, int):  # the number of a worker whose stream has ended
            self._plan.leave_out(made)
            made = next(self._batches)
        (batch,) = made
        return _pinned(self, batch)


class SeededIterator(_SingleProcessDataLoaderIter):
    """Batches made by the calling thread, with the global generators seeded for each of them.

    The caller's own state of these generators is not touched.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._epoch = next(loader._pool.epochs)

    def _next_data(self) -> Any:
        keys = next(self._sampler_iter)
        with seeding.preserve_globals():
            seeding.seed_globals(int(self._base_seed), self._epoch, self._num_yielded)
            batch = self._dataset_fetcher.fetch(keys)
        return _pinned(self, batch)


def _pinned(iterator: Any, batch: Any) -> Any:
    """The batch in page-locked memory, where that was asked for and there is a use for it."""
    if not iterator._pin_memory:
        return batch
    return pin_memory(batch, iterator._pin_memory_device)  # type: ignore[no-untyped-call]
