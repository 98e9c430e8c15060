"""Plans of one epoch: iterators over its batches, which read no more than each batch needs."""

from __future__ import annotations

import copy
import operator
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .sampling import Order

__all__ = [
    "BEGINNING",
    "Batch",
    "EpochPlan",
    "LastBatch",
    "Mark",
    "OrderPlan",
    "Passes",
    "Place",
    "SourcePlan",
    "index_batch",
]

Batch = NDArray[np.int64] | list[Any]
LastBatch = Literal["keep", "discard", "rollover"]


class Place(NamedTuple):
    """A place in the chain of passes: that of the item which is given next.

    Attributes
    ----------
    number, offset : int
        Number of the pass, and items before this one in it.
    state : tuple of (str, object) or None
        For sources with a ``state_dict``: whose it is, "iterator" or "source", and what it was.
    """

    number: int
    offset: int
    state: tuple[str, Any] | None = None


class Mark(NamedTuple):
    """Where an epoch goes on behind one of its batches, or begins.

    Attributes
    ----------
    given : int
        Items of the epoch before it.
    position : int
        Samples of the epoch before it. (The items of a batch sampler are lists of these.)
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
        Items of the epoch as planned; None: up to the end of the pass.
    """

    epoch: int
    kind: Literal["indices", "samples"]
    iterations: int | None
    ahead: bool
    mark: Mark
    total: int | None

    def __init__(
        self, epoch: int, batch_size: int, total: int | None, start: Mark = BEGINNING
    ) -> None:
        self.epoch = epoch
        self.iterations = None if total is None else -(-total // batch_size)
        self.total = total
        self.mark = start
        self._batch_size = batch_size
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
        if self.total is None:
            return self._batch_size
        return min(self._batch_size, self.total - self._given)


class OrderPlan(EpochPlan):
    """Batches of `total` indices cut from a chain of own orders.

    Parameters
    ----------
    epoch, batch_size, total : int
        Number of the epoch, samples per batch, samples in the epoch.
    orders : callable
        Returns the order of the pass with the given number.
    start : Mark
        Where the epoch begins, or goes on.
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
        start: Mark,
    ) -> None:
        super().__init__(epoch, batch_size, total, start)
        self._orders = orders

    def __next__(self) -> Batch:
        missing = self._next_size()
        if not missing:
            raise StopIteration
        self._given += missing
        number, offset, _ = self.mark.place
        pieces = []
        while missing:
            order = self._orders(number)
            stop = min(offset + missing, order.length)
            pieces.append(order.indices(offset, stop))
            missing -= stop - offset
            offset = stop
            if stop == order.length:
                number += 1
                offset = 0
        self.mark = Mark(self._given, self._given, self.over, Place(number, offset))
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
    place : Place
        That of the first item which was given in no batch: of the leftovers, if there are any.
    """

    def __init__(self, source: Iterable[Any], argument: str, number: int) -> None:
        self.source = source
        self.argument = argument
        self.number = number
        self.taken = 0
        self.held: list[Any] = []
        self._iterator: Iterator[Any] | None = None
        self.place = Place(-1, 0)  # not known yet

    @property
    def ended(self) -> bool:
        """True if no pass is under way."""
        return self._iterator is None

    @property
    def current(self) -> int:
        """Number of the pass under way, or of the next one if none is."""
        return self.number if self._iterator is None else self.number - 1

    def open(self, state: tuple[str, Any] | None = None) -> Iterator[Any]:
        """Begin the next pass, or go on with it from a state that :attr:`place` had."""
        set_epoch = getattr(self.source, "set_epoch", None)
        if callable(set_epoch) and self.argument != "iterable":
            set_epoch(self.number)
        whose, value = state or ("", None)
        if whose == "source":
            self._load(self.source, value)
        self._iterator = iter(self.source)
        if whose == "iterator":
            self._load(self._iterator, value)
        self.number += 1
        self.taken = 0
        return self._iterator

    def go_to(self, place: Place, opened: bool) -> None:
        """Go on from a place; if its pass was `opened`, it is now, too.

        Items before it are read and dropped, unless the source restores a state.

        Raises
        ------
        ValueError
            If the pass ends before.
        """
        self.number, offset, state = place
        self.place = place
        if opened:
            iterator = self.open(state)
            if state is None:
                self._drop(iterator, offset)
            self.taken = offset
        elif state:
            self._load(self.source, state[1])

    def _drop(self, iterator: Iterator[Any], count: int) -> None:
        dropped = sum(1 for _ in islice(iterator, count))
        if dropped < count:
            raise ValueError(
                f"a pass over {self.argument}, {self.source!r}, gave {dropped} items, where it had "
                f"given {count} when the state was taken: it must give the same again, or have "
                f"state_dict() and load_state_dict()"
            )

    def _load(self, what: Any, state: Any) -> None:
        if not hasattr(what, "load_state_dict"):
            raise ValueError(
                f"the state holds one of {self.argument} or its iterator, but {what!r} has no "
                f"load_state_dict()"
            )
        what.load_state_dict(copy.deepcopy(state))

    def hold_up_to(self, number: int) -> None:
        """Read what is left of the passes before `number`: leftovers for the next batch."""
        while self.current < number:
            self.held += self.take(sys.maxsize)

    def settle(self) -> None:
        """All items that were taken are given in batches, but those that are held."""
        here = self.current, 0 if self._iterator is None else self.taken
        # A state that was loaded is asked for only when the source has gone on from it.
        if not self.held and here != self.place[:2]:
            self.place = Place(*here, self._state())

    def _state(self) -> tuple[str, Any] | None:
        """A copy of the source's state, if it has one: it goes on before the copy is used."""
        what: Any
        for whose, what in (("iterator", self._iterator), ("source", self.source)):
            if hasattr(what, "state_dict") and hasattr(what, "load_state_dict"):
                return whose, copy.deepcopy(what.state_dict())
        return None

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
    start : Mark, optional
        Where the epoch goes on, if it was begun before.
    first : int, optional
        Number of the first pass that the epoch reads from its beginning.
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
        start: Mark | None = None,
        first: int | None = None,
    ) -> None:
        if start is None:
            passes.settle()
            start = Mark(0, 0, False, passes.place)
        if first is None:
            first = passes.current if passes.ended or not passes.taken else passes.number
        super().__init__(epoch, batch_size, total, start)
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
        if not items:
            raise StopIteration
        batch = self._convert(items)
        self.mark = Mark(
            self._given, self.mark.position + len(batch), self.over, self._passes.place
        )
        return batch

    def more(self) -> bool:
        """Whether another batch follows; where only reading tells, it is read."""
        certain = self.total is not None and (self.single or self.length is None)
        if self.over or not certain:
            self._ahead = self._next_items()
        return bool(self._ahead) or not self.over

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
