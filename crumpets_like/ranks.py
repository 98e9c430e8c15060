"""Several training processes that share an epoch: which samples each of them gets."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np

from .arguments import check_count
from .seeding import seed_sequence

__all__ = ["WHOLE", "Shard", "Uneven", "choose_shard"]

Uneven = Literal["pad", "drop", "keep"]


class Shard(NamedTuple):
    """The part of each global batch that one rank gets: every `world_size`-th sample.

    A global batch is that of all ranks together. All but the last one of an epoch have as many
    samples for each rank.

    Attributes
    ----------
    rank, world_size : int
        0 <= rank < world_size.
    uneven : {"pad", "drop", "keep"}
        A last global batch that `world_size` does not divide is filled up with its own first
        samples, cut, or dealt out as it is, so that some ranks get one sample more.
    """

    rank: int
    world_size: int
    uneven: Uneven

    def size(self, count: int) -> int:
        """Return how many of `count` samples this rank gets."""
        if self.uneven == "pad":
            return -(-count // self.world_size)
        if self.uneven == "drop":
            return count // self.world_size
        return max(0, -(-(count - self.rank) // self.world_size))

    def padded(self, count: int) -> int | None:
        """Return which of `count` samples this rank gets a second time, None if none."""
        last = self.rank + (self.size(count) - 1) * self.world_size
        return (last - count) % count if last >= count else None

    def part(self, items: list[Any]) -> list[Any]:
        """Return this rank's part of a global batch."""
        if self.world_size == 1:
            return items
        part = items[self.rank :: self.world_size]
        extra = self.padded(len(items)) if items else None
        return part[: self.size(len(items))] if extra is None else [*part, items[extra]]

    def seed(self, seed: int) -> int:
        """Return the seed of what this rank's samples draw: no two ranks draw the same."""
        if self.world_size == 1:
            return seed
        words = seed_sequence(seed, "rank", self.rank, self.world_size).generate_state(1, np.uint64)
        return int(words[0])

    def batches(self, count: int, step: int) -> int:
        """Return in how many batches this rank gets its part of `count` samples.

        Parameters
        ----------
        count, step : int
            Samples, and those of one global batch.
        """
        full, short = divmod(count, step)
        return full + (self.size(short) > 0)


WHOLE = Shard(0, 1, "pad")
"""All of it, for one process."""


def choose_shard(rank: Any, world_size: Any, uneven: Any, *, default: bool) -> Shard:
    """Return the shard that a loader's arguments name.

    Parameters
    ----------
    rank, world_size : int, "env" or None
        Both or none; "env" (for one of them is enough): from the environment, as torchrun sets it.
    uneven : str
        As :class:`Shard` says.
    default : bool
        Whether None means that of `torch.distributed`, if it is initialised by now.

    Raises
    ------
    TypeError, ValueError
        If one is invalid or missing; names the argument or variable, and its value.
    """
    if not isinstance(uneven, str) or uneven not in get_args(Uneven):
        raise ValueError(f"uneven must be 'pad', 'drop' or 'keep', got {uneven!r}")
    names = ("rank", "world_size")
    values = [rank, world_size]
    if "env" in values:
        if not all(value in ("env", None) for value in values):
            raise ValueError(
                f"rank and world_size must both be 'env' or both be numbers, got {rank!r} and "
                f"{world_size!r}"
            )
        names = ("RANK", "WORLD_SIZE")
        values = [_from_environment(name) for name in names]
    elif rank is None and world_size is None:
        values = [0, 1]
        distributed: Any = sys.modules.get("torch.distributed")
        if default and distributed and distributed.is_available() and distributed.is_initialized():
            values = [distributed.get_rank(), distributed.get_world_size()]
    elif rank is None or world_size is None:
        raise ValueError(f"rank and world_size go together, got {rank!r} and {world_size!r}")
    count = check_count(names[1], values[1])
    place = check_count(names[0], values[0], 0)
    if place >= count:
        raise ValueError(f"{names[0]} must be less than {names[1]}={count}, got {place}")
    return Shard(place, count, cast(Uneven, uneven))


def _from_environment(name: str) -> int:
    text = os.environ.get(name)
    try:
        return int(text or "")
    except ValueError:
        raise ValueError(
            f"the environment variable {name} must be a number, got {text!r}: start the processes "
            f"with torchrun, or give rank and world_size"
        ) from None
