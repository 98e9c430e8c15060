"""Cases of the fault table in which processes end, are stopped, or get signals."""

from __future__ import annotations

import gc
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

import psutil

from .fault_items import BATCH_SIZE, CULPRIT, FAULTS, Items
from .fault_use import NO_OPTION, begin_for_ever, helper, iterate, note, open_loader, say, workers

__all__ = ["DEATHS"]

_IDLE = 1.0  # seconds until all workers have nothing to do
_LARGE = 1 << 16  # numbers in an item
_MANY = 100  # kills in one epoch ...
_SAMPLES = 2000  # ... of so many samples


def culprit(fault: str, once: bool = False, timeout: float | None = None) -> Callable[..., None]:
    """Item 17 does something terrible, always or only the first time."""

    def run(loader: str, folder: str) -> None:
        dataset = Items(64, folder, fault, once=once)
        with open_loader(loader, dataset, timeout) as begin:
            iterate(begin(), 64, folder)

    return run


def skip(loader: str, folder: str) -> None:
    """The loader is told to go on without what ends its workers."""
    if loader != "ours":
        say(NO_OPTION)
        return
    with open_loader(loader, Items(64, folder, "SIGKILL"), on_error="skip") as begin:
        iterate(begin(), 64, folder, left_out=(CULPRIT,))


def kill_idle(loader: str, folder: str) -> None:
    """A worker is killed while all buffers are full."""
    length = 80 * BATCH_SIZE
    with open_loader(loader, Items(length, folder)) as begin:

        def kill() -> None:
            # No loader says when its buffers are full, or that nothing happened.
            time.sleep(_IDLE)
            note(folder)
            workers()[0].kill()
            time.sleep(_IDLE)

        iterate(begin(), length, folder, kill)


def kill_busy(everyone: bool) -> Callable[..., None]:
    """One worker or all of them are killed while they work."""

    def run(loader: str, folder: str) -> None:
        length = 40 * BATCH_SIZE
        with open_loader(loader, Items(length, folder, seconds=0.005)) as begin:

            def kill() -> None:
                note(folder)
                for worker in workers()[: None if everyone else 1]:
                    worker.kill()

            iterate(begin(), length, folder, kill)

    return run


def kill_often(loader: str, folder: str) -> None:
    """Workers are killed all through an epoch."""
    options: Any = {"restarts": 2 * _MANY}
    with open_loader(loader, Items(_SAMPLES, folder, seconds=0.004), **options) as begin:
        batches = begin()
        kills = 0

        def killing() -> Any:
            nonlocal kills
            for number, batch in enumerate(batches):
                yield batch
                while kills * _SAMPLES < (number + 1) * BATCH_SIZE * _MANY and (some := workers()):
                    if not kills:
                        note(folder)
                    with suppress(psutil.NoSuchProcess):  # it has just ended
                        some[kills % len(some)].kill()
                        kills += 1

        iterate(killing(), _SAMPLES, folder)


def kill_helper(name: str) -> Callable[..., None]:
    """A process between the training process and the workers is killed."""

    def run(loader: str, folder: str) -> None:
        if loader != "ours":
            say("has no such process")
            return
        with open_loader(loader, Items(100_000, folder, seconds=0.001)) as begin:

            def kill() -> None:
                note(folder)
                helper(name).kill()

            iterate(begin(), 100_000, folder, kill)

    return run


def stop_workers(loader: str, folder: str) -> None:
    """Leave a loader whose workers do not run."""
    with open_loader(loader, Items(100_000, folder, seconds=0.001)) as begin:
        batches = begin()
        next(batches)
        for worker in workers():
            worker.send_signal(signal.SIGSTOP)
        leaving = time.monotonic()
        del batches
    say("left the loader", time.monotonic() - leaving)


# -- the training process ---------------------------------------------------------------------


def signalled(
    name: str, *, times: int = 1, loaders: int = 1, early: bool = False, **items: Any
) -> Callable[..., None]:
    """The parent sends a signal in the middle of the epoch, or while the workers start."""

    def run(loader: str, folder: str) -> None:
        message: dict[str, Any] = {"signal": name, "times": times, "pause": 0.1 if early else 1.0}
        if early:
            if loader == "torch":
                import torch.utils.data  # noqa: F401  it is the start of the workers that counts
            say("running", **message)
        dataset = Items(1_000_000, folder, **items)
        with ExitStack() as stack:
            epochs = [stack.enter_context(open_loader(loader, dataset))() for _ in range(loaders)]
            for number in count():
                for batches in epochs:
                    next(batches)
                if not (number or early):
                    say("running", **message)

    return run


def leave(how: str) -> Callable[..., None]:
    """End the program, or drop the loader, in the middle of an epoch."""

    def run(loader: str, folder: str) -> None:
        batches = begin_for_ever(loader, Items(1_000_000, folder, seconds=0.001))
        next(batches)
        if how == "collected":
            began = time.monotonic()
            del batches
            gc.collect()
            while workers():
                time.sleep(0.01)  # processes of any loader: nothing tells of them
            say("its workers ended", time.monotonic() - began)
            return
        _kept.append(batches)
        say("ending")

    return run


def exit_in_body(loader: str, folder: str) -> None:
    """``sys.exit()`` in the middle of an epoch."""
    with open_loader(loader, Items(1_000_000, folder, seconds=0.001)) as begin:
        for _ in begin():
            say("ending")
            sys.exit()


_kept: list[object] = []  # until the end of the program


def raise_in_body(loader: str, folder: str) -> None:
    """An exception of the caller's own code goes through."""
    try:
        with open_loader(loader, Items(100_000, folder, seconds=0.001)) as begin:
            for _ in begin():
                note(folder)
                began = time.monotonic()
                raise LookupError("mine")
    except LookupError as error:
        say(f"`{type(error).__name__}`: {error}", time.monotonic() - began)


SIGINT = "SIGINT to the process group"

DEATHS: dict[str, Callable[..., None]] = {
    **{f"{fault}, always": culprit(fault) for fault in list(FAULTS)[:6]},
    **{f"{fault}, once": culprit(fault, once=True) for fault in list(FAULTS)[:6]},
    'SIGKILL, always, on_error="skip"': skip,
    "idle worker killed": kill_idle,
    "working worker killed": kill_busy(False),
    "all workers killed at once": kill_busy(True),
    f"{_MANY} kills in {_SAMPLES:,} samples": kill_often,
    "broker killed": kill_helper("crumpets-broker"),
    "supervisor killed": kill_helper("crumpets-superv"),
    "kill -9 of the training process": signalled("SIGKILL", loaders=3, floats=_LARGE),
    SIGINT: signalled("SIGINT", seconds=0.5),
    f"{SIGINT}, twice": signalled("SIGINT", times=2, seconds=0.5),
    f"{SIGINT}, at the start": signalled("SIGINT", early=True, seconds=0.5),
    "SIGTERM": signalled("SIGTERM", seconds=0.5),
    "sys.exit() in the body": exit_in_body,
    "end of the program, nothing stopped": leave("end"),
    "dropped, nothing stopped": leave("collected"),
    "workers stopped, then left": stop_workers,
    "exception in the body": raise_in_body,
}
