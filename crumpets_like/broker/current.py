"""What the loader keeps in a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..seeding import SampleRNG
    from .encoding import Arena

__all__ = ["Current"]


class Current:
    """What a copy of a worker is, and what it is at.

    NOTE [Names]. Users subclass :class:`Worker`, so any attribute of ours may be one of theirs.
    What is public there is reserved: it is read-only, and a class that has something else under
    such a name is refused. All the rest is in this object, or begins with ``_crumpets_``.

    Attributes
    ----------
    worker_id : int
        Number of the copy, 0-based; -1 in a template.
    seed : int
        The loader's seed.
    cell : memoryview or list
        ``cell[0]`` is the position in its epoch of the current sample, -1 where there is none.
    epoch : int
        Epoch of the chunk.
    first : int
        Position of the first sample of the part.
    keys : list of int or None
        Indices of the part's samples.
    one : bool
        Whether there is one current sample.
    source : SampleRNG
        Its generator; a template has none.
    drawn : int
        Position that `source` stands at.
    chunk : tuple of int or None
        Position of the first sample and number of the samples inside `prepare_batch`.
    indices : ndarray of int64 or None
        Their indices.
    rngs : list of Generator or None
        Their generators, once they have been asked for.
    pool : list of SampleRNG
        What these are taken from.
    arena : Arena or None
        Where free-form results may be made in place.
    """

    __slots__ = (
        "arena",
        "cell",
        "chunk",
        "drawn",
        "epoch",
        "first",
        "indices",
        "keys",
        "one",
        "pool",
        "rngs",
        "seed",
        "source",
        "worker_id",
    )
    source: SampleRNG

    def __init__(self, worker_id: int = -1, seed: int = 0, cell: Any = None) -> None:
        self.worker_id = worker_id
        self.seed = seed
        self.cell: Any = [-1] if cell is None else cell
        self.epoch = 0
        self.first = 0
        self.pool: list[SampleRNG] = []
        self.leave()

    def leave(self) -> None:
        """It is at nothing any more."""
        self.cell[0] = self.drawn = -1
        self.one = False
        self.keys: Sequence[int] | None = None
        self.chunk: tuple[int, int] | None = None
        self.rngs: list[np.random.Generator] | None = None
        self.indices: NDArray[np.int64] | None = None
        self.arena: Arena | None = None
