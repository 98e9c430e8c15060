"""Samplers and iterables that record what is read of them, and epochs as lists of lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from crumpets_like.epochs import Planner
from crumpets_like.passes import EpochPlan

__all__ = ["Lying", "OwnIterator", "Sized", "Unsized", "epochs", "planner", "reference", "rows"]


class Unsized:
    """Re-iterable, without a length."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)
        self.read = 0  # items that were read
        self.passes = 0  # calls of iter()
        self.finished = 0  # passes that were read beyond their last item

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return self._steps()

    def _steps(self) -> Iterator[Any]:
        for item in self.items:
            self.read += 1
            yield item
        self.finished += 1


class Sized(Unsized):
    """Re-iterable, with a length."""

    def __len__(self) -> int:
        return len(self.items)


class Lying(Unsized):
    """Re-iterable, with a length that is not that of its items."""

    def __init__(self, items: Iterable[Any], length: int) -> None:
        super().__init__(items)
        self.length = length

    def __len__(self) -> int:
        return self.length


class OwnIterator:
    """Its own iter(), over 0, 1, 2, ... length - 1."""

    def __init__(self, length: int) -> None:
        self.items = iter(range(length))
        self.read = 0

    def __iter__(self) -> OwnIterator:
        return self

    def __next__(self) -> int:
        item = next(self.items)
        self.read += 1
        return item


def planner(iterable: Any, batch_size: Any, **options: Any) -> Planner:
    return Planner(iterable, batch_size, **{"seed": 0, **options})


def rows(plan: EpochPlan) -> list[list[int]]:
    return [[int(item) for item in batch] for batch in plan]


def epochs(planner: Planner, count: int) -> list[list[list[int]]]:
    """Return `count` epochs as lists, each with the number of iterations that was announced."""
    result = []
    for _ in range(count):
        iterations = planner.iterations()
        plan = planner.open()
        assert plan.iterations == iterations
        result.append(rows(plan))
        if iterations is not None:
            assert len(result[-1]) == iterations
    return result


def reference(
    length: int,
    batch_size: int,
    last_batch: str,
    count: int,
    orders: list[list[int]] | None = None,
) -> list[list[list[int]]]:
    """Return `count` epochs of one pass each, made of lists."""
    result: list[list[list[int]]] = []
    left: list[int] = []
    for epoch in range(count):
        keys = left + (orders[epoch] if orders else list(range(length)))
        batches = [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]
        left = []
        if last_batch != "keep" and batches and len(batches[-1]) < batch_size:
            short = batches.pop()
            left = short if last_batch == "rollover" else []
        result.append(batches)
    return result
