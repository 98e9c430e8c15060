"""Datasets as gluon 1.9.1 has them: random access to samples, and new datasets made of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments import check_count
from .samplers import FilterSampler, Sampler, SequentialSampler

__all__ = ["ArrayDataset", "Dataset", "SimpleDataset"]


class Dataset:
    """Base class of datasets: subclasses define ``__getitem__`` and ``__len__``.

    The loader takes anything with these two: lists, numpy arrays and tensors need no class.
    """

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__.")

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__.")

    def transform(self, fn: Callable[..., Any], lazy: bool = True) -> Dataset:
        """The samples as `fn` makes them.

        Parameters
        ----------
        fn : callable
            Gets a sample; the items of one that is a tuple as so many arguments.
        lazy : bool
            True: call it whenever a sample is read. False: once for every sample, here and now.
        """
        transformed = _TransformedDataset(self, fn)
        if lazy:
            return transformed
        return SimpleDataset([transformed[index] for index in range(len(self))])

    def transform_first(self, fn: Callable[[Any], Any], lazy: bool = True) -> Dataset:
        """The samples with their first item as `fn` makes it, the others as they are.

        For transforms of the data that leave the label alone. Parameters as in `transform`.
        """
        return self.transform(_FirstItem(fn), lazy)

    def filter(self, fn: Callable[[Any], Any]) -> Dataset:
        """The samples for which `fn` is true; all are read now, and once more when asked for."""
        return self.sample(FilterSampler(fn, self))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """One of `num_shards` stretches of samples, whose lengths differ by one at most.

        Raises
        ------
        TypeError, ValueError
            If a number is no integer, or there is no such shard.
        """
        check_count("num_shards", num_shards)
        check_count("index", index, 0)
        if index >= num_shards:
            raise ValueError(f"index must be less than num_shards, got {index} and {num_shards}")
        size, longer = divmod(len(self), num_shards)
        start = size * index + min(index, longer)
        return self.sample(SequentialSampler(size + (index < longer), start))

    def take(self, count: int | None) -> Dataset:
        """The first `count` samples; all if there are fewer, or `count` is None."""
        length = len(self)
        least = length if count is None else min(check_count("count", count, 0), length)
        return self.sample(SequentialSampler(least))

    def sample(self, sampler: Sampler) -> Dataset:
        """The samples that a sampler names, in its order, which is drawn once, now.

        Raises
        ------
        TypeError
            If it is no `Sampler`.
        """
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"sampler must be a crumpets_like.gluon.Sampler, got {sampler!r} "
                f"({type(sampler).__name__})"
            )
        return _SampledDataset(self, list(sampler))


class SimpleDataset(Dataset):
    """A list, an array, or anything else with ``len`` and ``[]``, with the methods of a dataset.

    Parameters
    ----------
    data : object
        What holds the samples.
    """

    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, index: Any) -> Any:
        return self._data[index]

    def __len__(self) -> int:
        return len(self._data)


class ArrayDataset(Dataset):
    """Several lists, arrays or datasets side by side: sample i is ``(a[i], b[i], ...)``.

    A single one gives its samples as they are, not as tuples.

    Parameters
    ----------
    *args
        One or more objects of one length, each with ``len`` and ``[]``.

    Raises
    ------
    ValueError
        If there is none, or if their lengths differ.
    """

    def __init__(self, *args: Any) -> None:
        if not args:
            raise ValueError("ArrayDataset needs at least one array, got none")
        self._data = args
        self._length = len(args[0])
        for number, data in enumerate(args):
            if len(data) != self._length:
                raise ValueError(
                    f"ArrayDataset needs arrays of one length, but array 0 has {self._length} "
                    f"samples and array {number} has {len(data)}"
                )

    def __getitem__(self, index: Any) -> Any:
        if len(self._data) == 1:
            return self._data[0][index]
        return tuple(data[index] for data in self._data)

    def __len__(self) -> int:
        return self._length


class _TransformedDataset(Dataset):
    """Calls a function for each sample that is read."""

    def __init__(self, data: Dataset, fn: Callable[..., Any]) -> None:
        self._data = data
        self._fn = fn

    def __getitem__(self, index: Any) -> Any:
        sample = self._data[index]
        return self._fn(*sample) if isinstance(sample, tuple) else self._fn(sample)

    def __len__(self) -> int:
        return len(self._data)


class _SampledDataset(Dataset):
    """Samples of another dataset, by a list of their indices."""

    def __init__(self, data: Dataset, indices: list[Any]) -> None:
        self._data = data
        self._indices = indices

    def __getitem__(self, index: Any) -> Any:
        return self._data[self._indices[index]]

    def __len__(self) -> int:
        return len(self._indices)


class _FirstItem:
    """Applies a function to the first item of a sample."""

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn

    def __call__(self, first: Any, *others: Any) -> Any:
        return (self._fn(first), *others) if others else self._fn(first)
