"""Where a worker stands: at which sample, or at what else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import seeding
from ..errors import MOST_SHOWN, Whereabouts
from ..seeding import SampleRNG
from .buffers import BufferSpec
from .current import Current
from .protocol import Kind, Part
from .segment import Stage, StatusPage
from .worker import Worker

__all__ = ["Standing"]

_ABOUT_FIELDS = (ValueError, TypeError, OverflowError, LookupError, Warning)


class Standing:
    """What a worker is doing: in the status page for everyone, in words for its own errors.

    Parameters
    ----------
    worker : Worker
        Whose attributes tell the user the same.
    page : StatusPage
        Where it is noted.
    worker_id, seed : int
        Number of the worker, and the loader's seed.
    reseeds : bool
        Whether the global generators are seeded for each sample.
    specs : mapping of str to BufferSpec, optional
        Fields of a worker that has some: errors may be about them.

    Attributes
    ----------
    cell : memoryview
        ``cell[0]`` is the position of the current sample in its epoch, -1 where there is none.
    current : Current
        Where it is noted for the worker itself.
    kind : Kind
        What the worker has been given: what `keys` are.
    keys : ndarray of int64, or sequence
        The keys or samples of the part.
    """

    def __init__(
        self,
        worker: Worker,
        page: StatusPage,
        worker_id: int,
        seed: int,
        reseeds: bool = False,
        specs: Mapping[str, BufferSpec] | None = None,
    ) -> None:
        self._worker = worker
        self._page = page
        self._worker_id = worker_id
        self._specs = specs
        self.reseeds = reseeds
        self._stage = Stage.SAMPLE
        self._stage_cell = page.stage_cell(worker_id)
        self._stage_cell[0] = self._stage
        self.kind = Kind.INDICES
        self.keys: Any = ()
        self.cell = page.cell(worker_id)
        self.current = Current(worker_id, seed, self.cell)
        self.current.source = SampleRNG(seed)
        # (A worker may be a frozen dataclass.)
        object.__setattr__(worker, "_crumpets_current", self.current)

    @property
    def first(self) -> int:
        """Position of the first sample of the part."""
        return self.current.first

    def begin(self, part: Part, kind: Kind, keys: Any) -> None:
        """The worker has a new part."""
        self.kind = kind
        self.keys = keys
        self.current.keys = keys.tolist() if kind is Kind.INDICES else None
        self.current.first = self.cell[0] = part.position

    def enter(self, stage: Stage, position: int | None = None) -> None:
        """From now on the position stands for this; default: it stays the same."""
        if position is not None:
            self.cell[0] = position
        if stage is not self._stage:
            self._stage = stage
            self._stage_cell[0] = stage.value

    def seed(self, position: int, purpose: str = "globals") -> None:
        """Seed the global generators for the sample at a position, if they are at all."""
        if self.reseeds:
            seeding.seed_globals(self.current.seed, self.current.epoch, position, purpose)

    def draw_anew(self) -> None:
        """Another sample takes the place of the current one: it draws from the beginning."""
        self.current.drawn = -1

    def end(self, seconds: float) -> None:
        """The part is finished; it took so long."""
        self.current.leave()
        self._page.add_work(self._worker_id, seconds)

    def release(self) -> None:
        """Let go of the memory."""
        self.cell.release()
        self._stage_cell.release()
        self._page.release()

    @property
    def index(self) -> int | None:
        """Index of the current sample; those of an iterable are counted, keys are no indices."""
        if self._worker.index >= 0:  # it may know better: what is one sample here may be several
            return self._worker.index
        if self.current.keys is not None:
            return self.current.keys[self.cell[0] - self.first]
        return self.cell[0] if self.kind is Kind.SAMPLES else None

    @property
    def _at_one(self) -> bool:
        """Whether the position stands for one sample alone."""
        return self._stage is Stage.SAMPLE or (self._stage is Stage.SAMPLES and self.current.one)

    def whereabouts(self) -> Whereabouts:
        """Where it stands, for the attributes of an error."""
        where = Whereabouts(self._worker_id, os.getpid(), epoch=self.current.epoch)
        if self._at_one:
            return replace(where, index=self.index)
        if self._stage is Stage.SAMPLES:
            return replace(where, indices=tuple(self.current.keys or ()))
        return where

    def note(self, error: BaseException) -> str:
        """Where it stands, in words, and what the fields are if `error` may be about them."""
        keys, unit = self.current.keys, self._worker._crumpets_unit
        if self._stage is Stage.START_EPOCH:
            what = "start of an epoch"
        elif self._at_one and (keys is not None or self._worker.index >= 0):
            what = f"sample with index {self.index}"
        elif self._at_one:
            what = f"{unit} number {self.cell[0]} of the epoch"
        else:
            what = "collate of the " if self._stage is Stage.COLLATE else ""
            units = "batches" if unit == "batch" else f"{unit}s"
            if keys is not None:
                what += f"{units} with the indices {list(keys[:MOST_SHOWN])}"
                what += ", ..." if len(keys) > MOST_SHOWN else ""
            else:
                what += f"{units} from number {self.first} of the epoch on"
        text = f"In worker {self._worker_id}, epoch {self.current.epoch}: {what}."
        if self._specs is not None and isinstance(error, _ABOUT_FIELDS):
            specs = [f"{name}={spec}" for name, spec in self._specs.items()]
            text += f" Buffers: {', '.join(specs) or 'none'}."
        return text
