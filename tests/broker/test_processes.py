import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from crumpets_like.broker.processes import (
    Wakeup,
    death_descriptor,
    name_process,
    thread_count,
    thread_limits,
    wait_readable,
)
from tests.support.scenario import run_scenario

linux = pytest.mark.skipif(sys.platform != "linux", reason="a Linux system call")


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


class TestDeathDescriptor:
    @pytest.mark.parametrize("how", ["kill", "terminate"])
    def test_readable_once_the_process_has_ended(self, how):
        process = sleeper()
        descriptor = death_descriptor(process.pid)
        try:
            assert wait_readable([descriptor], 0.05) == []
            getattr(process, how)()
            assert wait_readable([descriptor], 10) == [descriptor]
            assert wait_readable([descriptor], 0) == [descriptor], "and stays so"
            process.wait()
            assert wait_readable([descriptor], 0) == [descriptor]
        finally:
            process.kill()
            process.wait()
            os.close(descriptor)

    def test_a_process_that_has_ended_already(self):
        process = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        descriptor = death_descriptor(process.pid)  # a zombie still
        assert wait_readable([descriptor], 0) == [descriptor]
        os.close(descriptor)
        process.wait()
        with pytest.raises(ProcessLookupError):
            death_descriptor(process.pid)


class TestWakeup:
    def test_once_set_it_stays_readable(self):
        wakeup = Wakeup()
        try:
            assert wait_readable([wakeup.fileno()], 0) == []
            for _ in range(3):
                wakeup.set()
                assert wait_readable([wakeup.fileno()], 0) == [wakeup.fileno()]
        finally:
            wakeup.close()

    def test_it_never_blocks_the_one_who_sets_it(self):
        wakeup = Wakeup()
        try:
            os.write(wakeup._write, (2**64 - 2).to_bytes(8, sys.byteorder))
            wakeup.set()
            assert wait_readable([wakeup.fileno()], 0)
        finally:
            wakeup.close()

    def test_from_another_thread(self):
        wakeup = Wakeup()
        thread = threading.Timer(0.02, wakeup.set)
        thread.start()
        assert wait_readable([wakeup.fileno()], 10) == [wakeup.fileno()]
        thread.join()
        wakeup.close()


class TestWaiting:
    def test_several(self):
        wakeups = [Wakeup() for _ in range(3)]
        numbers = [wakeup.fileno() for wakeup in wakeups]
        wakeups[1].set()
        wakeups[2].set()
        assert set(wait_readable(numbers, None)) == set(numbers[1:])
        for wakeup in wakeups:
            wakeup.close()

    def test_the_end_of_a_pipe(self):
        read, write = os.pipe()
        os.close(write)
        assert wait_readable([read], 10) == [read]
        os.close(read)

    def test_seconds(self):
        wakeup = Wakeup()
        started = time.monotonic()
        assert wait_readable([wakeup.fileno()], 0.05) == []
        assert 0.04 < time.monotonic() - started < 2
        assert wait_readable([wakeup.fileno()], -5) == []
        wakeup.close()


PARENT = """
import os, signal, sys
from crumpets_like.broker.processes import die_with_parent
pid = os.getpid()
if os.fork() == 0:
    die_with_parent(signal.SIGKILL, pid)
    print("ready", flush=True)
    signal.pause()
signal.pause()
"""

ORPHAN = """
import os, signal, time
from crumpets_like.broker.processes import die_with_parent
first = os.fork()
if first == 0:
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.001)
        die_with_parent(signal.SIGKILL, parent)
        print("still here", flush=True)
    os._exit(0)
os.waitpid(first, 0)
"""


PATH = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@linux
class TestLinux:
    def test_a_child_dies_with_its_parent(self):
        def kill(running):
            running.wait_for("ready")
            assert len(running.descendants()) == 1
            running.signal(signal.SIGKILL)

        run_scenario(PARENT, interact=kill, env=PATH).check(-signal.SIGKILL)

    def test_a_parent_that_is_gone_already(self):
        result = run_scenario(ORPHAN, env=PATH).check()
        assert result.stdout == ""

    def test_names(self):
        own = Path("/proc/self/comm")
        before = own.read_text().strip()
        try:
            name_process("crumpets-and-a-long-name")
            assert own.read_text() == "crumpets-and-a-\n"
        finally:
            name_process(before)

    def test_no_wait_is_longer_than_a_kill(self):
        """A pidfd takes milliseconds: the bound of the table is one second."""
        process = sleeper()
        descriptor = death_descriptor(process.pid)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        process.kill()
        started = time.monotonic()
        assert poller.poll(10_000)
        assert time.monotonic() - started < 0.5
        process.wait()
        os.close(descriptor)


def test_limits_are_text():
    limits = thread_limits(3)
    assert set(limits.values()) == {"3"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"} <= limits.keys()


def test_threads_are_counted():
    event = threading.Event()
    threads = [threading.Thread(target=event.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert thread_count() >= 4
    event.set()
    for thread in threads:
        thread.join()
