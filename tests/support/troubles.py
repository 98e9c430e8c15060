"""Scenarios of troubles that come together, or at awkward moments."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from crumpets_like import LoaderError, LoaderTimeout, TurboDataLoader, Worker, WorkerDied
from tests.support.faults import Slow
from tests.support.loading import Items, run_items, wait_until
from tests.support.processes import named

__all__ = [
    "all_workers_hang",
    "few_descriptors",
    "folder_is_gone",
    "free_form_memory",
    "hang_behind_a_death",
    "hang_in_an_epoch_that_was_left",
    "logs_when_imported",
    "many_culprits",
    "many_records",
    "samples_of_main",
    "signals_to_all",
    "slow_setup_of_replacements",
    "start_epoch_hangs",
    "stopped_broker",
    "trainer_dies_while_modules_are_imported",
    "trainer_with_subprocesses_is_killed",
]


class Culprits(Slow):
    """Some samples hang, or end their worker."""

    def __init__(self, culprits: tuple[int, ...], hang: bool) -> None:
        super().__init__(0.001)
        self.culprits = culprits
        self.hang = hang

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample in self.culprits:
            while self.hang:
                time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare(sample, batch, buffers)


def many_culprits(start_method: str, hang: bool) -> None:
    """Each of them is skipped, in one mini-batch or in several; that costs no restarts."""
    culprits = (3, 5, 21) if hang else (3, 5, 6, 21, 40, 41)
    worker = Culprits(culprits, hang)
    options: Any = {"on_error": "skip", "timeout": 1, "start_method": start_method}
    with TurboDataLoader(range(64), 8, worker, 2, **options) as loader:
        seen = [index for _, (batch,) in loader for index in batch["x"].tolist()]
        assert seen == [index for index in range(64) if index not in culprits], seen
        assert loader.statistics().skipped == len(culprits)


class SlowSetup(Slow):
    """Takes longer to get ready than the caller's timeout."""

    def setup(self) -> None:
        time.sleep(2.5)


def slow_setup_of_replacements(start_method: str) -> None:
    """As at the start, that is not waiting."""
    with TurboDataLoader(
        range(64), 8, SlowSetup(), 2, start_method=start_method, timeout=1, prefetch=1
    ) as loader:
        iterator = iter(loader)
        seen = next(iterator)[1][0]["x"].tolist()
        for process in named("crumpets-w"):
            process.kill()
        for _, (batch,) in iterator:
            seen += batch["x"].tolist()
    assert seen == list(range(64)), seen


class HangingEpoch(Items):
    """Its second epoch never begins."""

    def start_epoch(self, epoch: int) -> None:
        while epoch:
            time.sleep(1)


def start_epoch_hangs(start_method: str) -> None:
    """The error names the worker and shows its stack."""
    with TurboDataLoader(
        range(64), 8, HangingEpoch(), 1, start_method=start_method, timeout=1
    ) as loader:
        assert run_items(loader) == list(range(64))
        with pytest.raises(LoaderTimeout) as caught:
            run_items(loader)
    assert caught.value.worker_id == 0, caught.value
    assert caught.value.index is None
    assert "in start_epoch" in caught.value.stack


def few_descriptors(start_method: str) -> None:
    """libzmq would abort the process: there is an error before it can."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
    with pytest.raises(OSError, match=r"of 30 that this process may have.*ulimit -n") as caught:
        TurboDataLoader(range(8), 8, Items(), 2, start_method=start_method).start()
    assert caught.value.errno == errno.EMFILE


@dataclasses.dataclass
class Sample:
    """A sample whose class the workers cannot import: as if it were the main module's."""

    number: int


