"""Lazy chunks of an iterator, cut with the syntax of slices."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Generic, TypeVar

__all__ = ["Slicer"]

T = TypeVar("T")


class Slicer(Generic[T]):
    """Cuts one shared iterator into chunks: ``Slicer(iterable)[start:stop:step]``.

    The slice gives an iterator over chunks; each chunk is an iterator over `step` items, the last
    one over what is left. From where the shared iterator stands, `start` items are skipped, and
    items are taken up to position `stop`. Slicing again goes on where it stands then. The
    semantics are those of crumpets 3.0.

    Nothing is read before it is asked for: `start` items are skipped when the first chunk is
    asked for, and a chunk reads its items one by one (the first of them when the chunk itself is
    asked for, to see that there is one). As with ``itertools.groupby``, asking for the next chunk
    ends the one before it: items of it that were not read are skipped.

    Parameters
    ----------
    iterable : iterable
        Its ``iter()`` is called once, here.

    Examples
    --------
    >>> slicer = Slicer(range(10))
    >>> [list(chunk) for chunk in slicer[1:6:2]]
    [[1, 2], [3, 4], [5]]
    >>> [list(chunk) for chunk in slicer[::3]]
    [[6, 7, 8], [9]]
    """

    def __init__(self, iterable: Iterable[T]) -> None:
        self._iterator = iter(iterable)

    def __getitem__(self, item: slice) -> Iterator[Iterator[T]]:
        """Return the chunks of one slice.

        Parameters
        ----------
        item : slice
            `start` (default 0), `stop` (default: the end) and `step` (default 1, as is 0), all
            integers >= 0.

        Raises
        ------
        ValueError
            If `item` is no slice, or one of its values is negative or no integer.
        """
        if not isinstance(item, slice):
            raise ValueError(
                f"a Slicer takes a slice such as [0:100:10], got {item!r} ({type(item).__name__})"
            )
        start = _check("start", item.start)
        stop = _check("stop", item.stop)
        step = _check("step", item.step)
        return self._chunks(start or 0, stop, step or 1)

    def _chunks(self, start: int, stop: int | None, step: int) -> Iterator[Iterator[T]]:
        iterator = self._iterator
        if stop is not None:
            start = min(start, stop)  # nothing behind `stop` is read
        _skip(islice(iterator, start))
        left = None if stop is None else stop - start
        while left != 0:
            size = step if left is None else min(step, left)
            try:
                first = next(iterator)
            except StopIteration:
                return
            chunk = islice(chain((first,), iterator), size)
            yield chunk
            _skip(chunk)
            if left is not None:
                left -= size


def _skip(iterator: Iterator[Any]) -> None:
    deque(iterator, maxlen=0)


def _check(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"{name} of a slice of a Slicer must be an integer >= 0, got {value!r}")
    return number
