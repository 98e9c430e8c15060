"""The order of the samples, with the semantics of gluon 1.9.1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, cast

import numpy as np

from ..arguments import check_count
from ..origin import Part, Stand
from ..passes import LastBatch
from ..sources import check_last_batch

__all__ = [
    "BatchSampler",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "check_batch_size",
]


class Sampler:
    """Base class of samplers: subclasses define ``__iter__`` and ``__len__``."""

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__.")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__.")


class SequentialSampler(Sampler):
    """``start``, ``start + 1``, ... ``start + length - 1``.

    Parameters
    ----------
    length : int
        Number of indices, >= 0.
    start : int
        The first of them.

    Raises
    ------
    TypeError, ValueError
        If one is no integer, or `length` is negative.
    """

    def __init__(self, length: int, start: int = 0) -> None:
        self._length = check_count("length", length, 0)
        self._start = start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._start, self._start + self._length))

    def __len__(self) -> int:
        return self._length


class RandomSampler(Sampler):
    """``range(length)`` in a new random order each time, drawn from numpy's global generator.

    Parameters
    ----------
    length : int
        Number of indices, >= 0.

    Raises
    ------
    TypeError, ValueError
        If it is no integer, or negative.
    """

    def __init__(self, length: int) -> None:
        self._length = check_count("length", length, 0)

    def __iter__(self) -> Iterator[int]:
        indices = np.arange(self._length)
        np.random.shuffle(indices)
        return iter(indices.tolist())

    def __len__(self) -> int:
        return self._length


class FilterSampler(Sampler):
    """Indices of the samples that pass a test, in order; all samples are read at construction.

    Parameters
    ----------
    fn : callable
        Gets a sample; true if its index belongs to the order.
    dataset : dataset
        With ``__len__`` and ``__getitem__``.
    """

    def __init__(self, fn: Callable[[Any], Any], dataset: Any) -> None:
        self._indices = [index for index in range(len(dataset)) if fn(dataset[index])]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class IntervalSampler(Sampler):
    """Every `interval`-th index: 0, 3, 6, ..., then those that were skipped: 1, 4, 7, ...

    Parameters
    ----------
    length : int
        Number of indices to choose from, >= 0.
    interval : int
        Distance of two successive indices, >= 1.
    rollover : bool
        Whether to go on with the skipped indices until all have come.

    Raises
    ------
    TypeError, ValueError
        If one is no integer, or less than that; or if `interval` is more than `length`.
    """

    def __init__(self, length: int, interval: int, rollover: bool = True) -> None:
        self._length = check_count("length", length, 0)
        self._interval = check_count("interval", interval)
        if interval > length:
            raise ValueError(f"interval must be at most length, got {interval} and {length}")
        self._starts = range(interval if rollover else 1)

    def __iter__(self) -> Iterator[int]:
        for start in self._starts:
            yield from range(start, self._length, self._interval)

    def __len__(self) -> int:
        return sum(len(range(start, self._length, self._interval)) for start in self._starts)


class BatchSampler(Sampler):
    """Lists of `batch_size` indices each, cut from what another sampler gives.

    Parameters
    ----------
    sampler : iterable
        Gives indices, or other keys of the dataset.
    batch_size : int
        Indices of a batch, >= 1.
    last_batch : {"keep", "discard", "rollover"}
        What becomes of a short last batch: it is given, or dropped, or its indices open the first
        batch of the next pass (by this object, which keeps them; a pass that is left early keeps
        none).

    Raises
    ------
    ValueError
        If `batch_size` is no positive integer, or `last_batch` none of the three.
    """

    def __init__(
        self, sampler: Iterable[Any], batch_size: int, last_batch: LastBatch = "keep"
    ) -> None:
        self.sampler = sampler
        self.batch_size = check_batch_size(batch_size)
        self.last_batch = check_last_batch(last_batch)
        self._left: list[Any] = []  # for the next pass

    def __iter__(self) -> Iterator[list[Any]]:
        batch, self._left = self._left, []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if self.last_batch == "rollover":
            self._left = batch
        elif batch and self.last_batch == "keep":
            yield batch

    def __len__(self) -> int:
        """Batches of the next pass."""
        count = len(self._left) + len(cast(Sized, self.sampler))
        if self.last_batch == "keep":
            return -(-count // self.batch_size)
        return count // self.batch_size

    @property
    def leftovers(self) -> Part:
        """What the next pass begins with, as a part of what its order depends on."""
        return Part(self._read_left, self._write_left)

    def _read_left(self) -> Stand:
        keys = [key.item() if isinstance(key, np.generic) else key for key in self._left]
        return Stand(b"", keys)

    def _write_left(self, stand: Stand) -> None:
        self._left = list(stand.rest)


def check_batch_size(value: Any) -> int:
    """Return `value` as an int; ValueError if it is no positive integer."""
    try:
        return check_count("batch_size", value)
    except TypeError as error:
        raise ValueError(str(error)) from None
