"""One case of the fault table for one loader, in this fresh process; says what it saw as JSON.

``python -m crumpets_like.benchmarks.fault_child LOADER CASE FOLDER``
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from .fault_items import BATCH_SIZE, CULPRIT, FAULTS, WORKERS, Copy, Items, note_fault

Open = Callable[[], Iterator[list[int]]]
"""Begins an epoch and gives the indices of its batches."""

_REOPENED = 200
_IDLE = 1.0  # seconds until all workers have nothing to do
_LARGE = 1 << 16  # numbers in an item
_TEXT = 95  # characters of an error's text that are told


@contextmanager
def open_loader(name: str, dataset: Items, timeout: float | None = None) -> Iterator[Open]:
    """Use one of the loaders, with its usual start method."""
    if name == "ours":
        from crumpets_like import TurboDataLoader

        with TurboDataLoader(
            dataset, BATCH_SIZE, Copy(dataset.floats), WORKERS, timeout=timeout
        ) as ours:
            yield lambda: (batch["x"][:, 0].astype(int).tolist() for _, (batch,) in ours)
        return
    from torch.utils.data import DataLoader

    items: Any = dataset
    theirs: DataLoader[Any] = DataLoader(
        items, batch_size=BATCH_SIZE, num_workers=WORKERS, timeout=timeout or 0
    )
    yield lambda: (batch[:, 0].int().tolist() for batch in theirs)


def say(what: str, seconds: float | None = None, named: bool | None = None) -> None:
    """Tell the parent what happened; it must hear of it even if leaving hangs."""
    print(json.dumps({"what": what, "seconds": seconds, "named": named}), flush=True)


def main(argv: Sequence[str]) -> int:
    """Run one case."""
    loader, case, folder = argv
    special = {
        "idle worker killed": idle_kill,
        "broker killed": broker_kill,
        "kill -9 of the training process": run_for_ever,
        "200 x next(iter(loader))": reopen,
        "workers stopped, then left": stopped_workers,
    }
    if case in special:
        special[case](loader, folder)
    else:
        fault, _, how = case.partition(", ")
        dataset = Items(64, folder, fault, once=how == "once")
        with open_loader(loader, dataset, 2 if fault == "hang" else None) as begin:
            iterate(begin(), 64, folder)
    return 0


def iterate(
    batches: Iterator[list[int]],
    length: int,
    folder: str,
    first: Callable[[], object] | None = None,
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
        since = time.monotonic() - _fault_time(folder)
        notes = "\n".join([str(error), *getattr(error, "__notes__", ())])
        intact = seen == list(range(len(seen)))
        say(
            f"`{type(error).__name__}` {_after(len(seen) // BATCH_SIZE)}"
            f"{'' if intact else ' (wrong ones)'}: {_shorten(str(error))}",
            since,
            re.search(rf"\b{CULPRIT}\b", re.sub(r"(line|pid\W*|\(s\)) \d+", "", notes)) is not None,
        )
        return
    right = seen == list(range(length))
    what = f"all {length} samples, in order" if right else f"{len(seen)} samples, wrong"
    say(what, None if arrival is None or first else arrival - _fault_time(folder))


def idle_kill(loader: str, folder: str) -> None:
    """A worker is killed while all buffers are full."""
    length = 80 * BATCH_SIZE
    with open_loader(loader, Items(length, folder)) as begin:

        def kill() -> None:
            # No loader says when its buffers are full, or that nothing happened.
            time.sleep(_IDLE)
            _note(folder)
            _workers()[0].kill()
            time.sleep(_IDLE)

        iterate(begin(), length, folder, kill)


def broker_kill(loader: str, folder: str) -> None:
    """The process between the training process and the workers is killed."""
    if loader != "ours":
        say("has no such process")
        return
    with open_loader(loader, Items(100_000, folder, seconds=0.001)) as begin:

        def kill() -> None:
            family = psutil.Process().children(recursive=True)
            broker = next(p for p in family if p.name() == "crumpets-broker")
            _note(folder)
            broker.kill()

        iterate(begin(), 100_000, folder, kill)


def run_for_ever(loader: str, folder: str) -> None:
    """Iterate until somebody ends this process."""
    with open_loader(loader, Items(1_000_000, folder, floats=_LARGE)) as begin:
        for number, _ in enumerate(begin()):
            if number == 20:
                say("running")


def reopen(loader: str, folder: str) -> None:
    """Take the first batch of many epochs, and count descriptors."""
    with open_loader(loader, Items(64, folder)) as begin:
        started = time.monotonic()
        right = next(begin()) == list(range(BATCH_SIZE))
        before = psutil.Process().num_fds()
        for _ in range(_REOPENED - 1):
            right = right and next(begin()) == list(range(BATCH_SIZE))
        more = psutil.Process().num_fds() - before
        seconds = time.monotonic() - started
    what = "always batch 0" if right else "wrong batches"
    say(f"{what}; {seconds:.1f} s; {more:+d} descriptors")


def stopped_workers(loader: str, folder: str) -> None:
    """Leave a loader whose workers do not run."""
    with open_loader(loader, Items(100_000, folder, seconds=0.001)) as begin:
        batches = begin()
        next(batches)
        for worker in _workers():
            worker.send_signal(signal.SIGSTOP)
        leaving = time.monotonic()
        del batches
    say("left the loader", time.monotonic() - leaving)


def _workers() -> list[psutil.Process]:
    family = psutil.Process().children(recursive=True)
    ours = [process for process in family if process.name().startswith("crumpets-w")]
    return ours or psutil.Process().children()


def _note(folder: str) -> None:
    note_fault(Path(folder) / "fault")


def _fault_time(folder: str) -> float:
    note = Path(folder) / "fault"
    return float(note.read_text(encoding="ascii")) if note.exists() else time.monotonic()


def _after(batches: int) -> str:
    return f"after batch {batches - 1}" if batches else "before any batch"


def _shorten(text: str) -> str:
    text = re.sub(r" ?\(pid(\(s\))? [\d, ]+\)", "", text.strip().partition("\n")[0])
    return text if len(text) <= _TEXT else text[: _TEXT - 3].rstrip() + "..."


CASES = (
    *(f"{fault}, {how}" for how in ("always", "once") for fault in list(FAULTS)[:6]),
    "idle worker killed",
    "broker killed",
    "kill -9 of the training process",
    "hang, timeout=2",
    "raises an unpicklable exception",
    "200 x next(iter(loader))",
    "workers stopped, then left",
)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