class Numbers(Worker):
    """Looks into it."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"x": sample.number, "name": type(sample).__name__}


def samples_of_main(start_method: str) -> None:
    """Samples of an iterable may be of classes of the main module."""
    Sample.__module__ = "__main__"
    sys.modules["__main__"].Sample = Sample  # type: ignore[attr-defined]

    class Stream:
        def __iter__(self) -> Iterator[Sample]:
            return map(Sample, range(20))

    with TurboDataLoader(Stream(), 4, Numbers(), 2, start_method=start_method) as loader:
        batches = [batch for _, (batch,) in loader]
    assert [x for batch in batches for x in batch["x"].tolist()] == list(range(20))
    assert batches[0]["name"] == ["Sample"] * 4


def folder_is_gone() -> None:
    """Replacements cannot reach the broker any more: an error says why."""
    with TurboDataLoader(range(10_000), 8, Slow(), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        for folder in Path(tempfile.gettempdir()).glob("crumpets-*"):
            shutil.rmtree(folder)
        for process in named("crumpets-w"):
            process.kill()
        with pytest.raises(WorkerDied, match=r"is gone.*TMPDIR") as caught:
            for _ in iterator:
                pass
    assert "the limit of an epoch" in str(caught.value)


def signals_to_all(start_method: str) -> None:
    """A batch system signals all processes of a job: supervisor and broker leave it to this one."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    for number in numbers:
        signal.signal(number, lambda received, frame: came.append(received))
    with TurboDataLoader(
        range(400), 8, Slow(0.001), 2, start_method=start_method, restarts=20
    ) as loader:
        iterator = iter(loader)
        seen = next(iterator)[1][0]["x"].tolist()
        # Not those that are started meanwhile: a sample that meets two signals would be blamed.
        processes = [psutil.Process(), *named("crumpets-")]
        for number in numbers:
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has ended by it
                    process.send_signal(number)
        for _, (batch,) in iterator:
            seen += batch["x"].tolist()
    assert seen == list(range(400))
    assert set(came) == set(numbers)


def stopped_broker() -> None:
    """A broker that cannot run when the supervisor is killed is not left behind."""
    with TurboDataLoader(range(10_000), 8, Slow(), 2) as loader:
        iterator = iter(loader)
        next(iterator)
        (broker,), (supervisor,) = named("crumpets-broker"), named("crumpets-superv")
        broker.send_signal(signal.SIGSTOP)
        supervisor.kill()
        with pytest.raises(LoaderError, match="ended unexpectedly"):
            for _ in iterator:
                pass
    assert wait_until(lambda: not psutil.pid_exists(broker.pid) or _is_zombie(broker))


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Arrays(Worker):
    """Free-form arrays of 256 KiB."""

    def process(self, sample: Any) -> dict[str, Any]:
        time.sleep(0.0005 * (sample % 7))  # chunks of all sizes
        return {"x": np.full(1 << 15, sample)}


def free_form_memory(start_method: str) -> None:
    """A slot touches not much more than what lies in it, wherever chunks were cut."""
    options: Any = {"start_method": start_method, "shared_memory": 8}
    with TurboDataLoader(range(640), 16, Arrays(), 4, **options) as loader:
        engine: Any = loader._engine
        for _ in range(4):
            for _, (batch,) in loader:
                assert batch["x"].shape == (16, 1 << 15)
                del batch
        touched = os.fstat(engine._parts.ring.descriptor).st_blocks * 512
    data = 16 * (1 << 18)
    assert touched < 10 * 4 * data, (touched / data, "mini-batches, in 10 slots or less")


def slow_module(seconds: float) -> None:
    """Start a loader whose dataset's module takes long to import."""
    Path("slow_one.py").write_text(
        "import pathlib, time\nif 'crumpets' in pathlib.Path('/proc/self/comm').read_text():\n"
        f"    pathlib.Path('importing').touch()\n    time.sleep({seconds})\n"
        "class Data:\n    def __len__(self): return 8\n    def __getitem__(self, i): return i\n"
    )
    sys.path.insert(0, os.getcwd())
    import slow_one  # type: ignore[import-not-found]

    loader = TurboDataLoader(slow_one.Data(), 4, Items(), 2).start()
    while not Path("importing").exists():
        time.sleep(0.01)
    time.sleep(60)
    loader.stop()


def trainer_dies_while_modules_are_imported() -> None:
    """Then nothing waits for its death; it ends the supervisor all the same."""
    pid = os.fork()
    if pid == 0:
        with warnings.catch_warnings():
            slow_module(20)
        os._exit(1)
    assert wait_until(lambda: Path("importing").exists())
    helpers = named("crumpets-")
    assert helpers
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert wait_until(lambda: all(_is_zombie(helper) for helper in helpers), 2.0), helpers
    Path("importing").unlink()
    Path("slow_one.py").unlink()
    shutil.rmtree("__pycache__", ignore_errors=True)


class HangsOnce(Slow):
    """Some samples take for ever: those of `once` the first time only."""

    def __init__(self, once: tuple[int, ...] = (), deadly: tuple[int, ...] = ()) -> None:
        super().__init__(0.001)
        self.once = once
        self.deadly = deadly

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        mark = Path(f"hung {sample}")
        if sample in self.once and not mark.exists():
            mark.touch()
            time.sleep(1000)
        if sample in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare(sample, batch, buffers)


