"""Scenarios with processes that end when they should not."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from crumpets_like import BufferWorker, LoaderError, TurboDataLoader, WorkerDied

__all__ = ["deadly_sample", "endless", "helper_killed", "one_death", "stopped_workers"]

DEATHS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
}


class Deadly(BufferWorker):
    """Sample 17 ends its worker: always, or only if `mark` does not exist yet."""

    def __init__(self, death: str, mark: str | None = None) -> None:
        super().__init__()
        self.add_buffer("x", ((), np.int64))
        self.death = death
        self.mark = mark

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        if sample == 17 and (self.mark is None or not Path(self.mark).exists()):
            if self.mark is not None:
                Path(self.mark).touch()
            DEATHS[self.death]()
        buffers["x"][...] = sample
        batch["draw"].append(float(self.rng.random()))


def deadly_sample(start_method: str, death: str) -> None:
    """A sample ends every worker that tries it."""
    seen: list[list[int]] = []
    died = None
    with TurboDataLoader(range(64), 8, Deadly(death), 4, start_method=start_method) as loader:
        try:
            for _, (mini_batch,) in loader:
                seen.append(mini_batch["x"].tolist())
        except WorkerDied as error:
            died = error
    assert seen == [list(range(8)), list(range(8, 16))], seen
    assert died is not None
    assert died.index == 17, died
    assert str(died.pid) in str(died), died
    assert "index 17" in str(died), died
    expected = {"SIGKILL": "SIGKILL", "SIGSEGV": "SIGSEGV"}.get(death)
    assert died.signal_name == expected, died
    assert died.exit_code == {"exit 0": 0, "exit 3": 3}.get(death, died.exit_code), died


def one_death(start_method: str, death: str) -> None:
    """A worker ends once: its work is done again, and nothing shows it."""
    runs = []
    for mark in (None, "died"):
        worker = Deadly(death, mark) if mark else Deadly(death, __file__)
        with TurboDataLoader(range(64), 8, worker, 4, start_method=start_method, seed=0) as loader:
            batches = [mini_batch for _, (mini_batch,) in loader]
            runs.append([(b["x"].tolist(), b["draw"]) for b in batches])
    assert Path("died").exists()
    Path("died").unlink()
    assert [x for xs, _ in runs[0] for x in xs] == list(range(64))
    assert runs[0] == runs[1]


class Slow(BufferWorker):
    """Takes its time."""

    def __init__(self, seconds: float = 0.01) -> None:
        super().__init__()
        self.add_buffer("x", ((), np.int64))
        self.seconds = seconds

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        time.sleep(self.seconds)
        buffers["x"][...] = sample


def _named(name: str) -> psutil.Process:
    family = psutil.Process().children(recursive=True)
    return next(process for process in family if process.name().startswith(name))


def helper_killed(name: str) -> None:
    """The broker or the supervisor is killed: the caller hears of it within a second."""
    with TurboDataLoader(range(100_000), 8, Slow(), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        _named(name).kill()
        killed = time.monotonic()
        with pytest.raises(LoaderError, match="ended unexpectedly"):
            for _ in iterator:
                pass
        assert time.monotonic() - killed < 1, time.monotonic() - killed
    with TurboDataLoader(range(16), 8, Slow(), 2) as loader:  # the next one works
        assert len(list(loader)) == 2


def stopped_workers() -> None:
    """Workers that do not run any more do not keep the caller from leaving."""
    with TurboDataLoader(range(100_000), 8, Slow(), 3) as loader:
        next(iter(loader))
        for process in psutil.Process().children(recursive=True):
            if process.name().startswith("crumpets-w"):
                process.send_signal(signal.SIGSTOP)
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 2, time.monotonic() - leaving


def endless() -> None:
    """Iterate until somebody ends this process."""
    loaders = [TurboDataLoader(range(100_000), 8, Slow(), 2).start() for _ in range(3)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    print("running", flush=True)
    while True:
        for iterator in iterators:
            next(iterator)


def stop_while_starting(start_method: str) -> None:
    """Workers that are in `setup` end at once, also where SIGHUP was ignored (nohup)."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with TurboDataLoader(range(8), 8, SlowSetup(), 2, start_method=start_method):
        deadline = time.monotonic() + 20
        while not Path("started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 0.7, time.monotonic() - leaving
    Path("started").unlink()


class SlowSetup(Slow):
    """Takes long to get ready."""

    def setup(self) -> None:
        Path("started").touch()
        time.sleep(30)
