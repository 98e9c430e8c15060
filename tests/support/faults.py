"""Scenarios with processes that end when they should not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from crumpets_like import BufferWorker, LoaderError, LoaderTimeout, TurboDataLoader, WorkerDied
from tests.support.loading import wait_until
from tests.support.processes import MARK, named

__all__ = [
    "deadly_sample",
    "endless",
    "helper_killed",
    "killed_from_outside",
    "killed_trainers",
    "killed_while_writing",
    "no_more_restarts",
    "one_death",
    "sleeps_for_ever",
    "stopped_workers",
]

DEATHS: dict[str, Callable[[], object]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "SIGABRT": os.abort,
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(),
    "sys.exit 3": lambda: sys.exit(3),
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
        latest = time.monotonic()
        try:
            for _, (mini_batch,) in loader:
                seen.append(mini_batch["x"].tolist())
                latest = time.monotonic()
        except WorkerDied as error:
            died = error
        seconds = time.monotonic() - latest
    assert seconds < (3 if start_method == "spawn" else 1), seconds
    assert seen == [list(range(8)), list(range(8, 16))], seen
    assert died is not None
    assert died.index == 17, died
    assert str(died.pid) in str(died), died
    assert "index 17" in str(died), died
    assert (died.epoch, died.batch) == (0, 2), died
    signal_name = death if death.startswith("SIG") else None
    assert died.signal_name == signal_name, died
    if signal_name is None:
        assert died.exit_code == (3 if death.endswith("3") else 0), died
    # A crash says where it happened, in the error and nowhere else.
    assert ("in prepare" in str(died)) == (death in ("SIGSEGV", "SIGABRT")), died


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


class Drawn(BufferWorker):
    """Hands on the sample and a draw; takes some time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.add_buffer("x", ((), np.int64))
        self.add_buffer("draw", ((), np.float64))
        self.seconds = seconds

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        time.sleep(self.seconds)
        buffers["x"][...] = sample
        buffers["draw"][...] = self.rng.random()


def _kill_workers(kills: int, together: bool, rng: random.Random) -> int:
    """Kill running workers; returns how many."""
    workers = named("crumpets-w")
    chosen = workers if together else rng.sample(workers, min(kills, len(workers)))
    for process in chosen:  # or the first one's sample may meet the end of the next one, too
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in chosen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return len(chosen)


