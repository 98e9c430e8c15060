"""Finding every process that stems from another one, also when its parents are gone.

A process belongs to a family if one of these holds:

* its chain of parents leads to the root of the family;
* its environment holds the family's mark, which every program started by the family inherits;
* it lies at the root's stack address (Linux): addresses are random for each program that is
  executed, so only forks share them. A fork has its parent's original environment, without marks
  that were set later.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass

import psutil

MARK = "CRUMPETS_TESTS"
"""Environment variable that holds the marks, joined by colons."""

_PARENT, _STACK = 1, 25  # fields of /proc/<pid>/stat, counted behind the name


def pids() -> frozenset[int]:
    """The numbers of all processes."""
    if sys.platform == "linux":
        return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())
    return frozenset(psutil.pids())


def new_mark() -> str:
    """A value for `MARK` with one more mark than the environment has."""
    return os.environ.get(MARK, "") + ":" + uuid.uuid4().hex


@dataclass(frozen=True)
class Family:
    """The processes that stem from `root`.

    Parameters
    ----------
    root : int
        Process number.
    mark : str
        Value of `MARK` in the environment of what `root` starts.
    stack : int
        Stack address of `root`; 0 where unknown.
    """

    root: int
    mark: str
    stack: int

    @classmethod
    def of(cls, root: int, mark: str) -> Family:
        """The family of `root`, which must have executed its program by now."""
        return cls(root, mark, _parent_and_stack(root)[1])

    def members(self, ignore: Collection[int] = ()) -> list[psutil.Process]:
        """All living members but the root and those in `ignore`; zombies count as living."""
        parents: dict[int, int] = {}
        found: set[int] = set()
        for pid in pids().difference(ignore, {self.root, os.getpid()}):
            try:
                parents[pid], stack = _parent_and_stack(pid)
                if (stack and stack == self.stack) or self.mark in _environment(pid):
                    found.add(pid)
            except (OSError, psutil.Error):  # it has ended, or is none of our business
                continue
        for pid in parents:
            chain = [pid]
            while chain[-1] in parents and chain[-1] not in found:
                chain.append(parents[chain[-1]])
            if chain[-1] == self.root or chain[-1] in found:
                found.update(chain)
        found.discard(self.root)
        members = []
        for pid in sorted(found):
            try:
                members.append(psutil.Process(pid))
            except psutil.NoSuchProcess:
                continue
        return members


def describe(process: psutil.Process) -> str:
    """One line about a process."""
    try:
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            return (
                f"process {process.pid} ({process.status()}, child of {process.ppid()}): "
                f"{command[:200]}"
            )
    except psutil.Error:
        return f"process {process.pid} (ended by now)"


def named(prefix: str) -> list[psutil.Process]:
    """The living descendants of this process whose name begins like this."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith(prefix):
                found.append(process)
    return found


def kill(processes: Collection[psutil.Process], timeout: float = 5.0) -> None:
    """Kill processes, wait for their end, at most `timeout` seconds, and reap those of ours."""
    for process in processes:
        try:
            process.kill()
        except psutil.Error:
            continue
    deadline = time.monotonic() + timeout
    for process in processes:
        while _runs(process) and time.monotonic() < deadline:
            time.sleep(0.002)
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # it is the child of another process, which may take its time
            continue


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _parent_and_stack(pid: int) -> tuple[int, int]:
    if sys.platform == "linux":
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[_PARENT]), int(fields[_STACK])
    return psutil.Process(pid).ppid(), 0


def _environment(pid: int) -> str:
    if sys.platform == "linux":
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().decode(errors="replace")
    return psutil.Process(pid).environ().get(MARK, "")
