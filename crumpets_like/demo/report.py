"""What the demonstration prints about its result and its times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class EpochTimes:
    """Where the time of one epoch of training went.

    Attributes
    ----------
    wait : float
        Seconds that the caller waited for mini-batches.
    step : float
        Seconds that the caller spent on training steps.
    """

    wait: float
    step: float


def accuracy_line(right: int, count: int, floor: float) -> str:
    """Return one line about `right` of `count` test scans, where `floor` is asked for."""
    return (
        f"test accuracy {right / count:.1%} ({right} of {count} scans, at least {floor:.0%} wanted)"
    )


def times_table(times: Mapping[str, Sequence[EpochTimes]]) -> str:
    """Return a table of each loader's median epoch.

    Parameters
    ----------
    times : mapping of str to sequence of EpochTimes
        Each loader's epochs, in order. The first one, in which workers start, is left out where
        there are others.

    Returns
    -------
    str
        Several lines; times in seconds.
    """
    lines = [
        "seconds per epoch, 2 workers, median without the first epoch",
        f"  {'loader':<18}{'waiting':>9}{'steps':>9}{'epoch':>9}",
    ]
    for name, epochs in times.items():
        steady = epochs[1:] or epochs
        wait = median(epoch.wait for epoch in steady)
        step = median(epoch.step for epoch in steady)
        whole = median(epoch.wait + epoch.step for epoch in steady)
        lines.append(f"  {name:<18}{wait:>9.3f}{step:>9.3f}{whole:>9.3f}")
    return "\n".join(lines)
