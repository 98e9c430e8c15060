"""How fast mini-batches reach a device: ours beside torch's loader with ``pin_memory=True``.

Run it with ``python -m crumpets_like.benchmarks.device``. Both load the same images, float32
(3, 224, 224), and labels, and the caller reads each of them once it is on the device. The second
epoch counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from crumpets_like.torch import TorchTurboDataLoader

from .copy_workers import CopyWorker
from .datasets import ImageDataset

SHAPE = (3, 224, 224)


def ours(options: argparse.Namespace, dataset: Any) -> Iterator[Iterable[Any]]:
    """Two epochs as this package loads them."""
    worker = CopyWorker(SHAPE, "float32")
    with TorchTurboDataLoader(
        dataset, options.batch_size, worker, options.workers, device=options.device
    ) as loader:
        for _ in range(2):
            yield ((part["x"], part["y"]) for _, (part,) in loader)


def torchs(options: argparse.Namespace, dataset: Any) -> Iterator[Iterable[Any]]:
    """The same as torch loads them."""
    loader: DataLoader[Any] = DataLoader(
        dataset,
        options.batch_size,
        num_workers=options.workers,
        pin_memory=torch.device(options.device).type == "cuda",
        persistent_workers=True,
    )
    for _ in range(2):
        yield ([x.to(options.device, non_blocking=True) for x in batch] for batch in loader)


def rate(epochs: Iterable[Iterable[Any]], samples: int, device: str) -> float:
    """Samples per second of the last epoch."""
    seconds = 0.0
    for epoch in epochs:
        started = time.perf_counter()
        total = torch.zeros((), device=device)
        for x, y in epoch:
            total += x.sum() + y.sum()
        total.item()  # so far the device may only have been asked
        seconds = time.perf_counter() - started
    return samples / seconds


def main(arguments: list[str] | None = None) -> int:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(
        prog="python -m crumpets_like.benchmarks.device", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=200)
    options = parser.parse_args(arguments)
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} finds no CUDA device here", file=sys.stderr)
        return 1
    samples = options.batches * options.batch_size
    dataset = ImageDataset(samples)
    rates = []
    for name, epochs in (("torch", torchs), ("crumpets-like", ours)):
        rates.append(rate(epochs(options, dataset), samples, options.device))
        print(f"{name:<16}{rates[-1]:>12,.0f} samples/s")
    print(f"{'ratio':<16}{rates[1] / rates[0]:>12.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
