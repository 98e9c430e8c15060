"""The workers of a drop-in loader, and what they were told."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

from torch.utils.data import DataLoader

from ..broker.engine import Engine
from ..broker.options import EngineOptions
from ..broker.snapshot import Snapshot, reachable
from ..course import Course
from ..passes import EpochPlan
from .collating import foreign_collate_functions
from .replicas import FetchWorker, Keys, Modes

__all__ = ["Pool"]


class Pool:
    """The engine of a loader: made when it is needed, and made anew when it has to be.

    Attributes
    ----------
    alive : mapping of int to EpochPlan
        The iterators that are in use, by their number.
    numbers : iterator of int
        For new iterators.
    persistent : dict
        With ``persistent_workers=True``: what the iterators have in common.
    course : Course or None
        The loader's passes, once there are any.
    """

    def __init__(self) -> None:
        self.alive: weakref.WeakValueDictionary[int, EpochPlan] = weakref.WeakValueDictionary()
        self.numbers = itertools.count()
        self.persistent: dict[str, Any] = {}
        self.course: Course | None = None
        self._engine: Engine | None = None
        self._options: Any = None  # that the engine was made for
        self._first: Snapshot | None = None  # that its workers have inherited
        self._latest: Snapshot | None = None
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pool, ()  # without an engine

    def snapshot(self, loader: DataLoader[Any]) -> Snapshot:
        """What the loader's dataset and functions are now."""
        parts = {
            "dataset": loader.dataset,
            "collate_fn": loader.collate_fn,
            "worker_init_fn": loader.worker_init_fn,
        }
        latest = self._latest
        self._latest = Snapshot(parts) if latest is None else latest.renewed(parts)
        return self._latest

    def engine(self, loader: Any, snapshot: Snapshot) -> Engine:
        """An engine whose workers can read the snapshot.

        One whose options do not fit any more lives on as long as its iterators do.
        """
        context = loader.multiprocessing_context
        start_method = "forkserver" if context is None else context.get_start_method()
        modes = Modes(
            loader.num_workers,
            loader.batch_sampler is not None,
            loader.drop_last,
            loader.seed_globals,
        )
        taught = foreign_collate_functions()
        options = (modes, loader.timeout, loader.in_order, start_method, taught)
        engine = self._engine
        fits = engine is not None and engine.usable and options == self._options
        if engine is not None and fits and (snapshot is self._first or reachable()):
            return engine
        self._engine = engine = None
        engine = Engine(
            EngineOptions(
                FetchWorker(snapshot, modes, taught),
                Keys(),
                1,
                loader.num_workers,
                in_order=loader.in_order,
                timeout=loader.timeout or None,
                start_method=start_method,
            )
        )
        self._engines.add(engine)
        self._engine, self._options, self._first = engine, options, snapshot
        return engine

    def inherited(self, snapshot: Snapshot) -> bool:
        """Whether the engine's workers have a snapshot since their start."""
        return snapshot is self._first

    def close(self) -> None:
        """End every engine."""
        self._engine = self._first = None
        for engine in list(self._engines):
            engine.stop()
