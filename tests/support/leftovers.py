"""What a piece of code leaves behind: processes, threads, descriptors, shared memory, files."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.processes import Family, describe, kill, pids

_SHARED_MEMORY = Path("/dev/shm")
_STEP = 0.02  # seconds between two looks

ON_PURPOSE = "left-"
"""How the names of segments begin that tests leave, to see whether they are found."""

COUNT_ALL = "CRUMPETS_TESTS_COUNT_ALL"
"""Environment variable with which these count, too: not in tests that run at the same time."""


@dataclass(frozen=True)
class State:
    """What exists at one moment."""

    pids: frozenset[int]
    threads: frozenset[threading.Thread]
    native_threads: frozenset[int]
    descriptors: frozenset[tuple[int, str]]
    shared_memory: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls) -> State:
        """Take stock; about a millisecond."""
        return cls(
            pids=pids(),
            threads=frozenset(threading.enumerate()),
            native_threads=frozenset(_native_threads()),
            descriptors=frozenset(_descriptors()),
            shared_memory=shared_memory(),
            files=frozenset(files(tempfile.gettempdir())),
        )


@dataclass(frozen=True)
class Leftovers:
    """What exists now and did not before; false if that is nothing."""

    processes: tuple[psutil.Process, ...]
    threads: tuple[threading.Thread, ...]
    lines: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.lines)

    def __str__(self) -> str:
        return "\n".join(
            [
                *(describe(process) for process in self.processes),
                *(f"thread {thread!r}" for thread in self.threads),
                *self.lines,
            ]
        )

    @classmethod
    def since(cls, before: State, family: Family) -> Leftovers:
        """What there is more than `before`; processes and shared memory of `family` only."""
        processes = tuple(family.members(before.pids))
        threads = tuple(t for t in threading.enumerate() if t not in before.threads)
        lines = [
            f"native thread {number} ({name})"
            for number, name in _new_native_threads(before.native_threads)
        ]
        lines += [
            f"descriptor {number} -> {target}"
            for number, target in sorted(_descriptors() - before.descriptors)
        ]
        lines += [
            f"shared memory {_SHARED_MEMORY / name}"
            for name in new_shared_memory(before.shared_memory, family)
        ]
        lines += [f"file {name}" for name in sorted(files(tempfile.gettempdir()) - before.files)]
        return cls(processes, threads, tuple(lines))

    @classmethod
    def after_grace(cls, before: State, family: Family, seconds: float) -> Leftovers:
        """What is there more than `before` once everything had `seconds` to end by itself."""
        deadline = time.monotonic() + seconds
        left = cls.since(before, family)
        if left:
            gc.collect()  # what only a reference cycle holds is no leak
            left = cls.since(before, family)
        while left and time.monotonic() < deadline:
            # Waiting for a child process itself would reap it, which is for the code to do.
            time.sleep(_STEP)
            left = cls.since(before, family)
        return left

    def kill(self) -> None:
        """End the processes."""
        kill(self.processes)


def files(folder: str | os.PathLike[str]) -> set[str]:
    """All paths in `folder`, at any depth: files, sockets, folders."""
    found: set[str] = set()
    for parent, folders, names in os.walk(folder):
        found.update(os.path.join(parent, name) for name in (*folders, *names))
    return found


def shared_memory() -> frozenset[str]:
    """The names of all POSIX shared memory segments and semaphores (Linux)."""
    if not _SHARED_MEMORY.is_dir():
        return frozenset()
    names = os.listdir(_SHARED_MEMORY)
    count_all = COUNT_ALL in os.environ
    return frozenset(name for name in names if count_all or not name.startswith(ON_PURPOSE))


def remove_shared_memory(names: Iterable[str]) -> None:
    """Remove segments."""
    for name in names:
        (_SHARED_MEMORY / name).unlink(missing_ok=True)


def new_shared_memory(before: Iterable[str], family: Family) -> list[str]:
    """The segments that are not in `before`, and not in use by a process outside `family`."""
    new = shared_memory().difference(before)
    if not new:
        return []
    ours = {family.root, os.getpid(), *(process.pid for process in family.members())}
    foreign: set[str] = set()
    for pid in pids() - ours:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            opened = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has ended, or is not ours to read
            continue
        # A semaphore is made under another name, which whoever made it has mapped: see sem_open
        # of the GNU C library. Its inode stays the same.
        mapped = {int(line.split()[4]) for line in maps if str(_SHARED_MEMORY) in line}
        foreign.update(
            name
            for name in new
            if str(_SHARED_MEMORY / name) in opened or _inode(_SHARED_MEMORY / name) in mapped
        )
    return sorted(new - foreign)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:  # it has gone
        return -1


def _native_threads() -> set[int]:
    if sys.platform != "linux":
        return set()
    return {int(name) for name in os.listdir("/proc/self/task")}


def _new_native_threads(before: frozenset[int]) -> list[tuple[int, str]]:
    """New threads of libzmq. Those of numerical libraries are pools that stay for good."""
    found = []
    for number in sorted(_native_threads() - before):
        try:
            name = Path(f"/proc/self/task/{number}/comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if name.startswith("ZMQ"):
            found.append((number, name))
    return found


def _descriptors() -> set[tuple[int, str]]:
    if sys.platform == "linux":
        found = set()
        for name in os.listdir("/proc/self/fd"):
            try:
                found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
            except OSError:  # the descriptor of this very listing
                continue
        return found
    return {(int(name), "open") for name in os.listdir("/dev/fd") if _is_open(int(name))}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
