"""`torch.utils.data.DataLoader` as a contender."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from crumpets_like.torch import DataLoader as OurDataLoader

from .case import Case


class TorchLoader:
    """torch's loader, or ours with its interface, with persistent workers.

    The default collate, unless told otherwise.

    Parameters
    ----------
    case : Case
        What to load.
    contender : str
        ``"torch"``; ``"torch0"`` loads in the calling process; ``"torch-arrays"`` passes on
        whole arrays from ``__getitems__``; ``"ours"`` is our drop-in.
    """

    def __init__(self, case: Case, contender: str) -> None:
        workers = 0 if contender == "torch0" else case.workers
        dataset = case.make_dataset(contender)
        # A range is what SequentialSampler iterates too; it allows for a shorter epoch.
        part = range(min(len(dataset), case.batches[contender] * case.batch_size))
        sampler: Iterable[int] = part
        if case.shuffle:
            generator = torch.Generator().manual_seed(case.seed or 0)
            sampler = RandomSampler(part, generator=generator)
        kind = OurDataLoader if contender == "ours" else DataLoader
        self.loader: DataLoader[Any] | None = kind(
            dataset,
            case.batch_size,
            sampler=sampler,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=wrap_arrays if contender == "torch-arrays" else None,
            multiprocessing_context="spawn" if case.kind == "first" and workers else None,
        )

    def start(self) -> None:
        """Nothing: torch starts its workers when it is first iterated."""

    def batches(self) -> Iterable[object]:
        if self.loader is None:
            raise RuntimeError("this loader was stopped")
        return self.loader

    def stop(self) -> None:
        if isinstance(self.loader, OurDataLoader):
            self.loader.close()
        self.loader = None


def wrap_arrays(arrays: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make tensors of the pair of arrays ``(x, y)`` without a copy."""
    return torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
