"""Memory of a tree of processes."""

import os
import subprocess
import sys

import pytest

from crumpets_like.benchmarks import memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

CHILD = """
import os, sys
block = bytearray(40_000_000)
block[::4096] = b"x" * len(block[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_child_is_counted() -> None:
    alone = memory.tree_size(os.getpid())
    assert alone > 0
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with memory.PeakWatch(os.getpid()) as watch:
            pass
        assert memory.proportional_set_size(child.pid) > 40_000_000
        assert memory.tree_size(os.getpid()) > 40_000_000 + alone // 2
        child.communicate(b"")
    assert watch.peak > 40_000_000


def test_a_process_that_is_gone_has_no_size() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    assert memory.tree_size(child.pid) == 0
