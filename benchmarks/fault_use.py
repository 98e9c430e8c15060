"""How the cases of the fault table use a loader, and how they say what they saw."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from .fault_items import BATCH_SIZE, CULPRIT, WORKERS, Copy, note_fault

__all__ = [
    "NO_OPTION",
    "Open",
    "begin_for_ever",
    "describe",
    "epoch",
    "helper",
    "iterate",
    "make",
    "names_culprit",
    "note",
    "open_loader",
    "say",
    "workers",
]

NO_OPTION = "has no such option"

Open = Callable[[], Iterator[list[int]]]
"""Begins an epoch and gives the indices of its batches."""

_TEXT = 95  # characters of an error's text that are told


def make(name: str, dataset: Any, timeout: float | None = None, **options: Any) -> Any:
    """Make one of the loaders, with its usual start method.

    Parameters
    ----------
    name : {"ours", "torch"}
    dataset : Items
    timeout : float, optional
        Seconds, for both.
    **options
        Others, of this loader.
    """
    if name == "ours":
        from crumpets_like import TurboDataLoader

        worker = options.pop("worker", None) or Copy(dataset.floats)
        return TurboDataLoader(dataset, BATCH_SIZE, worker, WORKERS, timeout=timeout, **options)
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=WORKERS, timeout=timeout or 0, **options
    )


def epoch(loader: Any) -> Iterator[list[int]]:
    """Begin an epoch of either loader, when the first batch is asked for."""
    for batch in loader:
        rows = batch[1][0]["x"] if isinstance(batch, tuple) else batch
        yield [int(row) for row in rows[:, 0]]


@contextmanager
def open_loader(
    name: str, dataset: Any, timeout: float | None = None, **ours: Any
) -> Iterator[Open]:
    """Use a loader; torch's knows neither an end nor the options of ours."""
    if name == "ours":
        with make(name, dataset, timeout, **ours) as loader:
            yield lambda: epoch(loader)
    else:
        loader = make(name, dataset, timeout)
        yield lambda: epoch(loader)


def begin_for_ever(name: str, dataset: Any) -> Iterator[list[int]]:
    """Begin an epoch of a loader that nobody stops."""
    loader = make(name, dataset)
    return epoch(loader.start() if name == "ours" else loader)


def say(what: str, seconds: float | None = None, named: bool | None = None, **more: Any) -> None:
    """Tell the parent what happened; it must hear of it even if leaving hangs."""
    facts = {"what": what, "seconds": seconds, "named": named, "at": time.monotonic(), **more}
    print(json.dumps(facts), flush=True)


def iterate(
    batches: Iterator[list[int]],
    length: int,
    folder: str,
    first: Callable[[], object] | None = None,
    left_out: tuple[int, ...] = (),
) -> None:
    """Go through an epoch, whatever its end is, and say so; `first` is called after one batch."""
    seen: list[int] = []
    arrival = None
    try:
        if first is not None:
            seen += next(batches)
            first()  # torch may raise in here, from its signal handler
        for indices in batches:
            seen += indices
            if CULPRIT in indices:
                arrival = time.monotonic()
    except Exception as error:  # noqa: BLE001  all kinds are of interest
        since = _since_fault(folder, time.monotonic())
        intact = seen == list(range(len(seen)))
        say(
            f"`{type(error).__name__}` {_after(len(seen) // BATCH_SIZE)}"
            f"{'' if intact else ' (wrong ones)'}: {describe(error)}",
            since,
            names_culprit(error),
        )
        return
    expected = [index for index in range(length) if index not in left_out]
    what = f"all {length} samples, in order"
    if left_out:
        what = f"{len(expected)} samples, in order"
    if seen != expected:
        what = f"{len(seen)} samples, wrong"
    say(what, None if arrival is None or first else _since_fault(folder, arrival))


def names_culprit(error: BaseException) -> bool:
    """Whether an error's text names item 17; numbers of lines and processes do not count."""
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return re.search(rf"\b{CULPRIT}\b", re.sub(r"(line|pid\W*|\(s\)) \d+", "", text)) is not None


def describe(error: BaseException) -> str:
    """The first line of an error, not too long."""
    text = re.sub(r" ?\(pid(\(s\))? [\d, ]+\)", "", str(error).strip().partition("\n")[0])
    return text if len(text) <= _TEXT else text[: _TEXT - 3].rstrip() + "..."


def workers() -> list[psutil.Process]:
    """The worker processes of either loader."""
    ours = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            ours += [process] if process.name().startswith("crumpets-w") else []
    return ours or psutil.Process().children()


def helper(name: str) -> psutil.Process:
    """Another process of ours."""
    return next(p for p in psutil.Process().children(recursive=True) if p.name() == name)


def note(folder: str) -> None:
    """Write down that the first fault happens now."""
    note_fault(Path(folder) / "fault")


def _since_fault(folder: str, now: float) -> float | None:
    """Seconds since the first fault, None if there was none."""
    path = Path(folder) / "fault"
    return now - float(path.read_text(encoding="ascii")) if path.exists() else None


def _after(batches: int) -> str:
    return f"after batch {batches - 1}" if batches else "before any batch"
