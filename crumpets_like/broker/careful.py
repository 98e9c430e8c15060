"""Samples that are made one by one, when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from .failures import add_note, rebuild_exception
from .pickling import load_object

__all__ = ["Keyed", "Lossy", "OneByOne", "Pickled", "is_lazy"]


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


class Keyed:
    """Samples of a dataset by the rows of their keys."""

    def __init__(self, dataset: Any, keys: Sequence[Any]) -> None:
        self._dataset = dataset
        self._keys = keys

    def __getitem__(self, row: int) -> Any:
        return self._dataset[self._keys[row]]


class OneByOne:
    """A dataset that is usually read in bulk, sample by sample."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self._dataset.__getitems__([key])[0]


class Lossy:
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


def is_lazy(source: Any) -> bool:
    """Whether the samples of `source`, by row, are not there already."""
    return isinstance(source, Pickled | Keyed | Lossy)
