"""What pixel operations cost a worker, and what it saves to leave them to the device.

Three workers prepare the same samples, with geometry that is drawn alike, in turn, in one process.
"""

from __future__ import annotations

import operator
import statistics
import time
from functools import partial

import numpy as np

from .crops import SMALL, Pixels, PreparedCrops, augmenting_worker
from .photos import CROP

ROUND = 16
"""Samples that one worker prepares before it is the next one's turn."""


def measure(rounds: int) -> dict[str, float]:
    """Time them.

    Parameters
    ----------
    rounds : int
        Turns of each.

    Returns
    -------
    dict of str to float
        ``samples_per_second`` of the worker that leaves pixel operations to the device;
        ``geometry_ratio`` and ``pixels_ratio``: its time by that of a worker without any, and of
        one that applies them, medians over the rounds.
    """
    names: tuple[Pixels, ...] = ("geometry", "device", "pixels")
    workers = [PreparedCrops(ROUND, SMALL, partial(augmenting_worker, name)) for name in names]
    image, label = np.zeros((ROUND, CROP, CROP, 3), np.uint8), np.zeros(ROUND, np.int64)
    times: dict[str, list[float]] = {name: [] for name in names}
    order: list[tuple[str, PreparedCrops]] = list(zip(names, workers, strict=True))
    for number in range(rounds + 1):
        for name, worker in order:
            begin = time.perf_counter()
            worker.fill(range(ROUND), image, label)
            if number:  # the first is for the caches
                times[name].append(time.perf_counter() - begin)
        order.reverse()
    ratios = {
        name: statistics.median(map(operator.truediv, times["device"], times[name]))
        for name in ("geometry", "pixels")
    }
    return {
        "samples_per_second": ROUND / statistics.median(times["device"]),
        "geometry_ratio": ratios["geometry"],
        "pixels_ratio": ratios["pixels"],
    }
