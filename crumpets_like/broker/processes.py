"""Operating system facts that every process of the loader needs.

* :func:`death_descriptor`: a descriptor that becomes readable when a process ends.
* :class:`Wakeup`: a descriptor that another thread makes readable.
* :func:`die_with_parent`, :func:`name_process`: Linux ``prctl`` calls.

All waits of the loader are one OS wait over such descriptors and sockets.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import Any

__all__ = [
    "BROKER_DIED",
    "GOOD_BYE",
    "PASSED_OVER",
    "STARTING_UP",
    "THREAD_NAME",
    "Wakeup",
    "death_descriptor",
    "die_with_parent",
    "name_process",
    "search_path",
    "thread_count",
    "thread_limits",
    "wait_readable",
]

# Ends a worker that is still importing or in setup(). (Windows, where start() refuses, has none.)
STARTING_UP = getattr(signal, "SIGHUP", signal.SIGTERM)
BROKER_DIED = 3  # exit code of the supervisor: the broker ended without being asked
GOOD_BYE = b"."  # of a training process that ends its supervisor; one that is killed says nothing
# Signals to all processes of a job that supervisor and broker do not end by.
PASSED_OVER = tuple(
    getattr(signal, name)
    for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM")
    if hasattr(signal, name)
)
THREAD_NAME = "crumpets-"  # begins the name of each of our threads in the training process

_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def death_descriptor(pid: int) -> int:
    """Open a descriptor that is readable once process `pid` has ended.

    A pidfd on Linux, a kqueue with a process filter on macOS. Unlike the end of a
    pipe it cannot be held open by a process that the user forks.

    Raises
    ------
    ProcessLookupError
        If there is no such process any more.
    """
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    queue = select.kqueue()
    event = select.kevent(
        pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT
    )
    queue.control([event], 0)
    descriptor = os.dup(queue.fileno())
    queue.close()
    return descriptor


def wait_readable(descriptors: list[int], timeout: float | None) -> list[int]:
    """Wait until some of `descriptors` are readable; `timeout` in seconds."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN | select.POLLHUP)
    limit = None if timeout is None else max(0.0, timeout * 1000)
    return [descriptor for descriptor, _ in poller.poll(limit)]


class Wakeup:
    """A descriptor that any thread can make readable, for good."""

    def __init__(self) -> None:
        if sys.platform == "linux":
            self._read = self._write = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._read, self._write = os.pipe()
            os.set_blocking(self._read, False)
            os.set_blocking(self._write, False)

    def fileno(self) -> int:
        """Descriptor to wait on."""
        return self._read

    def set(self) -> None:
        """Make the descriptor readable."""
        try:
            os.write(self._write, (1).to_bytes(8, sys.byteorder))
        except BlockingIOError:  # it is readable already
            pass

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in {self._read, self._write}:
            os.close(descriptor)


def _prctl(option: int, value: Any) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent(signal_number: int, parent: int) -> None:
    """Ask the kernel for `signal_number` when the process `parent` ends (Linux).

    The signal fires when the parent's *thread* ends, so the parent has to be
    single-threaded; a parent that has ended already is noticed here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:
        os._exit(1)


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show (Linux, at most 15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def search_path() -> list[str]:
    """The module search path, without what is relative to a working directory that is gone."""
    try:
        return [os.path.abspath(entry) for entry in sys.path]
    except FileNotFoundError:
        return [entry for entry in sys.path if os.path.isabs(entry)]


def thread_limits(threads: int) -> dict[str, str]:
    """Environment variables that limit the threads of libraries which are imported later."""
    return dict.fromkeys(_LIMITS, str(threads))


def thread_count() -> int:
    """Threads of this process, those of libraries included."""
    if sys.platform == "linux":
        return len(os.listdir("/proc/self/task"))
    import psutil

    return int(psutil.Process().num_threads())
