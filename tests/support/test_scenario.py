"""The scenario runner itself."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from tests.support.leftovers import COUNT_ALL
from tests.support.scenario import Running, run_scenario


def greet(name: str, count: int) -> None:
    for _ in range(count):
        print("hello", name)


def test_script_runs_in_an_empty_folder_with_its_arguments() -> None:
    code = "import os, sys; print(os.listdir(), sys.argv[1:], __name__)"
    result = run_scenario(code, "a", 7).check()
    assert result.stdout == "[] ['a', '7'] __main__\n"
    assert result.stderr == ""


def test_function_of_a_test_module() -> None:
    assert run_scenario(greet, "you", 2).check().stdout == "hello you\nhello you\n"


def test_local_function_is_refused() -> None:
    with pytest.raises(TypeError, match="importable module"):
        run_scenario(lambda: None)


@pytest.mark.parametrize(
    ("code", "returncode"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("1 / 0", 1),
    ],
)
def test_exit_code(code: str, returncode: int) -> None:
    result = run_scenario(code)
    assert result.returncode == returncode
    result.check(returncode)
    with pytest.raises(AssertionError, match=f"exit code {returncode} "):
        result.check(returncode + 1)


def test_environment_and_options() -> None:
    code = "import os, sys; print(os.environ.get('A'), 'HOME' in os.environ, sys.flags.optimize)"
    result = run_scenario(code, env={"A": "b", "HOME": None}, options=["-O"])
    assert result.stdout == "b False 1\n"


def test_hang_fails_with_the_stack() -> None:
    code = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
def stuck_here():
    time.sleep(100)
stuck_here()
"""
    started = time.monotonic()
    with pytest.raises(AssertionError, match=r"still ran after 0\.7 s, with 1 desc") as caught:
        run_scenario(code, timeout=0.7)
    assert "in stuck_here" in str(caught.value)
    assert time.monotonic() - started < 5


ORPHANS = {
    "own session, marked": """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {sleep!r}], start_new_session=True)
""",
    "forked twice": """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        exec({sleep!r})
    os._exit(0)
os.wait()
""",
}


@pytest.mark.parametrize("kind", ORPHANS)
@pytest.mark.skipif(sys.platform != "linux", reason="forks are told by their addresses on Linux")
def test_orphans_are_found_and_killed(kind: str) -> None:
    code = ORPHANS[kind].format(sleep="import time; print('up', flush=True); time.sleep(100)")

    def kill(running: Running) -> None:
        running.wait_for("up")
        running.signal(signal.SIGKILL)

    result = run_scenario(code + "\nimport time; time.sleep(100)", grace=0.2, interact=kill)
    assert result.returncode == -signal.SIGKILL
    assert len(result.processes) == 1
    assert result.gone_after >= 0.2
    with pytest.raises(AssertionError, match="left behind: process"):
        result.check(-signal.SIGKILL)


def test_orphan_that_ends_in_time_is_no_leftover() -> None:
    code = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5); print('late')"])
"""
    result = run_scenario(code).check()
    assert 0.1 < result.gone_after < 2.5
    assert result.stdout == "late\n"


def test_files_and_shared_memory_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COUNT_ALL, "1")
    code = """
import os, tempfile
from multiprocessing import resource_tracker, shared_memory
tempfile.mkdtemp(prefix="left-")
segment = shared_memory.SharedMemory(f"left-{os.getpid()}", create=True, size=64)
resource_tracker.unregister(segment._name, "shared_memory")
print(segment.name)
"""
    result = run_scenario(code)
    assert len(result.files) == 1
    assert "left-" in result.files[0]
    if sys.platform == "linux":
        assert result.shared_memory == (result.stdout.strip(),)


def test_interrupt_of_the_group() -> None:
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("ready", flush=True)
time.sleep(100)
"""

    def interrupt(running: Running) -> None:
        running.wait_for("ready")
        assert len(running.descendants()) == 1
        running.signal(signal.SIGINT, group=True)

    result = run_scenario(code, interact=interrupt)
    result.check(-signal.SIGINT)
    assert "KeyboardInterrupt" in result.stderr


def test_wait_for_fails_when_the_scenario_ends() -> None:
    with pytest.raises(AssertionError, match="when it ended:\nhello"):
        run_scenario("print('hello')", interact=lambda running: running.wait_for("bye"))
