"""The workers of the drop-in loader.

torch starts new worker processes for each iterator. Here processes live on, and each iterator has
a :class:`Replica` in each of them: what torch's worker process would hold for it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import default_collate_fn_map

from .. import seeding
from ..broker.snapshot import Place, Snapshot, load_snapshot
from ..broker.worker import Worker
from .fetching import Fetcher, StreamFetcher, make_fetcher

__all__ = ["FetchWorker", "Keys", "Modes", "Request"]


class Modes(NamedTuple):
    """How batches are made: the same for all iterators of a loader."""

    nworkers: int
    batched: bool  # or sample by sample
    drop_last: bool
    seed_globals: bool  # for each batch


class Request(NamedTuple):
    """A batch that is wanted: what travels to a worker."""

    iterator: int  # its number
    alive: tuple[int, ...]  # numbers of the iterators that are in use
    replica: int  # iterators with the same number share a replica
    seed: int  # torch's base seed
    epoch: int  # of the pass, which draws depend on
    place: Place | None  # of what the replica is made of; None: what the workers inherited
    number: int  # of the batch
    what: Any  # keys, a key, or a list as long as the stream's batch

    @property
    def _crumpets_keys(self) -> tuple[Any, ...]:
        """Of its samples, for errors; those of a stream have none."""
        what = self.what if isinstance(self.what, list | tuple) else (self.what,)
        return tuple(key for key in what if key is not None)


class Keys:
    """The dataset as the engine sees it: requests are handed on to the worker."""

    def __getitem__(self, key: Any) -> Any:
        return key


class Replica:
    """What torch's worker process holds for an iterator.

    Parameters
    ----------
    request : Request
        One of the iterator's.
    parts : dict
        Its ``"dataset"``, ``"collate_fn"`` and ``"worker_init_fn"``.
    worker_id : int
        Number of the worker.
    modes : Modes
        Of the loader.
    """

    def __init__(
        self, request: Request, parts: dict[str, Any], worker_id: int, modes: Modes
    ) -> None:
        self.number = request.replica
        self._modes = modes
        self._dataset, self._collate_fn = parts["dataset"], parts["collate_fn"]
        self._fetchers: dict[int, Fetcher] = {}
        self._generators: Any = None
        seed = request.seed + worker_id  # as torch's _worker_loop
        random.seed(seed)
        torch.manual_seed(seed)
        state: list[int] = torch_worker._generate_state(request.seed, worker_id)  # type: ignore[no-untyped-call]
        np.random.seed(state)
        self._info = torch_worker.WorkerInfo(
            id=worker_id, num_workers=modes.nworkers, seed=seed, dataset=self._dataset
        )
        self.enter()
        if parts["worker_init_fn"] is not None:
            parts["worker_init_fn"](worker_id)

    def fetcher(self, request: Request) -> Fetcher:
        """The fetcher of an iterator."""
        fetcher = self._fetchers.get(request.iterator)
        if fetcher is None:
            self._fetchers = {n: f for n, f in self._fetchers.items() if n in request.alive}
            fetcher = self._fetchers[request.iterator] = make_fetcher(
                self._dataset, self._collate_fn, self._modes.batched, self._modes.drop_last
            )
        return fetcher

    def enter(self) -> None:
        """From now on batches of this replica are made."""
        torch_worker._worker_info = self._info
        if self._generators is not None:
            python, numpy, default = self._generators
            random.setstate(python)
            np.random.set_state(numpy)
            torch.default_generator.set_state(default)

    def leave(self) -> None:
        """Keep the global generators as they are until it is entered again."""
        numpy = np.random.get_state(legacy=False)
        self._generators = random.getstate(), numpy, torch.default_generator.get_state()


class FetchWorker(Worker):
    """Makes whole batches: a request is its sample.

    Parameters
    ----------
    snapshot : Snapshot
        Of the dataset and the functions, for iterators that began before they changed.
    modes : Modes
        Of the loader.
    collate_functions : dict
        What the user has taught torch's collate function.
    """

    _crumpets_unit = "batch"

    def __init__(
        self,
        snapshot: Snapshot,
        modes: Modes,
        collate_functions: Mapping[Any, Callable[..., Any]],
    ) -> None:
        self._inherited: Any = snapshot  # a Place in the workers
        # Modules that are named here are imported once, before workers are forked.
        self._modules = [sys.modules[name] for name in snapshot.modules]
        self._collate_functions = collate_functions
        self._modes = modes
        self._replicas: dict[int, Replica] = {}
        self._current: Replica | None = None
        self._fetcher: Fetcher | None = None

    def setup(self) -> None:
        """Know what the user has taught torch's collate function."""
        default_collate_fn_map.update(self._collate_functions)

    def process(self, request: Request) -> dict[str, Any]:
        """The batch in a tuple, so that it is pickled as one: with its exact types.

        At the end of a stream it is this worker's number instead.
        """
        self._fetcher = None
        replica = self._enter(request)
        fetcher = self._fetcher = replica.fetcher(request)
        if self._modes.seed_globals:
            seeding.seed_globals(request.seed, request.epoch, request.number)
        try:
            return {"": (fetcher.fetch(request.what, self._crumpets_current.arena),)}
        except StopIteration:
            if isinstance(fetcher, StreamFetcher):
                return {"": self.worker_id}
            raise

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """The batch is one result."""
        return results[0]

    @property
    def index(self) -> int:
        """Dataset index of the current sample; -1 where it has none or it is not known."""
        key = None if self._fetcher is None else self._fetcher.key
        return key if isinstance(key, int) else -1

    def _enter(self, request: Request) -> Replica:
        """The replica of a request; the one before keeps its generators."""
        current = self._current
        if current is not None:
            if current.number == request.replica:
                return current
            current.leave()
        self._current = current = None  # two copies of a large dataset may be one too many
        alive = {request.replica, *request.alive}
        self._replicas = {n: r for n, r in self._replicas.items() if n in alive}
        replica = self._replicas.get(request.replica)
        if replica is None:
            parts = load_snapshot(request.place or self._inherited)
            replica = Replica(request, parts, self.worker_id, self._modes)
            self._replicas[request.replica] = replica
        else:
            replica.enter()
        self._current = replica
        return replica
