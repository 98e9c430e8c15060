"""How a worker gets its samples: from the dataset or a message, at once or one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from .failures import add_note, rebuild_exception, unpack_errors
from .pickling import load_object
from .protocol import Kind
from .segment import Stage
from .standing import Standing

__all__ = ["Pickled", "Reader"]


class Pickled(Sequence[Any]):
    """Samples or keys that have travelled: each is unpickled when its turn comes.

    So what goes wrong there is the fault of that sample, like all that is done with it later.
    """

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames = frames

    def __len__(self) -> int:
        return len(self._frames)

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> Pickled: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return Pickled(self._frames[row])
        try:
            return load_object(self._frames[row])
        except BaseException as error:
            add_note(error, "While it was unpickled in a worker.")
            raise


class _Keyed:
    """Samples of a dataset by the rows of their keys."""

    def __init__(self, dataset: Any, keys: Sequence[Any]) -> None:
        self._dataset = dataset
        self._keys = keys

    def __getitem__(self, row: int) -> Any:
        return self._dataset[self._keys[row]]


class _OneByOne:
    """A dataset that is usually read in bulk, sample by sample."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self._dataset.__getitems__([key])[0]


class _Lossy:
    """Samples of which some have ended a worker: getting one of those raises that error."""

    def __init__(
        self, source: Any, names: Sequence[Any], first: int, lost: dict[int, bytes]
    ) -> None:
        self._source = source
        self._names = names
        self._first = first
        self._lost = lost

    def __getitem__(self, row: int) -> Any:
        if self._first + row in self._lost:
            raise rebuild_exception(self._lost[self._first + row])
        return self._source[self._names[row]]


class Reader:
    """Gets the samples of a chunk.

    Parameters
    ----------
    standing : Standing
        Tells what is being read.
    dataset : object or None
        What indices and keys refer to.
    """

    def __init__(self, standing: Standing, dataset: Any) -> None:
        self._standing = standing
        self._lost: dict[int, bytes] = {}
        self._singly = False
        self.use_dataset(dataset)

    def use_dataset(self, dataset: Any) -> None:
        """From now on indices refer to this dataset."""
        self.dataset = dataset
        self._is_array = isinstance(dataset, np.ndarray)
        self._has_getitems = callable(getattr(dataset, "__getitems__", None))

    def begin(self, lost: bytes) -> None:
        """A new part. `lost`: its samples that have ended a worker, and how; see `run_part`."""
        self._singly = bool(lost)
        self._lost = dict(unpack_errors(lost)) if lost else {}

    def source(self, keys: Any, row: int = 0, singly: bool = False) -> tuple[Any, Sequence[Any]]:
        """What to index, and by what, to get each sample.

        Parameters
        ----------
        keys : ndarray of int64, or sequence of keys or samples
            One for each.
        row : int
            Row of the first one in its part.
        singly : bool
            Whether each is read by itself also if the dataset can read several at once.
        """
        kind, rows = self._standing.kind, range(len(keys))
        source, names = self.dataset, rows
        if kind is Kind.SAMPLES:
            source = keys
        else:
            if self._in_bulk(kind):
                if not singly and not self._singly:
                    return self._read(keys), rows
                if self._has_getitems:
                    source = _OneByOne(source)
            if kind is Kind.KEYS:
                source = _Keyed(source, keys)
            else:
                names = keys.tolist()
        if self._lost:
            return _Lossy(source, names, self._standing.first + row, self._lost), rows
        return source, names

    def samples(self, keys: Any, row: int) -> Any:
        """All samples of a chunk, that of `row` first."""
        first = self._standing.first + row
        self._standing.enter(Stage.SAMPLE, first)
        source, names = self.source(keys, row)
        if isinstance(names, range) and not isinstance(source, Pickled | _Keyed | _Lossy):
            return source  # they are there already
        samples = []
        cell = self._standing.cell
        for position, name in enumerate(names, first):
            cell[0] = position
            samples.append(source[name])
        return samples

    def _in_bulk(self, kind: Kind) -> bool:
        bulk = self._has_getitems or (self._is_array and kind is Kind.INDICES)
        return bulk and not self._standing.reseeds

    def _read(self, keys: Any) -> Any:
        """All of them in one call."""
        standing = self._standing
        standing.enter(Stage.SAMPLES if len(keys) > 1 else Stage.SAMPLE)
        if self._is_array:
            samples = self.dataset[keys]
        else:
            indices = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
            samples = self.dataset.__getitems__(indices)
            if len(samples) != len(indices):
                raise ValueError(
                    f"dataset.__getitems__ returned {len(samples)} samples for {len(indices)} "
                    "indices."
                )
        standing.enter(Stage.SAMPLE)
        return samples
