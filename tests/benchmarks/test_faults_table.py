"""The fault table: quick cases, and what it says about bad ends."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    assert (row.what, row.left) == ("ended, its helpers after it", "nothing")
    assert row.seconds is not None
    assert row.seconds < faults.GRACE


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_other_loader() -> None:
    row = run_case("SIGKILL, always", "torch")
    assert row.what.startswith("`RuntimeError` after batch ")
    assert row.named is False


def test_a_case_that_takes_too_long() -> None:
    row = run_case("200 x next(iter(loader))", "ours", limit=0.05)
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
    arguments = ["--case", "SIGKILL, always", "--loader", "ours", "--output", str(file)]
    assert faults.main(arguments) == 0
    text = file.read_text()
    assert capsys.readouterr().out == text
    *_, header, rule, line = text.splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")] == list(faults.HEADER)
    assert set(rule) == {"|", "-"}
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["SIGKILL, always", "ours", "`WorkerDied`", "0.12", "yes", "nothing"]


def test_an_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        faults.main(["--case", "earthquake"])
    assert caught.value.code == 2
    assert "idle worker killed" in capsys.readouterr().err
