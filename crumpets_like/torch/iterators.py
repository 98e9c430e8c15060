"""Iterators of the drop-in loader: one pass each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping
from functools import partial
from typing import Any, cast

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from .. import seeding
from ..broker.snapshot import Snapshot
from ..chain import Place
from ..course import Course, PassRecord
from ..independent import BatchIterator
from ..passes import Batch, EpochPlan, Mark
from .pool import Pool
from .replicas import Request

__all__ = ["CallerIterator", "RequestPlan", "WorkersIterator"]


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
    first : int
        Number of the first batch.
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
        first: int,
    ) -> None:
        super().__init__(request.epoch, 1, None, Mark(first, first, False, Place(0, 0)))
        self._request = request
        self._source = source
        self._alive = alive
        self._turns = deque(range(streams)) if streams else None
        self._snapshot = snapshot
        alive[request.iterator] = self

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


class _Recorded(_BaseDataLoaderIter):
    """What iterators have in common: the caller can go on from where they are."""

    left: bool
    """Whether anything is left of the pass that was opened again."""

    _record: PassRecord
    _course: Course

    def _begin(self, loader: Any, record: PassRecord, place: Any) -> None:
        """Read keys, behind those of `place` if one is given."""
        self._course = loader._course
        self._streams = isinstance(loader.dataset, IterableDataset)
        self._held: list[Any] = []  # a batch that was made to see whether there is any
        iterator, self.left = self._sampler_iter, True
        if place is None:
            record.seed = int(self._base_seed)
        else:
            draw = partial(_draw_seed, loader.generator)
            steps = "isi" if self._num_workers else "is"  # of one whose workers are new, as ever
            record, iterator = self._course.reopen(place, steps, draw)
            self._base_seed = cast(int, record.seed)
        self._record = record
        if self._streams:
            self._sampler_iter = iterator
        else:
            reader = self._sampler_iter = self._course.reader(record, iterator)
            if place is not None:
                self.left = self._course.skip(reader, place["received"])
                self._num_yielded = record.received

    def _skip_batches(self, count: int) -> None:
        """Make what had been received of a stream again, and one batch more, if there is one."""
        for made in range(count + 1):
            try:
                self._held = [self._make()]
            except StopIteration:
                if made < count:
                    raise ValueError(
                        f"a pass over dataset, {self._dataset!r}, gave {made} batches, where it "
                        f"had given {count} when the state was taken: it must give the same again"
                    ) from None
                self._held, self.left = [], False
            else:
                self._course.note_first(self._record)
        self._record.received = self._num_yielded = count
        self._course.go_on(self._record)

    def _next_data(self) -> Any:
        record = self._record
        try:
            batch = self._held.pop() if self._held else self._make()
        except StopIteration:
            record.over = True
            raise
        self._course.note_first(record)
        record.receive(None if self._streams else self._count())
        return batch

    def _make(self) -> Any:
        raise NotImplementedError

    def _count(self) -> int:
        """Batches of the pass up to this one, those that were made in vain, and raised, too."""
        raise NotImplementedError


class WorkersIterator(_Recorded):
    """Batches that workers make.

    Parameters
    ----------
    loader : DataLoader
        Whose pass it is.
    pool : Pool
        Its workers.
    place : mapping, optional
        Where it goes on.
    """

    def __init__(self, loader: Any, pool: Pool, place: Any = None) -> None:
        record = loader._course.begin("i" if pool.persistent else "isi")
        if pool.persistent:
            vars(self).update(pool.persistent)
        else:
            super().__init__(loader)  # draws the base seed
            self._snapshot = pool.snapshot(loader)
            if loader.persistent_workers:
                pool.persistent = dict(vars(self))
        snapshot = self._snapshot
        if place is None:
            # Once more, as torch does: an __iter__ that draws must draw as often.
            self._sampler_iter = iter(self._index_sampler)
        self._IterableDataset_len_called = loader._IterableDataset_len_called
        self._begin(loader, record, place)
        self._raised = False
        self._made = self._record.received
        if pool.persistent:
            pool.persistent["_base_seed"] = self._base_seed  # a state may have brought another
        if not self.left:
            return
        engine = pool.engine(loader, snapshot)
        number = next(pool.numbers)
        replica = 0 if loader.persistent_workers else number
        self._plan = RequestPlan(
            Request(
                number,
                (),
                replica,
                int(self._base_seed),
                self._record.epoch,
                None if pool.inherited(snapshot) else snapshot.place,
                0,
                None,
            ),
            self._sampler_iter,
            pool.alive,
            loader.num_workers if self._streams else 0,
            snapshot,
            self._record.received,
        )
        window = loader.prefetch_factor * loader.num_workers
        self._batches = BatchIterator(engine, self._plan, window, goes_on=not self._streams)
        if self._streams and place is not None:
            self._skip_batches(place["received"])

    def __next__(self) -> Any:
        if self._streams or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return super().__next__()  # which shows this to the profiler, and looks at the length
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        if self._raised:  # which is not the end of the pass
            raise StopIteration
        return super()._next_data()

    def _make(self) -> Any:
        try:
            made = next(self._batches)
            while isinstance(made, int):  # the number of a worker whose stream has ended
                self._plan.leave_out(made)
                made = next(self._batches)
        except StopIteration:
            raise
        except BaseException:
            self._raised = self._batches.closed
            self._made += 1
            raise
        self._made += 1
        (batch,) = made
        return _pinned(self, batch)

    def _count(self) -> int:
        return self._made


class CallerIterator(_Recorded, _SingleProcessDataLoaderIter):
    """Batches made by the calling thread.

    With ``seed_globals=True`` the global generators are seeded for each of them, and the caller's
    own state of these is not touched.

    Parameters
    ----------
    loader : DataLoader
        Whose pass it is.
    place : mapping, optional
        Where it goes on.
    """

    def __init__(self, loader: Any, place: Any = None) -> None:
        record = loader._course.begin("is")
        super().__init__(loader)
        self._seeded = loader.seed_globals
        self._begin(loader, record, place)
        self._number = self._record.received
        if self._streams and place is not None:
            # Made anew: it may draw as soon as it begins.
            self._dataset_fetcher = type(self._dataset_fetcher)(
                self._dataset, self._auto_collation, self._collate_fn, self._drop_last
            )
            self._skip_batches(place["received"])

    def _count(self) -> int:
        count: int = self._sampler_iter.count
        return count

    def _make(self) -> Any:
        keys = next(self._sampler_iter)
        number, self._number = self._number, self._number + 1
        if not self._seeded:
            return _pinned(self, self._dataset_fetcher.fetch(keys))
        with seeding.preserve_globals():
            seeding.seed_globals(int(self._base_seed), self._record.epoch, number)
            batch = self._dataset_fetcher.fetch(keys)
        return _pinned(self, batch)


def _draw_seed(generator: Any) -> int:
    """A base seed, drawn as torch does."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _pinned(iterator: Any, batch: Any) -> Any:
    """The batch in page-locked memory, where that was asked for and there is a use for it."""
    if not iterator._pin_memory:
        return batch
    return pin_memory(batch, iterator._pin_memory_device)  # type: ignore[no-untyped-call]
