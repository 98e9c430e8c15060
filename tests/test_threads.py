"""Threads that use one loader at once, and loaders that are used while the interpreter exits."""

from __future__ import annotations

import atexit
import copy
import gc
import os
import pickle
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from crumpets_like import LoaderClosed, TurboDataLoader
from crumpets_like.broker import parts
from tests.support.loading import Items, run_items, wait_until
from tests.support.matrix import start_methods
from tests.support.processes import named
from tests.support.scenario import run_scenario

START_METHODS = start_methods("fork", "forkserver", "thread")


class Stream:
    """An iterable that starts anew in each pass."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(200))


def iterate_in_threads(dataset: Any, nworkers: int, start_method: str, seconds: float) -> None:
    """Several threads begin epochs all the time: each is complete, or ends with a clear error."""
    ends: Counter[str] = Counter()
    expected = list(range(200))
    deadline = time.monotonic() + seconds

    def use(loader: TurboDataLoader) -> None:
        while time.monotonic() < deadline:
            came: list[int] = []
            try:
                for _, (batch,) in loader:
                    came += batch["item"].tolist()
                ends["complete"] += came == expected
                ends["wrong"] += came != expected
            except LoaderClosed as error:
                ends["wrong"] += came != expected[: len(came)]
                ends["closed" if "newer one" in str(error) or "anew" in str(error) else "?"] += 1
            except Exception as error:  # noqa: BLE001  whatever it is, it must not be
                ends[repr(error)] += 1

    with TurboDataLoader(
        dataset, 5, Items(), nworkers, start_method=start_method, timeout=20
    ) as loader:
        engine = loader._engine
        threads = [threading.Thread(target=use, args=(loader,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loader._engine is engine, "nothing was interrupted: the workers go on"
        assert ends.keys() <= {"complete", "closed", "wrong"}, ends
        assert not ends["wrong"], ends
        assert ends["closed"], ends
        for _ in range(3):
            assert run_items(loader) == expected
        assert wait_until(lambda: loader.statistics().buffers_held == 0)


@pytest.mark.parametrize(("dataset", "nworkers"), [(range(200), 2), (Stream(), 2), (range(200), 0)])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_epochs_in_threads(dataset: Any, nworkers: int, start_method: str) -> None:
    run_scenario(iterate_in_threads, dataset, nworkers, start_method, 2.0, timeout=60).check()


class Waits(Items):
    """Sample 4 waits for ever."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        while sample == 4 and self.epoch == 0:
            time.sleep(1)
        super().prepare(sample, batch, buffers)


def begin_while_another_thread_waits() -> None:
    """A new epoch does not wait for the batch that another thread waits for."""
    caught: list[BaseException] = []

    def wait(iterator: Iterator[Any]) -> None:
        try:
            next(iterator)
        except LoaderClosed as error:
            caught.append(error)

    with TurboDataLoader(range(8), 4, Waits(), 2, start_method="fork", timeout=None) as loader:
        iterator = iter(loader)
        next(iterator)
        thread = threading.Thread(target=wait, args=(iterator,))
        thread.start()
        assert wait_until(lambda: loader._current is not None and loader._current.torn)
        another = iter(loader)
        thread.join()
        assert "iterated anew" in str(caught[0])
        del another
        loader.stop()
        loader.start()
        assert next(iter(loader))[1][0]["item"].tolist() == [0, 1, 2, 3]


def test_an_epoch_begins_while_another_thread_waits() -> None:
    run_scenario(begin_while_another_thread_waits, timeout=60).check()


