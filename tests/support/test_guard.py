"""The leak guard itself, tried on tests that leak."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.leftovers import COUNT_ALL, Leftovers, State
from tests.support.processes import MARK, Family

ROOT = Path(__file__).resolve().parents[2]

LEAKS = """
import gc, os, subprocess, sys, tempfile, threading, time
import pytest

kept = []
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

def test_clean(): pass

def test_child():
    kept.append(subprocess.Popen(SLEEP))

def test_orphan_in_own_session():
    code = f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_orphaned_fork():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()

def test_zombie():
    child = os.fork()
    if child == 0:
        os._exit(0)

def test_thread():
    event = threading.Event()
    kept.append(event)
    threading.Thread(target=event.wait, name="stays", daemon=True).start()

def test_thread_that_ends_in_time():
    threading.Thread(target=time.sleep, args=(0.3,)).start()

def test_process_that_ends_in_time():
    child = subprocess.Popen([sys.executable, "-c", ""])
    threading.Thread(target=child.wait).start()

def test_descriptor():
    kept.append(os.open(os.devnull, os.O_RDONLY))

def test_descriptor_in_a_cycle():
    cycle = [open(os.devnull)]
    cycle.append(cycle)

def test_folder():
    os.mkdir(os.path.join(tempfile.mkdtemp(prefix="left-"), "inner"))

def test_socket_file():
    import socket
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.join(tempfile.gettempdir(), "left.sock"))

def test_tmp_path_is_no_leak(tmp_path):
    (tmp_path / "file").touch()

def test_zmq_context():
    import zmq
    kept.append(zmq.Context())
    kept[-1].socket(zmq.PAIR)

@pytest.mark.skipif(sys.platform != "linux", reason="has a folder on Linux only")
def test_shared_memory():
    with open(f"/dev/shm/left-{os.getpid()}", "wb"): pass

def test_failure_with_a_child_is_one_failure():
    kept.append(subprocess.Popen(SLEEP))
    assert False

def test_nothing_of_that_still_runs():
    import psutil
    assert [p for p in psutil.Process().children() if p.status() != "zombie"] == []
"""

EXPECTED = {
    "test_child": "process ",
    "test_orphan_in_own_session": "process ",
    "test_orphaned_fork": "process ",
    "test_zombie": "zombie",
    "test_thread": "thread <Thread(stays",
    "test_descriptor": "-> /dev/null",
    "test_folder": "inner",
    "test_socket_file": "left.sock",
    "test_zmq_context": "native thread",
    "test_shared_memory": "shared memory /dev/shm/left-",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS shows less of what is left")
def test_every_leak_is_found(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv(COUNT_ALL, "1")
    # The folder for tmp_path must stay outside of what the inner guard watches.
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(pytester.mkdir("root")))
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    pytester.makeconftest(f"{conftest}\nfrom tests.support import guard\nguard.GRACE = 0.5\n")
    pytester.makepyfile(test_leaks=LEAKS)
    names = LEAKS.count("def test_")
    try:
        result = pytester.runpytest_subprocess(
            "-p", "no:cacheprovider", "-W", "ignore", "-rE", timeout=60
        )
    finally:
        for segment in Path("/dev/shm").glob("left-*"):
            segment.unlink()
    result.assert_outcomes(passed=names - 1, failed=1, errors=len(EXPECTED))
    sections = result.stdout.str().split("ERROR at teardown of ")
    for name, text in EXPECTED.items():
        (section,) = (part for part in sections if part.startswith(name + " "))
        assert text in section.split("\n____")[0]


def test_a_look_is_cheap() -> None:
    family = Family.of(os.getpid(), os.environ[MARK])
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        assert not Leftovers.since(State.now(), family)
        best = min(best, time.perf_counter() - started)
    assert best < 0.05, "ten times what it takes on an idle machine"