def killed_from_outside(start_method: str, when: str, kills: int, samples: int) -> None:
    """Workers are killed again and again: nothing is lost, doubled, or different.

    `when` is "idle" (all buffers are full), "working", or "together" (all at once).
    """
    rng = random.Random(0)
    worker = Drawn(0.0 if when == "idle" else 0.004)
    runs = []
    for kill in (False, True):
        found: list[tuple[int, float]] = []
        done = 0
        with TurboDataLoader(
            range(samples),
            8,
            worker,
            4,
            start_method=start_method,
            seed=5,
            shuffle=True,
            restarts=2 * kills,
        ) as loader:
            for iteration, (mini_batch,) in loader:
                found += zip(mini_batch["x"].tolist(), mini_batch["draw"].tolist(), strict=True)
                due = min(kills, iteration * kills * 10 // samples)
                while kill and done < due:
                    if when == "idle":
                        time.sleep(0.3)
                    killed = _kill_workers(2, when == "together", rng)
                    done += killed
                    if not killed:  # all of them are starting
                        break
        assert done >= kills or not kill, done
        runs.append(found)
    assert sorted(x for x, _ in runs[0]) == list(range(samples))
    assert runs[0] == runs[1]


def no_more_restarts(start_method: str) -> None:
    """One more death than `restarts` allows: an error, and only then."""
    died = None
    with TurboDataLoader(
        range(10_000), 8, Slow(), 2, start_method=start_method, restarts=2
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        for _ in range(2):
            pids = {process.pid for process in named("crumpets-w")}
            _kill_workers(1, False, random.Random(1))
            while len({process.pid for process in named("crumpets-w")} - pids) < 1:
                next(iterator)
            for _ in range(20):  # or the next one might die of the same sample, which is to blame
                next(iterator)
        _kill_workers(1, False, random.Random(1))
        try:
            for _ in iterator:
                pass
        except WorkerDied as error:
            died = error
    assert died is not None
    assert "2 were, the limit of an epoch" in str(died), died
    assert died.signal_name == "SIGKILL"


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


def helper_killed(name: str) -> None:
    """The broker or the supervisor is killed: the caller hears of it within a second."""
    with TurboDataLoader(range(100_000), 8, Slow(), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        named(name)[0].kill()
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
        for process in named("crumpets-w"):
            process.send_signal(signal.SIGSTOP)
        leaving = time.monotonic()
    assert time.monotonic() - leaving < 2, time.monotonic() - leaving


class HalfWritten(BufferWorker):
    """Waits to be killed in the middle of writing sample 17, but only once."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("x", ((1000,), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][:500] = -1 - sample
        if sample == 17 and self.epoch == 0 and not Path("killed").exists():
            Path("writes").write_text(str(os.getpid()))
            _for_ever()
        buffers["x"][...] = sample
        batch["name"].append(f"sample {sample}")


def _kill_the_writer() -> None:
    while not (text := _read("writes")):
        time.sleep(0.002)
    Path("killed").touch()
    os.kill(int(text), signal.SIGKILL)


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def killed_while_writing(start_method: str) -> None:
    """A row that a killed worker has begun is written anew, and nothing of it shows before."""
    killer = threading.Thread(target=_kill_the_writer)
    killer.start()
    with TurboDataLoader(range(64), 8, HalfWritten(), 4, start_method=start_method) as loader:
        for iteration, (mini_batch,) in loader:
            expected = list(range(8 * iteration, 8 * iteration + 8))
            assert (mini_batch["x"] == np.array(expected)[:, None]).all(), mini_batch["x"]
            assert mini_batch["name"] == [f"sample {index}" for index in expected]
    killer.join()
    Path("writes").unlink()
    Path("killed").unlink()


def _orphans() -> list[psutil.Process]:
    """Processes of loaders that stem from this one, which may have been between."""
    found = []
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("crumpets-"):
                found += [process] if process.environ().get(MARK) == os.environ[MARK] else []
    return found


def killed_trainers(times: int) -> None:
    """The training process is killed, with three loaders: nothing is left, the next one works."""
    rng = random.Random(4)
    before = set(os.listdir(tempfile.gettempdir()))
    for _ in range(times):
        command = [sys.executable, "-c", "from tests.support.faults import endless; endless()"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as trainer:
            assert trainer.stdout is not None
            assert trainer.stdout.readline() == b"running\n"
            time.sleep(0.2 * rng.random())
            trainer.kill()
        assert wait_until(lambda: not _orphans(), 2.0), _orphans()
        assert set(os.listdir(tempfile.gettempdir())) == before
    with TurboDataLoader(range(16), 8, Slow(), 2) as loader:
        assert len(list(loader)) == 2
    time.sleep(3)  # until the last of the children has ended


def _fork_a_child() -> None:
    """A process of the user, which has all descriptors of this one and outlives it."""
    trainer = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork():
            return
    while os.getppid() == trainer:
        time.sleep(0.05)
    time.sleep(2.5)
    os._exit(0)


def endless() -> None:
    """Iterate until somebody ends this process."""
    loaders = [TurboDataLoader(range(100_000), 8, Slow(), 2).start() for _ in range(3)]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    _fork_a_child()
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


class Sleeps(Drawn):
    """Sample 5 takes for ever."""

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        if sample == 5:
            _for_ever()
        super().prepare(sample, batch, buffers)


def _for_ever() -> None:
    while True:
        time.sleep(1)


def sleeps_for_ever(start_method: str, on_error: str) -> None:
    """A sample that hangs is named, with the worker's stack, and the worker is replaced."""
    options: Any = {"start_method": start_method, "timeout": 2, "on_error": on_error}
    seen: list[int] = []
    timeout = None
    with TurboDataLoader(range(32), 4, Sleeps(0), 2, **options) as loader:
        iterator = iter(loader)
        seen += next(iterator)[1][0]["x"].tolist()
        engine: Any = loader._engine
        assert wait_until(lambda: engine.facts().up_since is not None)  # until then nothing counts
        pids = {process.pid for process in named("crumpets-w")}
        began = time.monotonic()
        try:
            for _, (mini_batch,) in iterator:
                if len(seen) == 4:
                    waited = time.monotonic() - began
                seen += mini_batch["x"].tolist()
        except LoaderTimeout as error:
            timeout = error
            waited = time.monotonic() - began
        assert 2 <= waited < (4 if on_error == "raise" else 8), waited  # 2 on an idle machine
        if on_error == "skip":
            assert seen == [n for n in range(32) if n != 5], seen
            assert loader.statistics().skipped == 1
            return
    assert seen == list(range(4)), seen
    assert timeout is not None
    assert timeout.index == 5, timeout
    assert timeout.pid in pids, (timeout, pids)
    assert "_for_ever" in timeout.stack, timeout
    assert timeout.stack.rstrip() in str(timeout)