def start_in_threads() -> None:
    """One of them starts the workers, all of them get these."""
    loader = TurboDataLoader(range(8), 4, Items(), 2)
    threads = [threading.Thread(target=loader.start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run_items(loader) == list(range(8))
    assert len(named("crumpets-broker")) == 1
    loader.stop()


def test_starts_in_threads() -> None:
    run_scenario(start_in_threads, timeout=60).check()


# -- the exit of the interpreter -------------------------------------------------------------


def use_at_exit(nworkers: int, early: bool) -> None:
    """Use a loader in an exit handler, registered before or after its start."""
    found: list[Any] = []

    def use() -> None:
        try:
            found.append(run_items(loader))
            found.append(loader.statistics().samples)
        except LoaderClosed as error:
            found.append(str(error))
        print(found)

    if early:
        atexit.register(use)
    loader = TurboDataLoader(range(8), 4, Items(), nworkers).start()
    if not early:
        atexit.register(use)
    assert run_items(loader) == list(range(8))


@pytest.mark.parametrize("nworkers", [0, 2])
@pytest.mark.parametrize("early", [False, True])
def test_an_exit_handler(nworkers: int, early: bool) -> None:
    result = run_scenario(use_at_exit, nworkers, early).check()
    if early:
        assert "stopped by the exit of the interpreter" in result.stdout
    else:
        assert result.stdout.startswith("[[0, 1, 2, 3, 4, 5, 6, 7], 16]")
    assert result.stderr == ""


def iterate_in_a_daemon(nworkers: int, start_method: str) -> None:
    """The program ends while a daemon thread iterates."""
    loader = TurboDataLoader(
        range(10**6), 4, Items(), nworkers, start_method=start_method, on_error="skip"
    ).start()
    running = threading.Event()

    def use() -> None:
        while True:
            for _ in loader:
                running.set()

    threading.Thread(target=use, daemon=True).start()
    assert running.wait(20)


@pytest.mark.parametrize("nworkers", [0, 2])
@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_daemon_thread_ends_silently(nworkers: int, start_method: str) -> None:
    for _ in range(3):
        result = run_scenario(iterate_in_a_daemon, nworkers, start_method).check()
        assert result.stderr == ""


class EndsEverything(Items):
    """The interpreter exits while a sample is made."""

    engines: ClassVar[list[Any]] = []

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        self.engines.pop()._finalizer()
        super().prepare(sample, batch, buffers)


def test_a_daemon_thread_ends_silently_in_the_middle_of_a_sample() -> None:
    loader = TurboDataLoader(range(4), 4, EndsEverything(), 0).start()
    EndsEverything.engines.append(loader._engine)
    raised: list[BaseException] = []

    def use() -> None:
        try:
            next(iter(loader))
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(20)
    assert [type(error) for error in raised] == [SystemExit]  # of which threads end silently
    with pytest.raises(LoaderClosed, match="by the exit of the interpreter"):
        next(iter(loader))
    loader.stop()


class Late(Items):
    """Sample 4 waits until it is told to go on."""

    begun = threading.Event()
    go_on = threading.Event()

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 4:
            self.begun.set()
            self.go_on.wait()
        super().prepare(sample, batch, buffers)

    def teardown(self) -> None:
        print("teardown")


def leave_late_threads(exits: bool) -> None:
    """The loader stops while a thread is in a sample, which ends later or never."""
    parts._STOP_SECONDS = 0.0
    before: set[str] = set()
    for _ in range(3):
        Late.begun.clear()
        Late.go_on.clear()
        with TurboDataLoader(range(8), 4, Late(), 2, start_method="thread") as loader:
            next(iter(loader))
            assert Late.begun.wait(20)
        if not exits:
            Late.go_on.set()
            assert wait_until(lambda: threading.active_count() == 1)
            before = before or set(os.listdir("/dev/fd"))
            assert len(os.listdir("/dev/fd")) == len(before), "all is closed"


@pytest.mark.parametrize("exits", [False, True])
def test_late_threads_end_silently(exits: bool) -> None:
    result = run_scenario(leave_late_threads, exits, timeout=60).check()
    assert result.stderr == ""
    if not exits:
        assert result.stdout.split() == ["teardown"] * 6


# -- objects ----------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_is_no_value(copied: Any, started: bool) -> None:
    with TurboDataLoader(range(8), 4, Items(), 2, start_method="fork") as loader:
        if not started:
            loader.stop()
        for thing in (loader, iter(loader)) if started else (loader,):
            with pytest.raises(TypeError, match=r"neither pickled nor copied.*state_dict\(\)"):
                copied([thing] if copied is not copy.copy else loader)


@pytest.mark.parametrize("nworkers", [0, 2])
def test_a_loader_needs_no_garbage_collector(nworkers: int) -> None:
    gc.collect()
    gc.disable()
    try:
        loader = TurboDataLoader(range(800), 4, Items(), nworkers, start_method="fork").start()
        iterator = iter(loader)
        next(iterator)
        reference = weakref.ref(loader)
        del loader
        next(iterator)
        assert reference() is not None
        del iterator
        assert reference() is None
        if sys.platform == "linux":
            assert wait_until(lambda: not named("crumpets-"), 2.0)
    finally:
        gc.enable()


@pytest.mark.parametrize("nworkers", [0, 2])
def test_a_mini_batch_is_the_callers_own_dict(nworkers: int) -> None:
    with TurboDataLoader(range(8), 4, Items(), nworkers, start_method="fork") as loader:
        (_, (mini_batch,)), (_, (other,)) = loader
        assert type(mini_batch) is dict
        mini_batch["n"] = 3
        mini_batch["item"] = mini_batch["item"].astype(float)
        assert mini_batch.keys() == {"item", "n"}
        assert other.keys() == {"item"}
