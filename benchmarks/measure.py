"""Times passes over a loader, ours or torch's, in the same way."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from .case import Case


class Contender(Protocol):
    """A loader under test. Nothing may run in the background before `start`."""

    def start(self) -> None:
        """Begin whatever the loader needs to begin."""

    def batches(self) -> Iterable[object]:
        """Open one epoch."""

    def stop(self) -> None:
        """End every process."""


@dataclass(frozen=True)
class Pass:
    """When the batches of one epoch came, in seconds of `time.perf_counter`."""

    first: float
    last: float
    count: int


def spin(seconds: float) -> None:
    """Keep the interpreter busy, as a training step in pure Python does."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def consume(batches: Iterable[object], step_s: float = 0.0) -> Pass:
    """Take every batch, drop it at once, then spend `step_s` seconds in Python.

    Parameters
    ----------
    batches : iterable
        One epoch.
    step_s : float, optional
        Seconds to spin for each batch.

    Returns
    -------
    Pass
        `last` includes the step of the last batch.

    Raises
    ------
    RuntimeError
        If the epoch has no batch.
    """
    clock = time.perf_counter
    first = last = 0.0
    count = 0
    for batch in batches:
        del batch
        if not count:
            first = clock()
        if step_s:
            spin(step_s)
        last = clock()
        count += 1
    if not count:
        raise RuntimeError("the loader gave no batch: there is nothing to measure")
    return Pass(first, last, count)


def measure_epochs(contender: Contender, case: Case) -> dict[str, float]:
    """Run two epochs and time the second, from the last batch of the first to its own last.

    So the time between epochs counts, and a loader that works ahead gains nothing by it: at both
    ends it is equally far ahead.
    """
    begin = time.perf_counter()
    contender.start()
    warm = consume(contender.batches(), case.step_s)
    cpu = time.process_time()
    timed = consume(contender.batches(), case.step_s)
    cpu = time.process_time() - cpu
    contender.stop()
    seconds = timed.last - warm.last
    return {
        "samples_per_second": timed.count * case.batch_size / seconds,
        "ms_per_batch": 1e3 * seconds / timed.count,
        "first_batch_s": warm.first - begin,
        "cpu_us_per_batch": 1e6 * cpu / timed.count,
        "epoch_gap_s": timed.first - warm.last,
    }


def measure_first(contender: Contender, case: Case) -> dict[str, float]:
    """Time the first batch alone, from before `start`."""
    begin = time.perf_counter()
    contender.start()
    first = _open_and_take_one(contender)
    contender.stop()
    return {"first_batch_s": first - begin}


def measure_reopen(contender: Contender, case: Case) -> dict[str, float]:
    """Time the first batch twice, from before `start` and with the workers up, and the memory."""
    before = _resident_mb()
    begin = time.perf_counter()
    contender.start()
    first = _open_and_take_one(contender)
    reopened = time.perf_counter()
    again = _open_and_take_one(contender)
    growth = _resident_mb() - before
    contender.stop()
    return {
        "first_batch_s": first - begin,
        "reopen_s": again - reopened,
        "rss_growth_mb": growth,
    }


MEASURE: dict[str, Callable[[Contender, Case], dict[str, float]]] = {
    "epochs": measure_epochs,
    "first": measure_first,
    "reopen": measure_reopen,
}


def _open_and_take_one(contender: Contender) -> float:
    """Open an epoch, take one batch and leave; return when the batch came."""
    for batch in contender.batches():
        del batch
        return time.perf_counter()
    raise RuntimeError("the loader gave no batch: there is nothing to measure")


def _resident_mb() -> float:
    """Return the highest resident set that this process has had, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e6 if sys.platform == "darwin" else 1e3)
