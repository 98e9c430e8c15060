"""Reading samples of which some have ended a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .failures import rebuild_exception

__all__ = ["Lossy", "OneByOne"]


class OneByOne:
    """A dataset that is usually read in bulk, sample by sample."""

    def __init__(self, getitems: Any, dataset: Any) -> None:
        self._getitems = getitems
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self._getitems([key])[0] if callable(self._getitems) else self._dataset[key]


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
