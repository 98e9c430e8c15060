"""The drop-in loader in a script: no guard, no with, nothing left behind, however it ends."""

from __future__ import annotations

import pytest

from tests.support.scenario import run_scenario

pytest.importorskip("torch")

SCRIPT = """
import torch
from crumpets_like.torch import DataLoader

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return Square(index * index), torch.ones(2000)

class Square:
    def __init__(self, value):
        self.value = value

def join(samples):
    squares, ones = zip(*samples)
    assert type(squares[0]) is Square
    return squares, torch.stack(ones)

loader = DataLoader(Squares(), 2, num_workers=2, collate_fn=join, multiprocessing_context=START)
kept = []
for squares, ones in loader:
    assert type(squares[0]) is Square
    kept.append(ones)
    if len(kept) == 3:
        break
assert [square.value for squares, _ in loader for square in squares][-1] == 81
left, other = iter(loader), iter(loader)
next(left)
"""

ENDS = {
    "at the end": ("", 0),
    "sys.exit": ("import sys; sys.exit(3)", 3),
    "os._exit": ("import os; os._exit(4)", 4),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", -9),
    "collected in a cycle": ("loader.cycle = left.cycle = [loader, left]; del loader, left", 0),
}


def script(end, start_method="fork"):
    return f"START = {start_method!r}\n{SCRIPT}{end}"


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=ENDS)
def test_nothing_is_left(end, code):
    result = run_scenario(script(end), options=["-W", "error"], timeout=120).check(code)
    assert result.stderr == ""


def test_by_default():
    result = run_scenario(script("", None), options=["-W", "error"], timeout=120).check()
    assert result.stderr == ""


def test_an_exception():
    result = run_scenario(script("raise KeyError('mine')"), timeout=120).check(1)
    assert result.stderr.count("Traceback") == 1
    assert "KeyError: 'mine'" in result.stderr