def hang_in_an_epoch_that_was_left(start_method: str, max_buffers: int | None) -> None:
    """Nobody wants that sample any more, but its worker, or its buffer, is what all else needs."""
    options: Any = {"start_method": start_method, "timeout": 1, "max_buffers": max_buffers}
    with TurboDataLoader(range(32), 8, HangsOnce((9,)), 1, prefetch=2, **options) as loader:
        next(iter(loader))
        assert wait_until(Path("hung 9").exists)
        for _ in range(2):
            assert run_items(loader, "x") == list(range(32))


def hang_behind_a_death(start_method: str) -> None:
    """Rows of a dead worker wait, while the only worker hangs at younger ones."""
    options: Any = {"start_method": start_method, "on_error": "skip", "timeout": 1, "restarts": 500}
    worker = HangsOnce((76,), deadly=(20,))
    with TurboDataLoader(range(200), 6, worker, 1, num_mini_batches=2, **options) as loader:
        assert run_items(loader, "x") == [n for n in range(200) if n not in (20, 76)]


def logs_when_imported(start_method: str) -> None:
    """What a module says while workers, or who forks them, import it, reaches these handlers."""
    Path("talking_one.py").write_text(
        "import logging\nlogging.getLogger(__name__).warning('imported in %s', 'full')\n"
        "class Data:\n    def __len__(self): return 8\n    def __getitem__(self, i): return i\n"
    )
    sys.path.insert(0, os.getcwd())
    import talking_one  # type: ignore[import-not-found]

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign, assignment]
    logging.getLogger().addHandler(handler)
    with TurboDataLoader(talking_one.Data(), 4, Items(), 2, start_method=start_method) as loader:
        assert run_items(loader) == list(range(8))
        helpers = {"forkserver": {"crumpets-superv"}, "spawn": {"crumpets-w0", "crumpets-w1"}}
        expected = helpers[start_method]
        assert wait_until(lambda: {record.processName for record in records} == expected), records
    assert {(record.name, record.getMessage()) for record in records} == {
        ("talking_one", "imported in full")
    }


class Talks(Items):
    """Logs a lot."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        for number in range(10_000):
            logging.getLogger("talks").info("%d of sample %d", number, sample)
        super().prepare(sample, batch, buffers)


def many_records(start_method: str) -> None:
    """They come faster than they are handled; all of them arrive."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("talks")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with TurboDataLoader(range(2), 2, Talks(), 1, start_method=start_method) as loader:
        assert run_items(loader) == [0, 1]
        assert wait_until(lambda: len(records) >= 20_000), len(records)  # some of the next epoch
    assert records[:20_000] == [
        f"{number} of sample {n}" for n in range(2) for number in range(10_000)
    ]


class HasSubprocess(Items):
    """Reads through another program."""

    def setup(self) -> None:
        subprocess.Popen(["sleep", "1000"])


def trainer_with_subprocesses_is_killed(start_method: str) -> None:
    """What workers have started ends with them."""
    with TurboDataLoader(range(8), 4, HasSubprocess(), 2, start_method=start_method) as loader:
        assert run_items(loader) == list(range(8))
        os.kill(os.getpid(), signal.SIGKILL)


def trainer_with_subprocesses_in_limbo(start_method: str) -> None:
    """As when it is killed: its files are closed, but its end cannot be seen yet."""
    with TurboDataLoader(range(8), 4, HasSubprocess(), 2, start_method=start_method) as loader:
        assert run_items(loader) == list(range(8))
        loader._engine._parts._supervisor._channel.close()  # type: ignore[union-attr]
        os.kill(os.getpid(), signal.SIGSTOP)


class AllHang(Items):
    """As where a file server does not answer."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        time.sleep(1000)


def all_workers_hang(start_method: str, nworkers: int) -> None:
    """The first error names one of them, and shows its stack."""
    with (
        TurboDataLoader(
            range(640), 32, AllHang(), nworkers, start_method=start_method, timeout=1
        ) as loader,
        pytest.raises(LoaderTimeout) as caught,
    ):
        next(iter(loader))
    assert caught.value.index is not None, caught.value
    assert "in prepare" in caught.value.stack, caught.value
