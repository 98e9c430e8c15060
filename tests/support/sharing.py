"""Scenarios with shared lists: every way into another process, their memory, their descriptors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from crumpets_like import BufferWorker, SharedList, TurboDataLoader
from tests.support.processes import named

__all__ = [
    "Looks",
    "descriptors",
    "handed_to_multiprocessing",
    "handed_to_torch",
    "list_memory",
    "many_lists",
    "texts",
    "through_a_loader",
    "through_loaders",
]


def texts(length: int, size: int = 100) -> list[str]:
    """Different strings of `size` characters."""
    return [f"{number:0{size}}" for number in range(length)]


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))


class Looks(BufferWorker):
    """Hands on the sample, a number as text, and what a list of its own says about it."""

    def __init__(self, names: Sequence[Any]) -> None:
        super().__init__()
        self.names = names
        self.add_buffer("item", ((), np.int64))
        self.add_buffer("name", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["item"][...] = int(sample)
        buffers["name"][...] = self.names[int(sample)][0]


def through_a_loader(start_method: str) -> None:
    """The dataset, the template and two views of one segment; workers that are replaced; a restart.

    Parameters
    ----------
    start_method : str
        "0" stands for no workers.
    """
    nworkers = 0 if start_method == "0" else 2
    method = start_method if nworkers else None
    before = descriptors()
    items = SharedList(texts(400))
    names = SharedList(("ignored", None) if i % 2 else (-(i // 2), "x") for i in range(800))
    template = Looks(names[::2])
    with TurboDataLoader(items[:], 4, template, nworkers, start_method=method) as loader:
        del items
        for _ in range(2):
            _check_epoch(loader)
            if start_method not in ("0", "thread"):
                for worker in named("crumpets-w"):  # others do the rest
                    worker.kill()
                    worker.wait()
        loader.stop()
        loader.start()
        _check_epoch(loader)
    del loader
    gc.collect()
    assert template.names[3] == (-3, "x")
    del template, names
    gc.collect()
    assert descriptors() == before, (descriptors(), before)


def _check_epoch(loader: TurboDataLoader) -> None:
    seen: list[int] = []
    for _, (mini_batch,) in loader:
        seen += mini_batch["item"].tolist()
        assert (mini_batch["name"] == -mini_batch["item"]).all()
    assert seen == list(range(400))


def through_loaders(start_method: str, loaders: int) -> None:
    """Loader after loader on one list: as many descriptors as before."""
    names = SharedList((-number,) for number in range(8))
    counts = []
    for _ in range(loaders + 1):
        with TurboDataLoader(
            SharedList(texts(8)), 4, Looks(names), 1, start_method=start_method
        ) as loader:
            assert sum(1 for _ in loader) == 2
        del loader
        gc.collect()
        counts.append(descriptors())
    assert counts == counts[:1] * (loaders + 1), counts


def many_lists(start_method: str) -> None:
    """More lists than descriptors fit one message."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    lists = [SharedList([(number,)]) for number in range(600)]
    template = Looks([(-number, shared[0]) for number, shared in enumerate(lists)])
    template.lists = lists  # type: ignore[attr-defined]
    dataset = _Chained(lists)
    with TurboDataLoader(dataset, 100, template, 1, start_method=start_method) as loader:
        seen = [int(item) for _, (part,) in loader for item in part["item"]]
    assert seen == list(range(600))


class _Chained:
    def __init__(self, lists: list[SharedList[tuple[int]]]) -> None:
        self.lists = lists

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, index: int) -> int:
        (item,) = self.lists[index][0]
        return item


def _add_up(lists: tuple[SharedList[str], SharedList[str]], queue: Any) -> None:
    whole, part = lists
    queue.put((sum(map(int, whole)), list(part), descriptors()))


def handed_to_multiprocessing(start_method: str) -> None:
    """Two views of one segment, as an argument of a process."""
    context: Any = multiprocessing.get_context(start_method)
    queue = context.SimpleQueue()
    numbers = SharedList(map(str, range(100)))
    lists = (numbers, numbers[-2:])
    counts = []
    for _ in range(2):
        process = context.Process(target=_add_up, args=(lists, queue))
        process.start()
        total, part, _ = queue.get()
        process.join()
        process.close()
        assert (total, part) == (4950, ["98", "99"])
        gc.collect()
        counts.append(descriptors())
    assert counts[0] == counts[1], counts


def handed_to_torch(start_method: str) -> None:
    """The dataset of torch's loader."""
    from torch.utils.data import DataLoader

    dataset: Any = SharedList(range(50))
    loader: Any = DataLoader(
        dataset,
        batch_size=10,
        num_workers=2,
        multiprocessing_context=start_method,
        persistent_workers=True,
    )
    for _ in range(2):
        assert [value for batch in loader for value in batch.tolist()] == list(range(50))


class _Texts:
    def __init__(self, items: Sequence[str], length: int) -> None:
        self.items = items
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> str:
        return self.items[index % len(self.items)]


class _Lengths(BufferWorker):
    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("length", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["length"][...] = len(sample)


def list_memory(kind: str, start_method: str) -> None:
    """Print by how many bytes the memory grows while a loader with 4 workers runs 3 epochs.

    Proportional set sizes of the whole family are added up, so a page that several processes look
    at counts once. The first number is the growth of everything, the second one that of the
    segments of shared lists alone, which other things in the processes do not disturb.

    The dataset has 200,000 strings of 100 bytes in a "list" or a "SharedList"; with "nothing" it
    has one of them.
    """
    items: Sequence[str] = texts(200_000 if kind != "nothing" else 1)
    if kind == "SharedList":
        items = SharedList(items)
    assert sum(map(len, items)) == 100 * len(items)
    dataset = _Texts(items, 200_000)
    gc.collect()
    before, segments_before, _ = _proportional_sizes()
    with TurboDataLoader(
        dataset, 500, _Lengths(), 4, shuffle=True, start_method=start_method
    ) as loader:
        for _ in range(3):
            for _, (mini_batch,) in loader:
                assert (mini_batch["length"] == 100).all()
        after, segments_after, looking = _proportional_sizes()
    if kind == "SharedList":
        assert looking == 5, f"{looking} processes have looked at most of the segment"
    print(after - before, segments_after - segments_before)


def _proportional_sizes() -> tuple[int, int, int]:
    """Of everything, of shared lists alone; how many processes look at more than 10 MB of those."""
    everything = segments = looking = 0
    root = psutil.Process()
    for process in (root, *root.children(recursive=True)):
        everything += int(process.memory_full_info().pss)
        for mapping in process.memory_maps(grouped=False):
            if "crumpets-list" in mapping.path:
                segments += int(mapping.pss)
                looking += mapping.rss > 10e6
    return everything, segments, looking
