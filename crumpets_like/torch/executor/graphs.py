"""Work that is recorded once and replayed: CUDA graphs.

The first runs of each piece of work are ordinary ones, which open what libraries open at their
first call. The next is recorded, which does not execute it, and then replayed, as are all further
ones. So recording leaves no trace in running statistics or random numbers.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

__all__ = ["CudaRecorder", "Recorder", "Replays", "open_recorder"]

WARM_UPS = 3
"""Ordinary runs before the recorded one."""

_HERE = os.path.dirname(__file__)

Work = Callable[[], None]
_cuda: Any = torch.cuda  # parts of it have no types


class Recorder(Protocol):
    """What can record work on a device."""

    def warm_up(self, work: Work) -> None:
        """Run it in the way in which it will be recorded."""

    def record(self, work: Work) -> Work:
        """Record it without executing it; the result replays it."""


class CudaRecorder:
    """Records kernels of one device; what it records shares one pool of memory.

    Parameters
    ----------
    device : torch.device
        A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = _cuda.graph_pool_handle()
        self._stream = _cuda.Stream(device)

    def warm_up(self, work: Work) -> None:
        """Run it on another stream than the current one, as when it is recorded."""
        current = _cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with _cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """Record it as a CUDA graph."""
        graph = _cuda.CUDAGraph()
        # Other threads may ask for events meanwhile, as those of a loader do.
        mode = "thread_local"
        with _cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode):
            work()
        replay: Work = graph.replay
        return replay


class Replays:
    """Runs pieces of work, each recorded after its first few runs.

    Parameters
    ----------
    recorder : Recorder
        Records them.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder | None = recorder
        self._runs: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Work] = {}

    def run(self, name: Hashable, work: Work, after: Hashable = None) -> None:
        """Run a piece of work, always the same for a name.

        Parameters
        ----------
        name : hashable
            Of the work.
        work : callable
            What to run, or to record.
        after : hashable, optional
            Work whose first runs must be over, too, before this is recorded.

        Warns
        -----
        RuntimeWarning
            If it cannot be recorded. From then on all runs are ordinary ones.
        """
        replay = self._recorded.get(name)
        if replay is not None:
            replay()
        elif self._recorder is None:
            work()
        elif min(self._runs[name], self._runs[after or name]) < WARM_UPS:
            self._runs[name] += 1
            self._recorder.warm_up(work)
        else:
            try:
                replay = self._recorded[name] = self._recorder.record(work)
            except RuntimeError as error:
                self._recorder = None
                self._recorded.clear()
                warn_of_fallback(str(error))
                work()
            else:
                replay()

    def recorded(self, name: Hashable) -> bool:
        """Whether a piece of work has been recorded."""
        return name in self._recorded

    def drop(self, name: Hashable) -> None:
        """Drop what was recorded of a piece of work; its next run is recorded."""
        self._recorded.pop(name, None)

    def drop_all(self) -> None:
        """Drop all that was recorded; the next runs are."""
        self._recorded.clear()

    @property
    def active(self) -> bool:
        """Whether work is, or will be, recorded."""
        return self._recorder is not None


def open_recorder(device: torch.device) -> Recorder | None:
    """What records work on a device; None, with one warning, if nothing does."""
    if device.type == "cuda":
        return CudaRecorder(device)
    warn_of_fallback(f"there are none on {device}")
    return None


def warn_of_fallback(why: str) -> None:
    """Say that steps are not replayed."""
    warnings.warn(
        f"cuda_graph=True: the step cannot be replayed as a CUDA graph ({why}). It runs as usual, "
        "with the same results, but every kernel is launched by the processor.",
        RuntimeWarning,
        stacklevel=_level_of_the_caller(),
    )


def _level_of_the_caller() -> int:
    """Which frame, seen from the warning, is the first outside of this subpackage."""
    level = 1
    while os.path.dirname(sys._getframe(level).f_code.co_filename) == _HERE:
        level += 1
    return level
