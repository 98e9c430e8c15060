"""Plans of one epoch: iterators over its batches, which read no more than each batch needs."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .sampling import Order

__all__ = ["Batch", "EpochPlan", "LastBatch", "OrderPlan", "Passes", "SourcePlan", "index_batch"]

Batch = NDArray[np.int64] | list[Any]
LastBatch = Literal["keep", "discard", "rollover"]


class EpochPlan(ABC, Iterator[Batch]):
    """The batches of one epoch, in order.

    A batch is an int64 array of shape (n,) where the keys of its samples are integers, else a
    list of n keys or, if `kind` is ``"samples"``, of n samples. Errors of the user's sampler or
    iterable, and indices out of range, are raised by the `next` of the batch they belong to.

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
    worker : int
        Number of the only worker that may make the batch that was given last; -1: any.
    """

    epoch: int
    kind: Literal["indices", "samples"]
    iterations: int | None
    ahead: bool
    worker: int = -1

    def __init__(self, epoch: int, batch_size: int, total: int | None) -> None:
        self.epoch = epoch
        self.iterations = None if total is None else -(-total // batch_size)
        self._batch_size = batch_size
        self._total = total
        self._given = 0

    @property
    def over(self) -> bool:
        """True when the last batch has been given."""
        return self._given == self._total

    @abstractmethod
    def __next__(self) -> Batch:
        """Return the next batch."""

    def _next_size(self) -> int:
        if self._total is None:
            return self._batch_size
        return min(self._batch_size, self._total - self._given)


class OrderPlan(EpochPlan):
    """Batches of `total` indices cut from a chain of own orders.

    Parameters
    ----------
    epoch, batch_size, total : int
        Number of the epoch, samples per batch, samples in the epoch.
    orders : callable
        Returns the order of the pass with the given number.
    number, offset : int
        Where the epoch starts: number of the pass, and position in it.
    """

    kind = "indices"
    ahead = True

    def __init__(
        self,
        epoch: int,
        batch_size: int,
        total: int,
        *,
        orders: Callable[[int], Order],
        number: int,
        offset: int,
    ) -> None:
        super().__init__(epoch, batch_size, total)
        self._orders = orders
        self._number = number
        self._offset = offset

    def __next__(self) -> Batch:
        missing = self._next_size()
        if not missing:
            raise StopIteration
        self._given += missing
        pieces = []
        while missing:
            order = self._orders(self._number)
            stop = min(self._offset + missing, order.length)
            pieces.append(order.indices(self._offset, stop))
            missing -= stop - self._offset
            self._offset = stop
            if stop == order.length:
                self._number += 1
                self._offset = 0
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class Passes:
    """The endless chain of passes over a user's sampler or iterable.

    Parameters
    ----------
    source : iterable
        What is iterated anew for each pass.
    argument : str
        Its name, for messages.
    number : int
        Number of the first pass. A sampler's ``set_epoch(number)`` is called where it exists.

    Attributes
    ----------
    number : int
        Number of the pass that is opened next.
    taken : int
        Items taken from the pass that was opened last.
    held : list
        Leftovers of a pass that has ended, for the batch that is read next.
    """

    def __init__(self, source: Iterable[Any], argument: str, number: int) -> None:
        self.source = source
        self.argument = argument
        self.number = number
        self.taken = 0
        self.held: list[Any] = []
        self._iterator: Iterator[Any] | None = None

    @property
    def ended(self) -> bool:
        """True if no pass is under way."""
        return self._iterator is None

    def open(self) -> Iterator[Any]:
        """Begin the next pass."""
        set_epoch = getattr(self.source, "set_epoch", None)
        if callable(set_epoch) and self.argument != "iterable":
            set_epoch(self.number)
        self._iterator = iter(self.source)
        self.number += 1
        self.taken = 0
        return self._iterator

    def take(self, count: int) -> list[Any]:
        """Return the next `count` items; fewer where the pass ends before, which is `ended` then.

        Raises
        ------
        RuntimeError
            If a new pass gives nothing because the source is an exhausted iterator.
        """
        iterator = self.open() if self._iterator is None else self._iterator
        items = list(islice(iterator, count))
        self.taken += len(items)
        if len(items) < count:
            self._iterator = None
            if iterator is self.source and not self.taken:
                raise RuntimeError(
                    f"a new pass over {self.argument}, {self.source!r}, gave nothing: it is its "
                    f"own iterator, and exhausted. Give an object whose iter() starts anew, or "
                    f"run fewer epochs"
                )
        return items

    def finish(self, length: int) -> None:
        """Step a sampler over its end, as a for loop would: code behind its last yield runs."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and iterator is not self.source and self.argument != "iterable":
            deque(islice(iterator, length - self.taken + 1), maxlen=0)


class SourcePlan(EpochPlan):
    """Batches read from a user's sampler, batch sampler or iterable.

    Parameters
    ----------
    epoch : int
        Number of the epoch.
    batch_size : int
        Items per batch: 1 for a batch sampler, whose items are batches.
    total : int or None
        Items in the epoch; None: up to the end of the pass.
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
    """

    ahead = False

    def __init__(
        self,
        epoch: int,
        batch_size: int,
        total: int | None,
        *,
        passes: Passes,
        convert: Callable[[list[Any]], Batch],
        single: bool,
        length: int | None,
        last_batch: LastBatch,
    ) -> None:
        super().__init__(epoch, batch_size, total)
        self.kind = "samples" if passes.argument == "iterable" else "indices"
        self._passes = passes
        self._convert = convert
        self._single = single
        self._length = length
        self._last_batch = last_batch
        self._read = 0

    def __next__(self) -> Batch:
        items = self._next_items()
        if not items:
            raise StopIteration
        return self._convert(items)

    def skip(self) -> None:
        """Read the rest of the epoch, for a caller who left it early."""
        while self._next_items():
            pass

    def close(self) -> None:
        """End the epoch here."""
        self._total = self._given

    def _next_items(self) -> list[Any]:
        """Return the items of the next batch, none at the end of the epoch."""
        passes = self._passes
        if self.over:
            if self._single and self._length is not None:
                passes.finish(self._length)
            return []
        items, passes.held = passes.held, []
        missing = self._next_size() - len(items)
        while missing:
            taken = passes.take(missing)
            items += taken
            missing -= len(taken)
            self._read += len(taken)
            if missing and self._ends_here():
                return self._end(items)
        self._given += len(items)
        return items

    def _ends_here(self) -> bool:
        """Whether the epoch ends with the pass that has just ended."""
        passes = self._passes
        if self._single or self._length == passes.taken == self._read:
            return True
        if not passes.taken:
            raise ValueError(
                f"{passes.argument} gave nothing in a whole pass, so no batch of epoch "
                f"{self.epoch} can be filled: {passes.source!r} is empty"
            )
        return False

    def _end(self, items: list[Any]) -> list[Any]:
        if self._last_batch == "rollover":
            self._passes.held = items
        if self._last_batch != "keep":
            items = []
        self._given += len(items)
        self._total = self._given
        return items


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
