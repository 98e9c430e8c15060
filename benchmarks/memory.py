"""Memory of a process and all its descendants, each shared page counted once."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil

#: Seconds between two looks. Reading walks page tables, so timed runs are never watched.
INTERVAL = 0.1


def proportional_set_size(pid: int) -> int:
    """Return the PSS of one process in bytes: shared pages are divided among their users.

    Parameters
    ----------
    pid : int

    Returns
    -------
    int
        0 if the process is gone or the system does not tell (macOS).
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def tree_size(pid: int) -> int:
    """Return the summed PSS of a process and its descendants in bytes."""
    try:
        pids = [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        pids = []
    return sum(map(proportional_set_size, [pid, *pids]))


class PeakWatch:
    """Watches a tree of processes from a thread and keeps the largest size seen.

    Parameters
    ----------
    pid : int
        Root of the tree.

    Attributes
    ----------
    peak : int
        Bytes; 0 until something was seen.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakWatch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            self.peak = max(self.peak, tree_size(self.pid))
            self._over.wait(INTERVAL)
