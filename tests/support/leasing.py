"""Scenarios that need a process of their own: limits, kept batches, memory of workers."""

from __future__ import annotations

import gc
import os
import resource
from functools import partial
from typing import Any, cast

import numpy as np
import psutil
from numpy.typing import NDArray

from crumpets_like import BufferWorker, TurboDataLoader, Worker
from crumpets_like.broker.engine import Engine
from tests.support.loading import wait_until

__all__ = [
    "FreeForm",
    "Listed",
    "Numbers",
    "Rows",
    "dataset_memory",
    "keep_everything",
    "with_limit",
]


class Numbers:
    """A dataset whose samples are their indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Rows(BufferWorker):
    """Fills a field of some shape, and a 0-d one, with the index."""

    def __init__(self, shape: tuple[int, ...] = (6,)) -> None:
        super().__init__()
        self.add_buffer("x", (shape, np.int64))
        self.add_buffer("y", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["x"][...] = sample
        buffers["y"][...] = sample


class FreeForm(Worker):
    """The same without buffers."""

    def __init__(self, shape: tuple[int, ...] = (6,)) -> None:
        self.shape = shape

    def process(self, sample: Any) -> dict[str, Any]:
        return {"x": np.full(self.shape, sample), "y": sample}


class Listed(Rows):
    """Fields and lists."""

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        super().prepare(sample, batch, buffers)
        batch["tuple"].append((sample, np.arange(3)))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _is_up(loader: TurboDataLoader) -> bool:
    return cast(Engine, loader._engine).facts().up_since is not None


def keep_everything(kind: str) -> None:
    """Keep 5,000 batches of 4, or views derived from them, with at most 256 descriptors."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept: list[Any] = []
    with TurboDataLoader(Numbers(20_000), 4, Rows(), 2) as loader:
        first = next(iter(loader))
        wait_until(partial(_is_up, loader))
        before = _descriptors()
        for _, (mini_batch,) in loader:
            kept.append(_derive(kind, mini_batch))
        del first, mini_batch
        # The last connection of a worker may have come meanwhile.
        assert _descriptors() <= before + 2, (_descriptors(), before)
        _check(kept)
    del loader
    gc.collect()
    _check(kept)


def _derive(kind: str, mini_batch: dict[str, Any]) -> Any:
    if kind == "batches":
        return mini_batch["x"]
    if kind == "slices":
        return mini_batch["x"][:, :2]
    if kind == "memoryviews":
        return memoryview(mini_batch["x"])
    import torch

    return torch.from_numpy(mini_batch["x"])


def _check(kept: list[Any]) -> None:
    assert len(kept) == 5000
    for number, view in enumerate(kept):
        rows = np.asarray(view)[:, 0].tolist()
        assert rows == list(range(4 * number, 4 * number + 4)), (number, rows)


def with_limit(name: str, size: int, start_method: str) -> None:
    """Load batches of 4.8 MB whose usual mapping would be larger than a limit."""
    limit = getattr(resource, name)
    resource.setrlimit(limit, (size, size))
    shape = (3, 224, 224)
    for worker in (Rows(shape), FreeForm(shape)):
        with TurboDataLoader(
            Numbers(160),
            16,
            worker,
            2,
            num_mini_batches=4,
            shared_memory=2,
            start_method=start_method,
        ) as loader:
            seen = []
            for _, batch in loader:
                for part in batch:
                    assert (part["x"] == part["y"].reshape(-1, 1, 1, 1)).all()
                    seen += part["y"].tolist()
        assert seen == list(range(160))


class _Heavy(Numbers):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.array = np.ones(10_000_000)  # 80 MB

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self.array.sum()  # each worker has a look at all of it


def dataset_memory(start_method: str) -> None:
    """Let 8 workers read an array of 80 MB and add up the memory that it takes."""
    with TurboDataLoader(_Heavy(64), 8, Rows(), 8, start_method=start_method) as loader:
        assert [int(y) for _, (part,) in loader for y in part["y"]] == list(range(64))

        def proportional_sizes() -> list[int]:
            """Of the mappings that workers have read by now."""
            return [
                int(mapping.pss)
                for process in psutil.Process().children(recursive=True)
                if process.name().startswith("crumpets-w")
                for mapping in process.memory_maps(grouped=False)
                if mapping.rss >= 79e6 and "crumpets-payload" in mapping.path
            ]

        assert wait_until(lambda: len(proportional_sizes()) == 8)
        total = sum(proportional_sizes())
        private = sum(
            process.memory_full_info().uss
            for process in psutil.Process().children(recursive=True)
            if process.name().startswith("crumpets-w")
        )
    assert 70e6 < total < 100e6, f"{total / 1e6:.0f} MB"
    # A fresh interpreter has some 35 MB of its own; with a copy of the array it would be 115 MB.
    assert private < 8 * 60e6, f"{private / 1e6:.0f} MB of private memory"
