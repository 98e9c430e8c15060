"""Processes of a whole loader: how they start, are replaced, and end."""

import faulthandler
import itertools
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import get_type_hints

import pytest

from crumpets_like import LoaderError, TurboDataLoader, WorkerDied
from crumpets_like.broker.launch import SupervisorHandle
from crumpets_like.broker.memory import anonymous_file
from crumpets_like.broker.processes import BROKER_DIED, death_descriptor, wait_readable
from crumpets_like.broker.settings import Settings
from crumpets_like.broker.supervisor import _receive_settings, _Supervisor, _Worker
from tests.support.loading import Items, run_items, wait_until
from tests.support.processes import named
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")


class Naps(Items):
    """Takes its time."""

    def prepare(self, sample, batch, buffers):
        time.sleep(0.002)
        super().prepare(sample, batch, buffers)


# -- replacing -----------------------------------------------------------------------------


def workers_killed_from_outside(start_method):
    """Kill each worker once, while it works: every index comes exactly once, in order."""
    seen = []
    with TurboDataLoader(range(400), 8, Naps(), 3, start_method=start_method) as loader:
        for iteration, (mini_batch,) in loader:
            seen += mini_batch["item"].tolist()
            if iteration in (5, 15, 25):
                before = {process.pid for process in named("crumpets-w")}
                victim = named(f"crumpets-w{iteration // 10}")[0]
                victim.kill()
        workers = {process.pid for process in named("crumpets-w")}
        assert victim.pid in before
        assert victim.pid not in workers
        assert seen == list(range(400))
        assert run_items(loader) == list(range(400)), "the next epoch is whole, too"


def test_workers_that_are_killed_are_replaced():
    run_scenario(workers_killed_from_outside, "fork").check()


def idle_workers_killed():
    """Workers that are killed while they wait are replaced until an epoch's limit is reached."""
    options = {"start_method": "fork", "prefetch": 2}
    pids = []
    with TurboDataLoader(range(64), 8, Items(), 1, **options) as loader:

        def epoch_with_kills(count):
            for number, (_, (mini_batch,)) in enumerate(loader):
                for _ in range(count if number == 0 else 0):
                    assert wait_until(lambda: loader._engine.facts().filling == 0)
                    assert wait_until(lambda: named("crumpets-w"))
                    (worker,) = named("crumpets-w")
                    pids.append(worker.pid)
                    worker.kill()
                    worker.wait()
                yield from mini_batch["item"].tolist()

        for _ in range(2):
            assert list(epoch_with_kills(2)) == list(range(64))
        with pytest.raises(WorkerDied) as caught:
            list(epoch_with_kills(3))
    died = caught.value
    assert len(set(pids)) == 7
    assert (died.worker_id, died.pid, died.signal_name) == (0, pids[-1], "SIGKILL")
    assert died.index is None
    assert f"pid {died.pid}" in str(died)
    assert "2 were, the limit of an epoch" in str(died)


def test_idle_workers_are_replaced_up_to_the_limit():
    run_scenario(idle_workers_killed).check()


# -- stacks --------------------------------------------------------------------------------


def stand_still_here(way):
    while way == "python":
        time.sleep(0.01)
    if way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # "deaf"
    time.sleep(100)


def ended_on_request(way):
    """Workers that are asked to end say where they are, if they can; that is told with their exits.

    Not what they were asked before; and all of them in the time of one.
    """
    supervisor = object.__new__(_Supervisor)
    supervisor._workers, supervisor._dumps_from = {}, {}
    for worker_id in range(12):
        dump = anonymous_file("stack", 0)
        pid = os.fork()
        if pid == 0:
            faulthandler.register(signal.SIGUSR1, dump)
            os.write(dump, b"in another place\n")
            stand_still_here(way)
        supervisor._workers[death_descriptor(pid)] = _Worker(worker_id, pid, 7 + worker_id, dump)
    time.sleep(0.3)  # until they are there
    *others, bystander = supervisor._workers
    started = time.monotonic()
    supervisor._end_workers(set(range(11)))
    assert time.monotonic() - started < 0.5
    assert wait_readable([bystander], 0.1) == [], "not this one"
    os.kill(supervisor._workers[bystander].pid, signal.SIGKILL)
    for number, descriptor in enumerate([*others, bystander]):
        assert wait_readable([descriptor], 5)
        worker = supervisor._workers[descriptor]
        *facts, stack = supervisor._reap(descriptor)
        assert facts == [number, worker.pid, 7 + number, -signal.SIGKILL]
        asked = descriptor != bystander
        assert ("in stand_still_here" in stack) == (way == "python" and asked), stack
        assert ("in another place" in stack) == (not asked), stack
        for closed in (descriptor, worker.dump):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(closed)
    assert (supervisor._workers, supervisor._dumps_from) == ({}, {})


@pytest.mark.parametrize("way", ["python", "stopped", "deaf"])
def test_a_worker_is_ended_on_request(way):
    run_scenario(ended_on_request, way).check()


