"""The endless chain of passes over a user's sampler or iterable, and places in it."""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

__all__ = ["Passes", "Place", "drop", "load_into", "state_of"]


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
            load_into(self.source, value, self.argument)
        self._iterator = iter(self.source)
        if whose == "iterator":
            load_into(self._iterator, value, self.argument)
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
        if opened or (state and state[0] == "iterator"):
            iterator = self.open(state)
            if state is None:
                drop(iterator, offset, self.argument, self.source)
            self.taken = offset
        elif state:
            load_into(self.source, state[1], self.argument)

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
        return state_of(("iterator", self._iterator), ("source", self.source))

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


def state_of(*candidates: tuple[str, Any]) -> tuple[str, Any] | None:
    """A copy of the state of the first of them that has one: it goes on before the copy is used.

    Parameters
    ----------
    *candidates : (str, object)
        Each with a word for it.

    Returns
    -------
    (str, object) or None
        The word, and the state.
    """
    for whose, what in candidates:
        if hasattr(what, "state_dict") and hasattr(what, "load_state_dict"):
            return whose, copy.deepcopy(what.state_dict())
    return None


def load_into(what: Any, state: Any, argument: str) -> None:
    """Let a source, or its iterator, go on from a state; ValueError if it cannot."""
    if not hasattr(what, "load_state_dict"):
        raise ValueError(
            f"the state holds one of {argument} or its iterator, but {what!r} has no "
            f"load_state_dict()"
        )
    what.load_state_dict(copy.deepcopy(state))


def drop(iterator: Iterator[Any], count: int, argument: str, source: Any) -> None:
    """Skip what had been read of a pass when a state was taken; ValueError if it ends before."""
    dropped = sum(1 for _ in islice(iterator, count))
    if dropped < count:
        raise ValueError(
            f"a pass over {argument}, {source!r}, gave {dropped} items, where it had given "
            f"{count} when the state was taken: it must give the same again, or have "
            f"state_dict() and load_state_dict()"
        )
