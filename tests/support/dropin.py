"""Datasets and loaders for the tests of the drop-in loader; needs torch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from torch.utils import data

from crumpets_like.torch import DataLoader

__all__ = ["Made", "Numbers", "die_at_seven", "forked", "kill_once", "loads", "values"]


class Made(data.Dataset[Any]):
    """Samples that a function makes of their index."""

    def __init__(self, make: Callable[[int], Any] = int, length: int = 10) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Numbers(data.IterableDataset[Any]):
    """A worker's share of some numbers."""

    def __init__(self, length: int = 12, make: Callable[[int], Any] = int) -> None:
        self.length = length
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        info: Any = data.get_worker_info()
        for number in range(info.id, self.length, info.num_workers):
            yield self.make(number)


def forked(dataset: Any, num_workers: int = 2, **options: Any) -> Any:
    """A loader that starts quickly."""
    return DataLoader(dataset, num_workers=num_workers, multiprocessing_context="fork", **options)


def loads(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes loaders that start quickly, and closes them at the end of the test."""

    def make(dataset: Any, num_workers: int = 2, **options: Any) -> Any:
        loader = forked(dataset, num_workers, **options)
        request.addfinalizer(loader.close)
        return loader

    return make


def values(loader: Iterable[Any]) -> list[Any]:
    """All values of one pass as one list."""
    return [value for batch in loader for value in batch.tolist()]


def kill_once(index: int) -> int:
    """Ends the first worker that reads sample 5 while there is a folder ``alive``."""
    if index == 5:
        try:
            os.rmdir("alive")
        except FileNotFoundError:
            return index
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def die_at_seven(number: int) -> int:
    """Ends every worker that reads number 7."""
    if number == 7:
        os._exit(3)
    return number