class Crashes(Items):
    """Ends its process in some way."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def prepare(self, sample, batch, buffers):
        if sample == 3:
            os.kill(os.getpid(), self.number)
        super().prepare(sample, batch, buffers)


def crash(start_method, number):
    """The error of a worker that crashes shows where; SIGKILL leaves no time for that."""
    options = {"start_method": start_method, "restarts": 0}
    with (
        TurboDataLoader(range(8), 4, Crashes(number), 1, **options) as loader,
        pytest.raises(WorkerDied) as caught,
    ):
        list(loader)
    died = caught.value
    assert (died.signal_name, died.index) == (signal.Signals(number).name, 3)
    if number == signal.SIGKILL:
        assert died.stack == ""
    else:
        assert died.stack.startswith("Fatal Python error: Segmentation fault")
        assert "in prepare" in died.stack
        assert died.stack.strip() in str(died)


@pytest.mark.parametrize(
    ("start_method", "number"),
    [("fork", signal.SIGSEGV), ("spawn", signal.SIGSEGV), ("fork", signal.SIGKILL)],
)
def test_the_stack_of_a_crash(start_method, number):
    result = run_scenario(crash, start_method, number).check()
    assert "Fatal Python error" not in result.stderr, "it is in the error, and only there"


class DumpsAndCrashes(Items):
    """Somebody looks at its stack, again and again; then it crashes."""

    def prepare(self, sample, batch, buffers):
        for _ in range(1000):
            os.kill(os.getpid(), signal.SIGUSR1)
        crash_here()


def crash_here():
    os.kill(os.getpid(), signal.SIGSEGV)


def crash_after_dumps(start_method):
    options = {"start_method": start_method, "restarts": 0}
    with (
        TurboDataLoader(range(8), 4, DumpsAndCrashes(), 1, **options) as loader,
        pytest.raises(WorkerDied) as caught,
    ):
        list(loader)
    assert caught.value.stack.startswith("Fatal Python error: Segmentation fault")
    assert "in crash_here" in caught.value.stack


def test_the_stack_of_a_crash_alone():
    run_scenario(crash_after_dumps, "fork").check()


# -- errors --------------------------------------------------------------------------------


def helper_killed(start_method, name, exit_code):
    """The caller hears of it within a second, also between epochs, and can start anew."""
    loader = TurboDataLoader(range(64), 8, Naps(), 2, start_method=start_method)
    with loader:
        assert run_items(loader) == list(range(64))
        (helper,) = named(name)
        helper.kill()
        killed = time.monotonic()
        with pytest.raises(LoaderError, match=f"exit code {exit_code}"):
            list(itertools.chain.from_iterable(run_items(loader) for _ in range(9)))
        assert time.monotonic() - killed < 1
    assert time.monotonic() - killed < 3
    with loader:
        assert run_items(loader) == list(range(64))


@pytest.mark.parametrize(
    ("start_method", "name", "exit_code"),
    [
        ("fork", "crumpets-broker", BROKER_DIED),
        ("thread", "crumpets-broker", BROKER_DIED),
        ("thread", "crumpets-superv", -signal.SIGKILL),
    ],
)
def test_a_helper_process_is_killed(start_method, name, exit_code):
    run_scenario(helper_killed, start_method, name, exit_code).check()


# -- ends ----------------------------------------------------------------------------------


class Stuck(Items):
    """Never gets ready, never gets done, or ignores what it is told."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def setup(self):
        Path(f"setup {self.worker_id}").touch()
        if self.where == "setup":
            time.sleep(100)

    def prepare(self, sample, batch, buffers):
        if self.where == "prepare":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(100)
        super().prepare(sample, batch, buffers)

    def teardown(self):
        if self.where == "teardown":
            time.sleep(100)


def stopped_while_stuck(start_method, where):
    """Leave the loader while its workers are stuck."""
    with TurboDataLoader(range(64), 8, Stuck(where), 2, start_method=start_method) as loader:
        iterator = iter(loader)
        assert wait_until(lambda: len(list(Path().glob("setup*"))) == 2)
        if where in ("teardown", "stopped"):
            next(iterator)
        if where == "stopped":
            for process in named("crumpets-"):
                process.send_signal(signal.SIGSTOP)
        leaving = time.monotonic()
    most = 1 if where == "setup" else 2  # who is not ready yet has nothing to finish
    assert time.monotonic() - leaving < most, time.monotonic() - leaving


@pytest.mark.parametrize(
    ("start_method", "where"),
    [
        ("spawn", "setup"),
        ("fork", "prepare"),
        ("forkserver", "teardown"),
        ("fork", "stopped"),  # broker and supervisor as well
    ],
)
def test_stop_takes_two_seconds_at_most(start_method, where):
    run_scenario(stopped_while_stuck, start_method, where).check()


class Notes(Items):
    """Writes down when it is done."""

    def teardown(self):
        Path(f"teardown {self.worker_id}").touch()


