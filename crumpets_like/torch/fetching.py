"""From the keys of a batch to the batch, or from an iterable dataset to its next batch.

The semantics are those of the fetchers of torch 2.13 (``torch/utils/data/_utils/fetch.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from ..broker.encoding import Arena
from .collating import collate_fast, foreign_collate_functions

__all__ = ["Fetcher", "MapFetcher", "StreamFetcher", "make_fetcher"]


class Fetcher:
    """Makes batches of a dataset.

    Parameters
    ----------
    dataset : Dataset or IterableDataset
        As torch's.
    collate_fn : callable
        Gets the list of samples of a batch or, where there are no batches, the sample.
    batched : bool
        Whether there are batches.
    drop_last : bool
        Whether a stream ends before a short batch.

    Attributes
    ----------
    key : object
        Of the current sample, for error messages; None where it is not known.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, drop_last: bool
    ) -> None:
        self.key: Any = None
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._fast = collate_fn is default_collate and not foreign_collate_functions()
        self._batched = batched
        self._drop_last = drop_last

    def fetch(self, what: Any, arena: Arena | None = None) -> Any:
        """The next batch; large results of torch's default collate are made in `arena`."""
        raise NotImplementedError

    def _collate(self, samples: list[Any], arena: Arena | None) -> Any:
        return collate_fast(samples, arena) if self._fast else self._collate_fn(samples)


class MapFetcher(Fetcher):
    """Batches of the keys that are asked for."""

    def fetch(self, what: Any, arena: Arena | None = None) -> Any:
        """The batch of the keys, or the sample of the key, `what`."""
        dataset = self._dataset
        if not self._batched:
            self.key = what
            return self._collate_fn(dataset[what])
        getitems = getattr(dataset, "__getitems__", None)
        if getitems:
            samples = getitems(what)
        else:
            samples = []
            for self.key in what:
                samples.append(dataset[self.key])
        self.key = None
        return self._collate(samples, arena)


class StreamFetcher(Fetcher):
    """Batches of an iterable dataset, from its beginning to its end."""

    def __init__(
        self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, drop_last: bool
    ) -> None:
        super().__init__(dataset, collate_fn, batched, drop_last)
        self._stream = iter(dataset)
        self._ended = False

    def fetch(self, what: Any, arena: Arena | None = None) -> Any:
        """The next batch, with one sample for each item of `what`, or the next sample.

        Raises
        ------
        StopIteration
            At the end of the dataset.
        """
        if self._ended:
            raise StopIteration
        if not self._batched:
            return self._collate_fn(next(self._stream))
        samples = [sample for _, sample in zip(what, self._stream, strict=False)]
        self._ended = len(samples) < len(what)
        if not samples or (self._drop_last and self._ended):
            raise StopIteration
        return self._collate(samples, arena)


def make_fetcher(
    dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, drop_last: bool
) -> Fetcher:
    """The fetcher for a kind of dataset."""
    kind = StreamFetcher if isinstance(dataset, IterableDataset) else MapFetcher
    return kind(dataset, collate_fn, batched, drop_last)
