"""The fault table: quick cases, and what it says about bad ends."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from crumpets_like import cli
from crumpets_like.benchmarks import faults
from crumpets_like.benchmarks.faults import Row, run_case

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")

DEAD = Row("SIGKILL, always", "ours", "`WorkerDied`", 0.1234, True, "nothing")


def test_a_sample_that_always_kills() -> None:
    row = run_case("SIGKILL, always", "ours")
    assert row.what.startswith("`WorkerDied` after batch 1: Worker ")
    assert "SIGKILL" in row.what
    assert row.seconds is not None
    assert 0 < row.seconds < 5
    assert (row.named, row.left) == (True, "nothing")


def test_a_sample_that_kills_once() -> None:
    row = run_case("SIGSEGV, once", "ours")
    assert (row.what, row.named, row.left) == ("all 64 samples, in order", None, "nothing")
    assert row.seconds is not None


def test_the_training_process_is_killed() -> None:
    row = run_case("kill -9 of the training process", "ours")
    assert row.what.startswith("ended by SIGKILL, 0 tracebacks, its helpers after it")
    assert row.left == "nothing"
    assert row.seconds is not None
    assert row.seconds < faults.GRACE


def test_ctrl_c() -> None:
    row = run_case("SIGINT to the process group", "ours")
    assert row.what == "ended by SIGINT, 1 traceback, its helpers after it"
    assert row.left == "nothing"


QUICK = {
    'SIGKILL, always, on_error="skip"': "63 samples, in order",
    "all workers killed at once": "all 320 samples, in order",
    "supervisor killed": "`LoaderError` after batch ",
    "sys.exit() in the body": "ended with exit code 0, 0 tracebacks, its helpers after it",
    "end of the program, nothing stopped": "ended with exit code 0, 0 tracebacks, its helpers ",
    "dropped, nothing stopped": "its workers ended",
    "exception in the body": "`LookupError`: mine",
    "raises": "11 kinds: own type 5, worker's traceback 11, index named 11",
    "result that cannot be pickled": "`TypeError` after batch 1: ",
    "dataset with a lock, forkserver": "`TypeError`, names the attribute: dataset.lock cannot ",
    "slow caller, timeout=1": "all 64 samples, in order",
    "timeout=-1, nan": "-1: `ValueError`, nan: `ValueError`",
    "loader started in a thread that ends": "all 64 samples, in order",
    "5 of 10 batches, all, 2, all": "each from the beginning, in order",
    "two iterators at once": "the newer works, the older: `LoaderClosed`: ",
    "iterator after the end of `with`": "`LoaderClosed` ",
    "all batches kept, max_buffers=8": "`BufferExhausted`: All 8 buffers are in use",
    "buffers larger than the memory": "`MemoryError` at start(): ",
    faults.LONG_PATH: "all 64 samples, in order",
}


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK)
def test_quick_cases(case: str) -> None:
    row = run_case(case, "ours", limit=faults.LONGER)
    assert row.what.startswith(QUICK[case]), row
    assert row.left == "nothing"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_other_loader() -> None:
    row = run_case("SIGKILL, always", "torch")
    assert row.what.startswith("`RuntimeError` ")  # at once, wherever the caller is
    assert row.named is False


def test_a_case_that_takes_too_long() -> None:
    row = run_case("100 x next(iter(loader))", "ours", limit=0.05)
    assert row.what == "hangs (0.05 s)"
    assert row.left == "nothing"


def test_a_case_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    row = run_case("broker killed", "ours")
    assert row == Row(row.case, "ours", "ended with exit code 1, silent", None, None, "nothing")


def test_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = faults._shared_memory()
    with subprocess.Popen(["true"]) as process:
        pass
    names = [f"crumpets-test-{process.pid}", f"crumpets-test-of-others-{process.pid - 1}"]
    for name in names:
        (Path("/dev/shm") / name).write_bytes(b"x" * 4096)
    left = faults._left("nobody", process.pid, before, str(tmp_path))
    assert left == "1 /dev/shm entries, 1 temporary file(s), 0.0 MB of shared memory"
    mine, theirs = (name in faults._shared_memory() for name in names)
    assert (mine, theirs) == (False, True)
    (Path("/dev/shm") / names[1]).unlink()


def test_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(faults, "run_case", lambda case, loader, limit: DEAD)
    file = tmp_path / "table.md"
    arguments = ["--case", "SIGSEGV, always", "--loader", "ours", "--output", str(file)]
    assert cli.main(["faults", *arguments]) == 0
    text = file.read_text()
    shown = capsys.readouterr()
    assert shown.out == text
    assert "1/1  SIGKILL, always, ours: `WorkerDied`" in shown.err
    *_, header, rule, line = text.splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")] == list(faults.HEADER)
    assert set(rule) == {"|", "-"}
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["SIGKILL, always", "ours", "`WorkerDied`", "0.12", "yes", "nothing"]


def test_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["faults", "--case", "earthquake"]) == 2
    assert "idle worker killed" in capsys.readouterr().err