def teardown(start_method):
    with TurboDataLoader(range(64), 8, Notes(), 3, start_method=start_method) as loader:
        assert wait_until(lambda: loader._engine.facts().up_since)
        assert run_items(loader) == list(range(64))
    assert sorted(Path().glob("teardown*")) == [Path(f"teardown {n}") for n in range(3)]


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_every_worker_is_torn_down(start_method):
    run_scenario(teardown, start_method).check()


def endless(start_method, where):
    """Several loaders run until somebody ends this process."""
    loaders = [
        TurboDataLoader(range(10**6), 8, Stuck(where), 2, start_method=start_method).start()
        for _ in range(2)
    ]
    print("running", flush=True)
    while True:
        for loader in loaders:
            for _ in loader:
                pass


@pytest.mark.parametrize(
    ("start_method", "where", "number"),
    [
        ("spawn", "setup", signal.SIGKILL),
        ("thread", "nowhere", signal.SIGKILL),
        ("fork", "prepare", signal.SIGTERM),
    ],
)
def test_the_training_process_ends(start_method, where, number):
    """However it does, all processes and folders are gone within two seconds."""

    def end(running):
        running.wait_for("running")
        running.signal(number)

    result = run_scenario(endless, start_method, where, grace=2.0, interact=end)
    result.check(returncode=-number)


def test_stopped_processes_do_not_outlive_it_either():
    def end(running):
        running.wait_for("running")
        for process in running.descendants():
            if process.name().startswith("crumpets-w"):
                process.send_signal(signal.SIGSTOP)
        running.signal(signal.SIGKILL)

    run_scenario(endless, "fork", "nowhere", grace=2.0, interact=end).check(-signal.SIGKILL)


@pytest.mark.parametrize("start_method", ["fork", "forkserver"])
def test_ctrl_c_is_one_traceback(start_method):
    def interrupt(running):
        running.wait_for("running")
        running.signal(signal.SIGINT, group=True)

    result = run_scenario(endless, start_method, "nowhere", grace=2.0, interact=interrupt)
    result.check(returncode=-signal.SIGINT)
    assert result.stderr.count("Traceback") == 1, result.stderr
    assert "KeyboardInterrupt" in result.stderr.splitlines(), result.stderr


# -- starts --------------------------------------------------------------------------------

THREADS = """
import logging, os, sys
logging.basicConfig()
import psutil
from crumpets_like import TurboDataLoader
from tests.support.loading import Items, run_items
with open("starts_threads.py", "w") as file:
    file.write(
        "import threading\\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\\n"
        "class Dataset:\\n"
        "    def __len__(self): return 8\\n"
        "    def __getitem__(self, index): return index\\n"
    )
sys.path.append(os.getcwd())
from starts_threads import Dataset
with TurboDataLoader(Dataset(), 4, Items(), 2) as loader:
    assert run_items(loader) == list(range(8))
    commands = [" ".join(p.cmdline()) for p in psutil.Process().children(recursive=True)]
    assert any("spawned(" in command for command in commands), commands
"""


def test_a_template_with_threads_is_not_forked():
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    result = run_scenario(THREADS, env=env).check()
    assert "has 2 threads" in result.stderr
    assert "starts_threads" in result.stderr
    assert "WARNING:crumpets_like.broker.supervisor:" in result.stderr
    assert "workers are spawned instead" in result.stderr


def empty_settings(**changes):
    empty = {name: kind() for name, kind in get_type_hints(Settings).items()}
    return Settings(**{**empty, **changes})


@pytest.mark.parametrize("missing", [0, 1])
def test_descriptors_that_got_lost_are_missed(missing):
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.devnull) as file:
        settings = empty_settings(shared=[file.fileno()] * (3 + missing))
        socket.send_fds(ours, [b"!"], [file.fileno()] * 2)
        socket.send_fds(ours, [b"!"], [file.fileno()] * 3)
        ours.sendall(b"." + settings.pack())
        received = []
        recv_fds = socket.recv_fds

        def note(*arguments):
            result = recv_fds(*arguments)
            received.extend(result[1])
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "recv_fds", note)
            try:
                if missing:
                    with pytest.raises(OSError, match=r"got 5 of 6 descriptors.*ulimit -n"):
                        _receive_settings(theirs)
                else:
                    found = _receive_settings(theirs)
                    assert [found.ring, found.payload, *found.shared] == received
            finally:
                for descriptor in received:
                    os.close(descriptor)


def test_a_supervisor_without_its_parent_ends_at_once():
    """Settings that name another training process: it was orphaned before it looked."""
    settings = empty_settings(trainer=os.getppid(), uid="x", start_method="fork")
    handle = SupervisorHandle("forkserver", "test")
    try:
        handle.configure(settings, 0, 0)
        assert wait_readable([handle.death], 10)
        assert "exit code 1" in str(handle.why_ended())
    finally:
        handle.end(10)
        handle.close()
