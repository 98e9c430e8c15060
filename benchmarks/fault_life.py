"""Cases of the fault table in which nobody dies: errors, epochs left early, memory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import psutil

from .fault_items import BATCH_SIZE, ERRORS, Items, Locked, Objects
from .fault_use import (
    NO_OPTION,
    describe,
    epoch,
    iterate,
    make,
    names_culprit,
    note,
    open_loader,
    say,
)
from .memory import tree_size

__all__ = ["LIFE"]

_REOPENED = 100
_OPENED = 10
_TEN = 10  # batches
_FIRST = list(range(BATCH_SIZE))
_BIG = 10_000_000 // BATCH_SIZE // 4  # numbers in an item of a batch of 10 MB
_STRINGS = 100_000


def raise_all(loader: str, folder: str) -> None:
    """Item 17 raises one kind of exception after the other."""
    own = indices = tracebacks = 0
    others = []
    for name, (raises, type_name) in ERRORS.items():
        try:
            with open_loader(loader, Items(64, folder, name)) as begin:
                for _ in begin():
                    pass
            others.append(f"{name}: a quiet end")
        except BaseException as error:  # noqa: BLE001  all kinds are of interest
            text = f"{error}\n{error.__cause__}"
            own += type(error).__name__ == type_name
            indices += names_culprit(error)
            tracebacks += raises.__name__ in text
            if type_name not in f"{type(error).__name__} {text}":
                others.append(f"{name}: {type(error).__name__}")
    number = len(ERRORS)
    say(
        f"{number} kinds: own type {own}, worker's traceback {tracebacks}, index named {indices}"
        f"{'; ' if others else ''}{', '.join(others)}",
        named=indices == number,
    )


def bad_result(loader: str, folder: str) -> None:
    """What item 17 gives cannot be pickled."""
    dataset = Objects(64, folder)
    if loader == "ours":
        from crumpets_like import Worker

        with make(loader, dataset, worker=Worker()) as ours:
            batches = (batch["x"] for _, (batch,) in ours)
            iterate(([int(x) for x in batch] for batch in batches), 64, folder)
    else:
        theirs = make(loader, dataset, collate_fn=list)
        iterate(([sample["x"] for sample in batch] for batch in theirs), 64, folder)


def bad_dataset(start_method: str) -> Callable[..., None]:
    """The dataset holds a lock."""

    def run(loader: str, folder: str) -> None:
        dataset = Locked(64, folder)
        note(folder)
        try:
            if loader == "ours":
                with make(loader, dataset, start_method=start_method) as ours:
                    batches = list(epoch(ours))
            else:
                batches = list(epoch(make(loader, dataset, multiprocessing_context=start_method)))
            say(f"all {sum(map(len, batches))} samples")
        except Exception as error:  # noqa: BLE001  all kinds are of interest
            named = "lock cannot" in str(error)
            where = "names the attribute" if named else "does not name the attribute"
            say(f"`{type(error).__name__}`, {where}: {describe(error)}")

    return run


def slow_caller(loader: str, folder: str) -> None:
    """The caller takes longer than the time limit, while its batches are ready."""
    with open_loader(loader, Items(64, folder), 1) as begin:
        iterate(begin(), 64, folder, lambda: time.sleep(3))  # the caller's work


def bad_timeouts(loader: str, folder: str) -> None:
    """Time limits that make no sense."""
    answers = []
    for timeout in (-1.0, float("nan")):
        try:
            make(loader, Items(64, folder), timeout)
            answers.append(f"{timeout:g}: accepted")
        except ValueError:
            answers.append(f"{timeout:g}: `ValueError`")
    say(", ".join(answers))


def reopen(whole: bool) -> Callable[..., None]:
    """Take the first batch of many epochs, or break at once; count descriptors."""

    def run(loader: str, folder: str) -> None:
        with open_loader(loader, Items(64, folder)) as begin:
            started = time.monotonic()
            before = 0
            right = True
            for number in range(_REOPENED if whole else _OPENED):
                right = right and next(begin()) == _FIRST
                if number == 0:
                    before = psutil.Process().num_fds()
            more = psutil.Process().num_fds() - before
            seconds = time.monotonic() - started
        say(f"{_first(right)}; {seconds:.1f} s; {more:+d} descriptors")

    return run


def open_close(loader: str, folder: str) -> None:
    """Make many loaders, one after the other."""
    started = time.monotonic()
    before = 0
    right = True
    for number in range(_OPENED):
        with open_loader(loader, Items(64, folder)) as begin:
            right = right and next(begin()) == _FIRST
        if number == 0:
            before = psutil.Process().num_fds()
    more = psutil.Process().num_fds() - before
    say(f"{_first(right)}; {time.monotonic() - started:.1f} s; {more:+d} descriptors")


def _first(right: bool) -> str:
    return "always batch 0" if right else "wrong batches"


def leave_and_again(loader: str, folder: str) -> None:
    """Five of ten batches, then all, then two again, then all."""
    length = _TEN * BATCH_SIZE
    with open_loader(loader, Items(length, folder)) as begin:
        found = [
            [index for batch in islice(begin(), batches) for index in batch]
            for batches in (5, _TEN, 2, _TEN)
        ]
    right = [list(range(batches * BATCH_SIZE)) for batches in (5, _TEN, 2, _TEN)]
    say("each from the beginning, in order" if found == right else "wrong samples")


def two_iterators(loader: str, folder: str) -> None:
    """A second one is begun while the first is in use."""
    with open_loader(loader, Items(64, folder)) as begin:
        first, second = begin(), begin()
        right = next(first) == next(second) == _FIRST
        rest = len(list(second))
        try:
            say(f"both work ({rest}, {len(list(first))} more batches)" if right else "wrong ones")
        except Exception as error:  # noqa: BLE001  all kinds are of interest
            say(f"the newer works, the older: `{type(error).__name__}`: {describe(error)}")


def after_the_end(loader: str, folder: str) -> None:
    """An iterator is used after the ``with`` of its loader."""
    if loader != "ours":
        say("has no end")
        return
    with open_loader(loader, Items(64, folder)) as begin:
        batches = begin()
        next(batches)
    note(folder)
    iterate(batches, 64, folder)


def helper_thread(loader: str, folder: str) -> None:
    """The workers are started in a thread that ends."""
    made: Any = make(loader, Items(64, folder))
    iterators = []
    start = made.start if loader == "ours" else lambda: iterators.append(iter(made))
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.5)  # the parent-death signal of a worker comes some time after its thread's end
    iterate(epoch(made if loader == "ours" else iterators[0]), 64, folder)
    if loader == "ours":
        made.stop()


def hold_all(loader: str, folder: str) -> None:
    """The caller keeps every batch, with a limit of 8; then lets one go."""
    if loader != "ours":
        say(NO_OPTION)
        return
    with make(loader, Items(6400, folder), max_buffers=8) as ours:
        iterator, kept = iter(ours), []
        try:
            while True:
                kept.append(next(iterator))
        except MemoryError as error:
            what = f"`{type(error).__name__}`: {describe(error)}"
        del kept[0]
        goes_on = next(iterator)[0] == 8
    say(f"{what} Then {'goes on' if goes_on else 'is wrong'} after one is dropped")


def too_large(loader: str, folder: str) -> None:
    """The buffers do not fit the memory; one batch of torch's would be as large."""
    if loader != "ours":
        say("has no buffers of its own")
        return
    numbers = psutil.virtual_memory().total // 4 // BATCH_SIZE
    note(folder)
    try:
        make(loader, Items(64, folder, floats=numbers)).start()
        say("started")
    except Exception as error:  # noqa: BLE001  all kinds are of interest
        say(f"`{type(error).__name__}` at start(): {describe(error)}")


