"""The limit: bare processes that do the per-sample work and tell nobody."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import time
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .case import Case


class Limit:
    """Forked processes that write samples into a rotating set of shared mini-batches.

    The number of the next mini-batch comes from a shared counter; nothing else is exchanged.

    Parameters
    ----------
    case : Case
        What to load.
    buffers : int
        How many mini-batches the shared memory holds: as many as our loader uses.
    """

    def __init__(self, case: Case, buffers: int) -> None:
        self.case = case
        self.dataset = case.make_dataset("limit")
        self.epoch = case.batches["limit"]
        # Processes work on beyond the second epoch, so that its end finds all of them busy.
        self.total = 2 * self.epoch + 2 * case.workers
        rows = (buffers, case.batch_size)
        self.x = shared_array((*rows, *case.shape), case.dtype)
        self.y = shared_array(rows, np.int64)
        self.done_at = shared_array((self.total,), np.float64)
        self.next = shared_array((1,), np.int64)

    def measure(self) -> dict[str, float]:
        """Run all processes over two epochs and time the second.

        Returns
        -------
        dict of str to float
            Samples per second and milliseconds per batch.

        Raises
        ------
        RuntimeError
            If a process fails.
        """
        context = multiprocessing.get_context("fork")
        lock = context.Lock()
        processes = [
            context.Process(target=self.work, args=(lock,)) for _ in range(self.case.workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes = [process.exitcode for process in processes if process.exitcode]
        if codes:
            raise RuntimeError(f"{len(codes)} of the bare processes failed, exit codes {codes}")
        # By the order of finishing, whatever the numbers: exactly one epoch of mini-batches ends
        # between the two moments, and at both every process is busy.
        done = np.sort(self.done_at)
        seconds = float(done[2 * self.epoch - 1] - done[self.epoch - 1])
        return {
            "samples_per_second": self.epoch * self.case.batch_size / seconds,
            "ms_per_batch": 1e3 * seconds / self.epoch,
        }

    def work(self, lock: AbstractContextManager[Any]) -> None:
        """Take mini-batches and fill them until there are no more; runs in each process.

        Parameters
        ----------
        lock : context manager
            Guards the counter.
        """
        fill = getattr(type(self.dataset), "fill", None)
        if fill is None:
            fill = fill_bulk if hasattr(self.dataset, "__getitems__") else fill_each
        size = self.case.batch_size
        epoch = len(self.dataset) // size
        buffers = len(self.x)
        while True:
            with lock:
                number = int(self.next[0])
                self.next[0] = number + 1
            if number >= self.total:
                return
            start = number % epoch * size
            slot = number % buffers
            fill(self.dataset, range(start, start + size), self.x[slot], self.y[slot])
            # Monotonic time is one clock for all processes.
            self.done_at[number] = time.monotonic()


def fill_each(dataset: Any, indices: range, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Copy one sample after another into its row."""
    for row, index in enumerate(indices):
        x[row], y[row] = dataset[index]


def fill_bulk(dataset: Any, indices: range, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Copy a whole mini-batch at once."""
    x[:], y[:] = dataset.__getitems__(np.arange(indices.start, indices.stop))


def shared_array(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return a zeroed array in memory that forked children share.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype

    Returns
    -------
    ndarray of `dtype`, shape `shape`
    """
    memory = mmap.mmap(-1, math.prod(shape) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype).reshape(shape)
