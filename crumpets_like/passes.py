"""Plans of one epoch: iterators over its batches, which read no more than each batch needs."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chain import Passes, Place
from .ranks import WHOLE, Shard
from .sampling import Order

__all__ = [
    "BEGINNING",
    "Batch",
    "EpochPlan",
    "LastBatch",
    "Mark",
    "OrderPlan",
    "SourcePlan",
    "index_batch",
]

Batch = NDArray[np.int64] | list[Any]
LastBatch = Literal["keep", "discard", "rollover"]


class Mark(NamedTuple):
    """Where an epoch goes on behind one of its batches, or begins.

    Attributes
    ----------
    given : int
        Items of the epoch before it, those of other ranks included.
    position : int
        Samples among them. (The items of a batch sampler are lists of these.)
    over : bool
        Whether the epoch is known to end here.
    place : Place
        Where its next item is found.
    """

    given: int
    position: int
    over: bool
    place: Place


BEGINNING = Mark(0, 0, False, Place(0, 0))
"""Of the first epoch."""


class EpochPlan(ABC, Iterator[Batch]):
    """The batches of one epoch, in order.

    A batch is an int64 array of shape (n,) where the keys of its samples are integers, else a
    list of n keys or, if `kind` is ``"samples"``, of n samples. Errors of the user's sampler or
    iterable, and indices out of range, are raised by the `next` of the batch they belong to.

    Parameters
    ----------
    epoch : int
        Its number.
    step : int
        Items of one global batch, that of all ranks together.
    total : int or None
        Items of the epoch; None: up to the end of the pass.
    start : Mark
        Where it begins, or goes on.
    shard : Shard
        Which part of a global batch it gives.

    Attributes
    ----------
    epoch : int
        Number of the epoch, from 0.
    kind : {"indices", "samples"}
        What the batches hold: indices (or other keys) into a dataset, or the samples themselves.
    iterations : int or None
        Number of batches, None if the source has no length. A source that ends before its
        length says ends the epoch early.
    ahead : bool
        True if batches may be requested before the caller opens the epoch: orders of our own only.
    mark : Mark
        Where the epoch goes on behind the last batch that was given.
    total : int or None
        Items of the epoch as planned, over all ranks; None: up to the end of the pass.
    first_position : int
        Samples of the epoch that this rank was given before.
    worker : int
        Number of the only worker that may make the batch that was given last; -1: any.
    """

    epoch: int
    kind: Literal["indices", "samples"]
    iterations: int | None
    ahead: bool
    mark: Mark
    total: int | None
    first_position: int
    worker: int = -1

    def __init__(
        self,
        epoch: int,
        step: int,
        total: int | None,
        start: Mark = BEGINNING,
        shard: Shard = WHOLE,
    ) -> None:
        self.epoch = epoch
        self.total = total
        self.iterations = None
        if total is not None:
            before = start.given // step
            self.iterations = before + shard.batches(total - start.given, step)
        self.mark = start
        self.first_position = -(-start.position // shard.world_size)
        self._step = step
        self._shard = shard
        self._given = start.given
        self._ended = start.over

    @property
    def over(self) -> bool:
        """True when the last batch has been given."""
        return self._ended or self._given == self.total

    @abstractmethod
    def __next__(self) -> Batch:
        """Return the next batch."""

    def _next_size(self) -> int:
        """Return the items of the next global batch; 0 at the end."""
        return self._step if self.total is None else min(self._step, self.total - self._given)


class OrderPlan(EpochPlan):
    """Batches of `total` indices cut from a chain of own orders.

    Parameters
    ----------
    epoch, step, total, start, shard
        As :class:`EpochPlan` says.
    orders : callable
        Returns the order of the pass with the given number.
    """

    kind = "indices"
    ahead = True

    def __init__(
        self,
        epoch: int,
        step: int,
        total: int,
        *,
        orders: Callable[[int], Order],
        start: Mark,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__(epoch, step, total, start, shard)
        self._orders = orders

    def __next__(self) -> Batch:
        size = self._next_size()
        mine = self._shard.size(size)
        if not mine:
            raise StopIteration
        rank, world_size, _ = self._shard
        extra = self._shard.padded(size)
        length = self._orders(self.mark.place.number).length
        stop = min(size, mine * world_size)
        pieces = self._indices(rank, stop, world_size)
        if extra is not None:
            pieces += self._indices(extra, extra + 1, 1)
        number, offset, _ = self.mark.place
        passes, offset = divmod(offset + size, length)
        self._given += size
        place = Place(number + passes, offset)
        self.mark = Mark(self._given, self._given, self.over, place)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _indices(self, start: int, stop: int, step: int) -> list[NDArray[np.int64]]:
        """Return what lies at every `step`-th position from `start` on, seen from the mark."""
        number, offset, _ = self.mark.place
        start += offset
        stop += offset
        pieces = []
        while start < stop:
            order = self._orders(number)
            if start < order.length:
                pieces.append(order.indices(start, min(stop, order.length), step))
                start += len(pieces[-1]) * step
            number += 1
            start -= order.length
            stop -= order.length
        return pieces


class SourcePlan(EpochPlan):
    """Batches read from a user's sampler, batch sampler or iterable.

    Parameters
    ----------
    epoch, step, total, shard
        As :class:`EpochPlan` says. The items of a batch sampler are batches.
    passes : Passes
        Where the items come from.
    convert : callable
        Makes the batch from its items.
    single : bool
        Whether the epoch ends where a pass ends.
    length : int or None
        Items of one pass, where the source or the user says so. With `single` false, the epoch
        also ends with a pass that began with it and gave just this number of items: that a
        source without a length is exactly one pass is seen only there.
    last_batch : {"keep", "discard", "rollover"}
        What becomes of a short last batch at such an end.
    start : Mark, optional
        Where the epoch goes on, if it was begun before.
    first : int, optional
        Number of the first pass that the epoch reads from its beginning.
    """

    ahead = False

    def __init__(
        self,
        epoch: int,
        step: int,
        total: int | None,
        *,
        passes: Passes,
        convert: Callable[[list[Any]], Batch],
        single: bool,
        length: int | None,
        last_batch: LastBatch,
        start: Mark | None = None,
        first: int | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        if start is None:
            passes.settle()
            start = Mark(0, 0, False, passes.place)
        if first is None:
            first = passes.current if passes.ended or not passes.taken else passes.number
        super().__init__(epoch, step, total, start, shard)
        self.kind = "samples" if passes.argument == "iterable" else "indices"
        self.single = single
        self.length = length
        self.first = first
        self._passes = passes
        self._convert = convert
        self._last_batch = last_batch
        self._ahead: list[Any] = []  # items of a batch that was read to see whether there is one

    def __next__(self) -> Batch:
        items, self._ahead = self._ahead or self._next_items(), []
        part = self._shard.part(items)
        if not part:
            raise StopIteration
        batch = self._convert(part)
        samples = len(batch) if part is items else len(items)
        self.mark = Mark(self._given, self.mark.position + samples, self.over, self._passes.place)
        return batch

    def more(self) -> bool:
        """Whether another global batch follows; where only reading tells, it is read."""
        certain = self.total is not None and (self.single or self.length is None)
        if certain and not self.over:
            return True
        self._ahead = self._next_items()
        return bool(self._ahead)

    def skip(self) -> None:
        """Read the rest of the epoch, for a caller who left it early."""
        while self._next_items():
            pass

    def close(self) -> None:
        """End the epoch here."""
        self._ended = True

    def _next_items(self) -> list[Any]:
        """Return the items of the next batch, none at the end of the epoch."""
        passes = self._passes
        if self.over:
            if self.single and self.length is not None:
                passes.finish(self.length)
            return []
        items, passes.held = passes.held, []
        missing = self._next_size() - len(items)
        while missing:
            taken = passes.take(missing)
            items += taken
            missing -= len(taken)
            if missing and self._ends_here():
                return self._end(items)
        return self._give(items)

    def _give(self, items: list[Any]) -> list[Any]:
        self._given += len(items)
        self._passes.settle()
        return items

    def _ends_here(self) -> bool:
        """Whether the epoch ends with the pass that has just ended."""
        passes = self._passes
        if self.single or (passes.taken == self.length and passes.number == self.first + 1):
            return True
        if not passes.taken:
            raise ValueError(
                f"{passes.argument} gave nothing in a whole pass, so no batch of epoch "
                f"{self.epoch} can be filled: {passes.source!r} is empty"
            )
        return False

    def _end(self, items: list[Any]) -> list[Any]:
        self._ended = True
        if self._last_batch == "rollover":
            self._passes.held = items
        return self._give(items) if self._last_batch == "keep" else []


def index_batch(keys: list[Any], length: int | None, argument: str) -> Batch:
    """Make a batch of a sampler's keys.

    Parameters
    ----------
    keys : list
        Indices, or keys of another kind.
    length : int or None
        Length of the dataset that the indices must fit; None if any key may.
    argument : str
        Where the keys come from, for messages.

    Returns
    -------
    ndarray of int64, shape (len(keys),), or list
        The list, where the keys are not all integers of 64 bits.

    Raises
    ------
    IndexError
        If an index is less than ``-length``, or not less than `length`.
    """
    try:
        indices = list(map(operator.index, keys))
    except TypeError:
        return keys
    if length is not None:
        for index in (min(indices), max(indices)):
            if not -length <= index < length:
                raise IndexError(
                    f"{argument} gave the index {index}, which is out of range for a dataset of "
                    f"length {length}"
                )
    try:
        return np.array(indices, dtype=np.int64)
    except OverflowError:
        return keys
