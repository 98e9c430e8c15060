import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from crumpets_like.broker import launch
from crumpets_like.broker.launch import SupervisorHandle, interpreter_command
from crumpets_like.broker.processes import wait_readable
from tests.support.loading import wait_until

METHODS = ["forkserver", "fork"]  # the others start as forkserver does


@pytest.fixture
def start():
    handles = []

    def start_one(method):
        handles.append(SupervisorHandle(method, "test"))
        return handles[-1]

    yield start_one
    for handle in handles:
        if handle._channel.fileno() != -1:  # not stopped by the test
            handle.end(10)
            handle.close()


class TestCommand:
    def test_runs_with_the_same_search_path(self, monkeypatch, tmp_path):
        (tmp_path / "only_here.py").write_text("value = 5")
        monkeypatch.chdir(tmp_path.parent)
        monkeypatch.setattr(sys, "path", [*sys.path, tmp_path.name])
        command = interpreter_command("import only_here; print(only_here.value)")
        monkeypatch.chdir("/")
        assert subprocess.run(command, capture_output=True, check=True).stdout == b"5\n"

    def test_an_interpreter_that_is_not_known(self, monkeypatch):
        monkeypatch.setattr(sys, "executable", "")
        with pytest.raises(RuntimeError, match=r"sys\.executable is empty.*start_method="):
            interpreter_command("")
        with pytest.raises(RuntimeError, match=r"sys\.executable is empty"):
            SupervisorHandle("forkserver", "test")


class TestStart:
    @pytest.mark.parametrize("method", METHODS)
    def test_own_session_and_not_in_the_way_of_ctrl_c(self, start, method):
        handle = start(method)
        process = psutil.Process(handle.pid)
        assert process.ppid() == os.getpid()
        assert wait_until(lambda: os.getsid(handle.pid) == handle.pid)
        assert wait_readable([handle.death], 0) == []

    def test_libraries_start_no_threads_in_it(self, start):
        self.check_limit(start("forkserver"), "1")

    def test_or_as_many_as_the_user_says(self):
        handle = SupervisorHandle("forkserver", "test", 3)
        try:
            self.check_limit(handle, "3")
        finally:
            handle.end(10)
            handle.close()

    def check_limit(self, handle, threads):
        process = psutil.Process(handle.pid)
        assert wait_until(process.environ)
        environment = process.environ()
        assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == threads

    @pytest.mark.parametrize("method", METHODS)
    def test_a_failure_leaves_nothing(self, monkeypatch, method):
        def fail(*arguments, **options):
            raise BlockingIOError("no process")

        monkeypatch.setattr(os, "fork", fail)
        monkeypatch.setattr(subprocess, "Popen", fail)
        with pytest.raises(BlockingIOError, match="no process"):
            SupervisorHandle(method, "test")  # descriptors: see the leak guard

    def test_what_is_buffered_is_written_once(self, capfd, start):
        print("buffered", end="")
        handle = start("fork")
        handle.end(10)
        handle.close()
        sys.stdout.flush()
        assert capfd.readouterr().out == "buffered"


class TestStop:
    @pytest.mark.parametrize("method", METHODS)
    def test_before_it_was_told_anything(self, start, method):
        handle = start(method)
        handle.end(10)
        handle.close()
        assert handle.exit_code == 0
        assert not psutil.pid_exists(handle.pid)

    @pytest.mark.parametrize("method", METHODS)
    def test_by_force(self, start, method):
        handle = start(method)
        os.kill(handle.pid, signal.SIGSTOP)
        started = time.monotonic()
        handle.end(0.2)
        handle.close()
        assert time.monotonic() - started < 2
        assert handle.exit_code == -signal.SIGKILL

    def test_by_force_before_it_has_a_session_of_its_own(self, start, monkeypatch):
        monkeypatch.setattr(os, "setsid", lambda: None)
        handle = start("fork")
        os.kill(handle.pid, signal.SIGSTOP)
        handle.end(0.1)
        handle.close()
        assert handle.exit_code == -signal.SIGKILL

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_children_of_the_user_do_not_keep_it(self, start):
        """A forked child has a copy of the channel, whose end is thus not seen by closing it."""
        handle = start("forkserver")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        try:
            handle.end(10)
            handle.close()
            assert handle.exit_code == 0, "not by force"
        finally:
            os.close(read)
            os.close(write)
            os.waitpid(child, 0)


class TestReaping:
    def test_once(self, start):
        handle = start("fork")
        os.kill(handle.pid, signal.SIGHUP)  # which it never ignores, however far it is
        assert wait_readable([handle.death], 10)
        assert "exit code -1)" in str(handle.why_ended())
        assert "exit code -1)" in str(handle.why_ended())
        assert handle.exit_code == -signal.SIGHUP

    def test_user_code_has_taken_it(self, start):
        handle = start("fork")
        os.kill(handle.pid, signal.SIGKILL)
        os.waitpid(handle.pid, 0)
        assert "exit code None" in str(handle.why_ended())


def test_every_fresh_interpreter_is_one_of_ours(monkeypatch):
    commands = []

    def popen(command, **options):
        commands.append((command, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        SupervisorHandle("spawn", "test")
    ((command, options),) = commands
    assert command[:2] == [sys.executable, "-c"]
    assert options["stdin"] is subprocess.DEVNULL
    assert options["start_new_session"]
