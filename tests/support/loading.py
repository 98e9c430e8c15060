"""Workers that hand their samples on, and what a loader yields as plain lists."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import BufferWorker, TurboDataLoader

__all__ = ["START_METHODS", "Items", "items", "run_epoch", "run_items", "wait_until"]

START_METHODS = ("fork", "forkserver", "spawn", "thread")


class Items(BufferWorker):
    """Puts each sample, an integer, into the field ``item``."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("item", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["item"][...] = sample


def items(mini_batches: list[dict[str, Any]], key: str = "item") -> list[Any]:
    """One field of a batch, as one list."""
    return [
        value.item() if isinstance(value, np.generic) else value
        for mini_batch in mini_batches
        for value in mini_batch[key]
    ]


def run_epoch(loader: TurboDataLoader, key: str = "item") -> list[list[Any]]:
    """One epoch: a list for each batch."""
    return [items(mini_batches, key) for _, mini_batches in loader]


def run_items(loader: TurboDataLoader, key: str = "item") -> list[Any]:
    """One epoch as one list."""
    return [value for batch in run_epoch(loader, key) for value in batch]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether a condition that other processes bring about comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
