"""Loaders with gluon's signature: ways to run them, and datasets that tell what was read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from crumpets_like.gluon import DataLoader
from tests.support.loading import wait_until

__all__ = [
    "CALLER",
    "MODES",
    "ORDERS",
    "PROCESSES",
    "THREADS",
    "WORKERS",
    "ReadLog",
    "as_lists",
    "numbers",
    "settle",
]

PROCESSES: dict[str, Any] = {"num_workers": 2}
THREADS: dict[str, Any] = {"num_workers": 2, "thread_pool": True}
WORKERS = [pytest.param(PROCESSES, id="processes"), pytest.param(THREADS, id="threads")]
CALLER = pytest.param({}, id="caller")
MODES = [CALLER, *WORKERS]
ORDERS = [
    CALLER,
    WORKERS[0],
    pytest.param(THREADS, id="threads", marks=pytest.mark.matrix),
]
"""For what the workers do not decide."""


class ReadLog:
    """A transform that notes each number it gets, from whichever process."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __call__(self, number: int) -> int:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, b"%d\n" % number)
        os.close(descriptor)
        return number

    def numbers(self) -> list[int]:
        """All of them, in the order of the reads."""
        path = Path(self._path)
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def settle(loader: DataLoader) -> None:
    """Wait until all that was requested has been made."""
    engine = loader._engine
    assert engine is not None
    assert wait_until(lambda: engine.facts().filling == 0)


def as_lists(loader: Any) -> list[Any]:
    """A pass over a loader whose batches are arrays."""
    return [batch.tolist() for batch in loader]


def numbers(batches: Any) -> list[Any]:
    """All batches, which are arrays, as one list."""
    return [number for batch in batches for number in batch.tolist()]
