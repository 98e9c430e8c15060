"""The benchmark of devices; where there is none, it says so."""

import re

import pytest

torch = pytest.importorskip("torch")

from crumpets_like.benchmarks.device import main  # noqa: E402


def test_both_loaders_run(capsys):
    assert main(["--device", "cpu", "--workers", "1", "--batch-size", "2", "--batches", "3"]) == 0
    printed = capsys.readouterr().out
    lines = r"torch +[\d,]+ samples/s\ncrumpets-like +[\d,]+ samples/s\nratio +\d+\.\d\d\n"
    assert re.fullmatch(lines, printed)


def test_without_a_device(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 1
    assert "finds no CUDA device here" in capsys.readouterr().err
