"""Signals to the training process: one KeyboardInterrupt at most, and nothing is left."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from crumpets_like import TurboDataLoader
from tests.support.loading import Items
from tests.support.matrix import start_methods
from tests.support.scenario import Result, Running, run_scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at process names"),
]

START_METHODS = start_methods("fork", "forkserver", "spawn", "thread")


class Slow(Items):
    """Half a second a sample; `setup` seconds until it is ready."""

    def __init__(self, setup: float = 0.0) -> None:
        super().__init__()
        self.seconds = setup

    def setup(self) -> None:
        time.sleep(self.seconds)

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        time.sleep(0.5)
        super().prepare(sample, batch, buffers)


def endless(start_method: str, setup: float = 0.0) -> None:
    """Iterate until somebody ends this process."""
    print("begin", flush=True)
    with TurboDataLoader(range(10**6), 2, Slow(setup), 2, start_method=start_method) as loader:
        for _ in loader:
            print("running", flush=True)


def check_one_interrupt(result: Result) -> None:
    result.check(returncode=-signal.SIGINT)
    assert result.stderr.count("Traceback") == 1, result.stderr
    assert result.stderr.strip().endswith("KeyboardInterrupt"), result.stderr


@pytest.mark.parametrize("start_method", START_METHODS)
def test_ctrl_c(start_method: str) -> None:
    def press(running: Running) -> None:
        running.wait_for("running")
        running.signal(signal.SIGINT, group=True)

    check_one_interrupt(run_scenario(endless, start_method, grace=2.0, interact=press))


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("pause", [0.0, 0.05, 0.5])
def test_ctrl_c_twice(start_method: str, pause: float) -> None:
    def press(running: Running) -> None:
        running.wait_for("running")
        running.signal(signal.SIGINT, group=True)
        time.sleep(pause)
        try:
            running.signal(signal.SIGINT, group=True)
        except ProcessLookupError:  # it has ended
            pass

    result = run_scenario(endless, start_method, grace=2.0, interact=press)
    # The second may meet the first one in user code, or while Python writes its traceback.
    result.check(returncode=-signal.SIGINT)
    if pause:
        one, _, rest = result.stderr.partition("KeyboardInterrupt\n")
        assert one.count("Traceback") == 1, result.stderr
        # On a slow machine it may meet the interpreter's own exit, which says so.
        assert not rest or rest.startswith("Exception ignored in"), result.stderr


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("pause", [0.0, 0.03, 0.15])
def test_ctrl_c_during_the_start(start_method: str, pause: float) -> None:
    def press(running: Running) -> None:
        running.wait_for("begin")
        time.sleep(pause)
        running.signal(signal.SIGINT, group=True)

    check_one_interrupt(run_scenario(endless, start_method, 100.0, grace=2.0, interact=press))


class Presses(Items):
    """Presses Ctrl-C while it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.trainer = os.getpid()

    def teardown(self) -> None:
        os.kill(self.trainer, signal.SIGINT)


def never_stopped(start_method: str, own: bool) -> None:
    """Two loaders that the exit of the interpreter stops, which Ctrl-C meets."""
    if own:
        signal.signal(signal.SIGINT, lambda number, frame: print("my handler", flush=True))
    make = lambda: TurboDataLoader(range(4), 2, Presses(), 1, start_method=start_method)  # noqa: E731
    loaders = [make().start() for _ in range(2)]
    for loader in loaders:
        assert len(list(loader)) == 2
    if not own:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("own", [False, True])
def test_ctrl_c_while_the_exit_stops_loaders(start_method: str, own: bool) -> None:
    result = run_scenario(never_stopped, start_method, own, grace=2.0)
    if own:
        assert result.check().stderr == ""
        assert "my handler" in result.stdout
    else:
        check_one_interrupt(result)


IN_A_TERMINAL = """
import sys
from tests.test_signals import endless
endless("forkserver")
"""


def test_ctrl_c_in_a_terminal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "NO_COLOR": "1"}
        os.execv(sys.executable, [sys.executable, "-c", IN_A_TERMINAL])
    try:
        shown = b""
        while b"running" not in shown:
            shown += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        pressed = time.monotonic()
        _, status = os.waitpid(pid, 0)
        assert time.monotonic() - pressed < 2
        assert os.waitstatus_to_exitcode(status) == -signal.SIGINT
        try:
            while data := os.read(terminal, 1000):
                shown += data
        except OSError:  # the other end is closed
            pass
    finally:
        os.close(terminal)
    assert shown.count(b"Traceback") == 1, shown
    assert shown.strip().endswith(b"KeyboardInterrupt"), shown


@pytest.mark.parametrize("start_method", START_METHODS)
def test_sigterm(start_method: str) -> None:
    def end(running: Running) -> None:
        running.wait_for("running")
        running.signal(signal.SIGTERM)

    result = run_scenario(endless, start_method, grace=2.0, interact=end)
    result.check(returncode=-signal.SIGTERM)
    assert result.stderr == ""


def leave(start_method: str, how: str) -> None:
    """End this process in the middle of an epoch."""
    loader = TurboDataLoader(range(10**6), 2, Slow(), 2, start_method=start_method)
    if how == "sys.exit":
        with loader:
            for _ in loader:
                print("leaving", flush=True)
                sys.exit(3)
    iterator = iter(loader.start())
    next(iterator)
    print("leaving", flush=True)
    if how == "collected":
        del loader, iterator
        print("collected", flush=True)


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize(("how", "code"), [("sys.exit", 3), ("end", 0), ("collected", 0)])
def test_the_end_of_the_program(start_method: str, how: str, code: int) -> None:
    leaving: list[float] = []

    def watch(running: Running) -> None:
        running.wait_for("leaving")
        leaving.append(time.monotonic())

    result = run_scenario(leave, start_method, how, grace=2.0, interact=watch)
    seconds = time.monotonic() - result.gone_after - leaving[0]
    assert result.check(returncode=code).stderr == ""
    assert seconds < 3
