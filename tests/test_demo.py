"""The demonstration: its data, its report, and a whole run."""

import os
import re
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crumpets_like import demo
from crumpets_like.demo.report import EpochTimes, accuracy_line, times_table


def run_demo(
    code: str, folder: Path, stderr: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process whose temporary folder is `folder`."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=180,
        check=False,
    )


def on_terminal(code: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run code whose standard error is a terminal; also what that has shown."""
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 80))
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # nobody has the other end any more
            while part := os.read(terminal, 4096):
                shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        run = run_demo(code, folder, end)
    finally:
        os.close(end)
        reader.join()
        os.close(terminal)
    return run, shown.decode()


def need_extras() -> None:
    for module in ("cv2", "simplejpeg", "sklearn", "torch", "tqdm"):
        pytest.importorskip(module)


@pytest.mark.slow
def test_demo_learns_and_reports(tmp_path: Path) -> None:
    need_extras()
    code = "import sys, crumpets_like.cli as c; sys.exit(c.main(['demo']))"
    run, shown = on_terminal(code, tmp_path)
    assert run.returncode == 0, shown
    accuracy = re.search(r"test accuracy (\d+\.\d)%", run.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) >= 95.0
    for loader in ("crumpets-like", "torch DataLoader"):
        assert re.search(rf"^  {loader}( +\d+\.\d{{3}}){{3}}$", run.stdout, re.MULTILINE)
    assert "100%" in shown  # the progress bar
    assert "Traceback" not in shown
    assert list(tmp_path.glob("crumpets-like-demo-*")) == []


@pytest.mark.slow
def test_too_low_accuracy_is_a_failure(tmp_path: Path) -> None:
    need_extras()
    run = run_demo("import sys, crumpets_like.demo as d; sys.exit(d.run(1, floor=1.01))", tmp_path)
    assert run.returncode == 1
    assert "%|" not in run.stderr  # a bar is for terminals
    assert re.search(r"The test accuracy \d+\.\d% is below 101% after 1 epochs", run.stderr)
    assert list(tmp_path.glob("crumpets-like-demo-*")) == []


def test_missing_extras_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {"torch", "tqdm", "sklearn"}
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in absent else object())
    assert demo.run() == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "needs sklearn, tqdm, torch, which cannot be found" in captured.err
    assert "pip install 'crumpets-like[demo,torch]'" in captured.err


def test_digits_are_split_and_stored_as_jpeg(tmp_path: Path) -> None:
    need_extras()
    from sklearn.datasets import load_digits

    from crumpets_like.demo.digits import make_worker, write_digits

    digits = load_digits()
    train, test = write_digits(tmp_path, seed=1)
    assert (len(train), len(test)) == (1438, 359)
    numbers = [int(path.stem) for path in train.paths + test.paths]
    assert sorted(numbers) == list(range(1797))
    assert train.labels + test.labels == digits.target[numbers].tolist()
    assert test[0]["image"].startswith(b"\xff\xd8\xff")

    worker, row = make_worker(augment=False), np.zeros((1, 32, 32), np.float32)
    rows: dict[str, Any] = {"image": row}
    for index in range(0, len(test), 40):
        pixels, params = worker.draw(test[index]["image"], rows, np.random.default_rng(0))
        worker.prepare_image(pixels, rows, params, "image")
        small = row[0].reshape(8, 4, 8, 4).mean(axis=(1, 3))
        scan = digits.images[numbers[len(train) + index]] / 16
        assert np.corrcoef(small.ravel(), scan.ravel())[0, 1] > 0.97


def test_table_leaves_the_first_epoch_out() -> None:
    times = [EpochTimes(9.0, 9.0), EpochTimes(0.1, 0.5), EpochTimes(0.3, 0.7), EpochTimes(0.2, 0.9)]
    lines = times_table({"one": times, "other": [EpochTimes(1.0, 2.0)]}).splitlines()
    assert lines[2].split() == ["one", "0.200", "0.700", "1.000"]
    assert lines[3].split() == ["other", "1.000", "2.000", "3.000"]


def test_accuracy_line() -> None:
    assert accuracy_line(353, 359, 0.95).startswith("test accuracy 98.3% (353 of 359 scans")
