"""Random configurations of a soak run, and what a plain loop says must come."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import numpy as np

from crumpets_like import TurboDataLoader
from crumpets_like.sampling import ShuffledOrder
from crumpets_like.seeding import SampleRNG

from .soak_workers import SOURCES, WORKERS, Troubles

MiniBatch = tuple[tuple[int, ...], tuple[float, ...]]
"""Indices and draws."""

_TIMEOUT = 60.0
_SHORT = 0.02  # seconds of a slow sample, at most


@dataclass(frozen=True)
class Configuration:
    """One loader, how it is used, and what befalls it.

    Attributes
    ----------
    leave : tuple of int or None
        For each epoch the iterations after which it is left; None: never.
    keep : float
        Share of the mini-batches that are kept.
    troubles : float
        Mean seconds between two acts of sabotage; 0: there are none.
    """

    seed: int
    samples: int
    batch_size: int
    num_mini_batches: int
    nworkers: int
    start_method: str
    worker: str
    source: str
    shared_memory: bool | int
    prefetch: int | None
    in_order: bool
    last_batch: str
    length: int | None
    shuffle: bool
    on_error: str
    bad: tuple[int, ...]
    slow: tuple[int, ...]
    seconds: float
    leave: tuple[int | None, ...]
    keep: float
    sabotage: float

    def __str__(self) -> str:
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("bad", "slow"):
            facts[name] = f"{len(facts[name])} samples"
        return ", ".join(f"{name}={value}" for name, value in facts.items())

    def make_loader(self) -> TurboDataLoader:
        """Build the loader; its time limit is an error of its own."""
        troubles = Troubles(frozenset(self.bad), frozenset(self.slow), self.seconds)
        return TurboDataLoader(
            SOURCES[self.source](self.samples, troubles),
            self.batch_size,
            WORKERS[self.worker](troubles),
            self.nworkers,
            num_mini_batches=self.num_mini_batches,
            start_method=self.start_method,
            shared_memory=self.shared_memory,
            prefetch=self.prefetch,
            in_order=self.in_order,
            last_batch=self.last_batch,
            length=self.length,
            shuffle=self.shuffle,
            seed=self.seed,
            on_error=self.on_error,  # type: ignore[arg-type]
            restarts=100_000,
            timeout=_TIMEOUT,
        )


def configure(seed: int) -> Configuration:
    """Return the configuration of a seed."""
    rng = random.Random(seed)
    samples = rng.choice([rng.randint(1, 20), rng.randint(20, 200), rng.randint(200, 600)])
    mini_batch_size = rng.choice([1, 2, 3, 5, 8, 16, 32])
    num_mini_batches = rng.choice([1, 1, 1, 2, 3])
    batch_size = mini_batch_size * num_mini_batches
    source = rng.choice(list(SOURCES))
    own_order = source != "stream"
    epochs = rng.randint(1, 5)
    last_batch = rng.choice(["keep", "discard", "rollover"])
    # Where a stream's left-overs and chains go on after a break depends on timing.
    may_leave = own_order or last_batch != "rollover"
    iterations = -(-samples // batch_size)
    leave = tuple(
        rng.randint(0, iterations) if may_leave and rng.random() < 0.3 else None
        for _ in range(epochs)
    )
    on_error = rng.choice(["raise", "skip"])
    numbers = range(samples)
    failing = rng.random() < (0.6 if on_error == "skip" else 0.2) and may_leave
    share = rng.choice([0.02, 0.3]) if failing else 0.0
    bad = [i for i in numbers if rng.random() < share]
    if on_error == "raise":
        bad = bad[:1]
    slow = [i for i in numbers if rng.random() < 0.06]
    start_method = rng.choice(["fork", "fork", "forkserver", "forkserver", "spawn", "thread"])
    nworkers = rng.choice([0, 1, 1, 2, 2, 3, 4])
    return Configuration(
        seed,
        samples,
        batch_size,
        num_mini_batches,
        nworkers,
        start_method,
        rng.choice(list(WORKERS)),
        source,
        rng.choice([True, True, True, False, rng.randint(num_mini_batches, 9)]),
        rng.choice([None, None, rng.randint(1, 9)]),
        rng.random() < 0.7,
        last_batch,
        rng.randint(1, 2 * samples) if own_order and rng.random() < 0.2 else None,
        own_order and rng.random() < 0.6,
        on_error,
        tuple(bad),
        tuple(slow),
        rng.uniform(0.001, _SHORT),
        leave,
        rng.choice([0.0, 0.05, 0.5]),
        0.0 if rng.random() < 0.2 else rng.uniform(0.02, 0.4),
    )


def epochs(configuration: Configuration) -> Iterator[list[list[MiniBatch]]]:
    """Yield the iterations of one epoch after the other, bad samples included."""
    this = configuration
    size, count = this.batch_size, this.samples
    chain = _chain(this)
    source = SampleRNG(this.seed)
    left = 0
    for epoch in range(len(this.leave)):
        if this.length is not None and this.length != count:
            total = -(-this.length // size) * size
        elif this.last_batch == "keep":
            total = count
        elif this.last_batch == "discard":
            total = count - count % size
        else:
            total = left + count - (left + count) % size
            left = left + count - total
        indices = list(islice(chain, total))
        if this.length in (None, count) and this.last_batch == "discard":
            list(islice(chain, count - total))  # the rest of the pass
        draws = [float(source.seek(epoch, position).random()) for position in range(total)]
        step = size // this.num_mini_batches
        yield [
            [
                (tuple(indices[i : i + step]), tuple(draws[i : i + step]))
                for i in range(first, min(first + size, total), step)
            ]
            for first in range(0, total, size)
        ]


def _chain(this: Configuration) -> Iterator[int]:
    number = 0
    while True:
        if this.shuffle:
            yield from ShuffledOrder(this.samples, this.seed, number).indices(0, this.samples)
        else:
            yield from range(this.samples)
        number += 1


def without(mini_batch: MiniBatch, bad: frozenset[int]) -> MiniBatch:
    """Return a mini-batch without its bad samples."""
    kept = [(i, draw) for i, draw in zip(*mini_batch, strict=True) if i not in bad]
    return tuple(int(i) for i, _ in kept), tuple(draw for _, draw in kept)


def content(mini_batch: dict[str, Any]) -> MiniBatch:
    """Return what a delivered mini-batch says it is."""
    return tuple(map(int, mini_batch["name"])), tuple(np.asarray(mini_batch["draw"]).tolist())