def plain(floats: int = 1) -> Callable[..., None]:
    """An epoch as any other; what is around it is not."""

    def run(loader: str, folder: str) -> None:
        with open_loader(loader, Items(64, folder, floats=floats)) as begin:
            iterate(begin(), 64, folder)

    return run


def many_epochs(loader: str, folder: str) -> None:
    """Memory after 50 epochs of 10 batches of 10 MB, and after 3 of them."""
    with open_loader(loader, Items(_TEN * BATCH_SIZE, folder, floats=_BIG)) as begin:
        sizes = []
        for number in range(50):
            batches = begin()
            for position, _ in enumerate(batches):
                if position == 5 and number in (2, 49):  # the workers of both are up
                    sizes.append(tree_size(os.getpid()))
    say(f"{sizes[0] / 1e6:.0f} MB in epoch 3, {sizes[1] / 1e6:.0f} MB in epoch 50")


def strings(shared: bool) -> Callable[..., None]:
    """Memory of a list of strings of which every one is read, twice."""

    def run(loader: str, folder: str) -> None:
        if shared and loader != "ours":
            say("has no such type")
            return
        texts: Any = [f"{number:0100d}" for number in range(_STRINGS)]
        if shared:
            from crumpets_like import SharedList

            texts = SharedList(texts)
        dataset = Items(_STRINGS, folder, texts=texts)
        with open_loader(loader, dataset) as begin:
            sizes = []
            for _ in range(2):
                for number, _ in enumerate(begin()):
                    if number in (_STRINGS // BATCH_SIZE // 100, _STRINGS // BATCH_SIZE - 100):
                        sizes.append(tree_size(os.getpid()))
        say(f"{sizes[0] / 1e6:.0f} MB at the beginning, {sizes[-1] / 1e6:.0f} MB at the end")

    return run


LIFE: dict[str, Callable[..., None]] = {
    "raises": raise_all,
    "result that cannot be pickled": bad_result,
    "dataset with a lock, forkserver": bad_dataset("forkserver"),
    "slow caller, timeout=1": slow_caller,
    "timeout=-1, nan": bad_timeouts,
    "loader started in a thread that ends": helper_thread,
    f"{_REOPENED} x next(iter(loader))": reopen(whole=True),
    f"{_OPENED} x open, first batch, close": open_close,
    "5 of 10 batches, all, 2, all": leave_and_again,
    "two iterators at once": two_iterators,
    "iterator after the end of `with`": after_the_end,
    "all batches kept, max_buffers=8": hold_all,
    "buffers larger than the memory": too_large,
    "TMPDIR of 150 characters": plain(),
    "16 MiB samples, /dev/shm of 64 MiB": plain(floats=1 << 22),
    "50 epochs of 10 batches of 10 MB": many_epochs,
    f"{_STRINGS:,} strings, a list": strings(shared=False),
    f"{_STRINGS:,} strings, SharedList": strings(shared=True),
}
