"""The front door: :class:`TurboDataLoader`, and the small tools around it."""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from .arguments import (
    OnError,
    check_count,
    check_flag,
    check_on_error,
    check_optional_count,
    check_timeout,
)
from .broker.addresses import make_addresses, remove_files, remove_ipc_handles
from .broker.consumer import Consumer
from .broker.engine import Engine
from .broker.interrupts import interrupts_deferred
from .broker.options import START_METHODS, EngineOptions
from .broker.worker import Worker, check_names
from .epochs import EpochPlan, Planner
from .errors import LoaderClosed, LoaderError
from .iteration import Clock, Epoch, EpochIterator
from .preview import Previewable
from .resume import Resumable
from .sampling import SeekableSampler
from .seeding import check_seed, entropy_seed
from .slicer import Slicer
from .statistics import Statistics, make_statistics

if TYPE_CHECKING:
    from .broker.contract import AnyEngine, AnyPass

__all__ = [
    "Consumer",
    "Slicer",
    "TurboDataLoader",
    "make_addresses",
    "remove_files",
    "remove_ipc_handles",
]


class TurboDataLoader(Resumable, Previewable):
    """Yields ``(iteration, mini_batches)``, prepared by parallel workers in shared memory.

    ::

        with TurboDataLoader(dataset, 64, MyWorker(), 4, shuffle=True, seed=0) as loader:
            for epoch in range(3):
                for iteration, mini_batches in loader:
                    for mini_batch in mini_batches:
                        mini_batch["image"]

    A mini-batch is a dict of arrays (views of the very bytes that the workers wrote, writable,
    valid as long as anything looks at them) and lists. Every ``for`` is a new epoch, also after a
    ``break``; it closes the iterator of the ``for`` before.

    Parameters
    ----------
    iterable : dataset or iterable
        With ``__len__`` and ``__getitem__``: indices travel, and each worker process reads its own
        copy of the dataset (threads and ``nworkers=0`` share it). Otherwise it is iterated in this
        process, by a thread of ours that reads at most the window ahead, and the samples travel;
        each pass calls ``iter()`` again.
    batch_size : int
        Samples of one iteration.
    worker_template : Worker
        Copied for each worker; the object itself is not changed.
    nworkers : int
        Number of workers; 0: samples are prepared in the calling thread, for debuggers.
    length : int, optional
        Samples of an epoch: ``ceil(length / batch_size)`` iterations. Default: one pass.
    num_mini_batches : int
        Mini-batches of one iteration; must divide `batch_size`. A short last batch fills
        mini-batches in order, and empty ones are left out.
    start_iteration : int
        First value of *iteration*; it moves only the counter, never the data.
    shared_memory : bool or int
        True: at least 2·nworkers buffers of one mini-batch each (more while they are tiny);
        n: n buffers; False or 0: arrays travel in messages, which is slower.
    shuffle : bool
        A new random order in each pass.
    seed : int, optional
        With the same seed, orders and everything drawn from ``self.rng`` in a worker are
        bit-identical for every number of workers and start method. Default: from entropy.
    sampler : iterable of int or keys, optional
        Order of one pass; torch's samplers are such. Those of :mod:`crumpets_like.sampling`
        resume at once, and are dealt out to ranks.
    batch_sampler : iterable of lists, optional
        Batches of one pass, each of at most `batch_size` indices.
    last_batch : {"keep", "discard", "rollover"}
        What becomes of a short last batch; with "rollover" it opens the next epoch.
    in_order : bool
        False: mini-batches are delivered as soon as they are ready, any in one iteration.
    prefetch : int, optional
        Most mini-batches requested ahead. Default: the number of buffers.
    timeout : float or None
        Most seconds to wait for a mini-batch once the workers are up; then :class:`LoaderTimeout`
        names the worker and the sample that do not get on, and the worker is replaced. Not
        enforced with ``nworkers=0``. None: no limit.
    on_error : "raise", "skip" or callable
        What becomes of a sample that raises an exception, or that ends or blocks its worker.
        "raise": the exception is raised here, with its own type and the worker's traceback (or it
        is a :class:`WorkerDied` or :class:`LoaderTimeout`). "skip": the mini-batch comes without
        the sample, and one that has no sample left is left out; `statistics` counts them, and each
        is logged. ``on_error(index, exception)`` is called in a worker and returns None (raise it),
        "skip", or another sample, which takes the place of the failed one. `index` is the number
        in the epoch of a sample from an iterable, and None where keys are no integers. The first
        batches of the next epoch are made before the loop of this one ends: so it may be called,
        and samples logged, for an epoch that never comes.
    start_method : {"forkserver", "spawn", "fork", "thread"}, optional
        How workers are started. Default: "forkserver".
    max_buffers : int, optional
        Most buffers in use at once, those that the caller holds included. Default: from the
        available memory.
    seed_globals : bool
        Also seed ``random``, ``numpy.random`` and, if imported, ``torch`` for each sample (and for
        each `collate`), so that draws from them are bit-identical, too; `prepare_batch` then gets
        one sample at a time. Not with threads.
    restarts : int, optional
        Most worker processes that are replaced in one epoch because they ended; one more ends the
        loader with :class:`WorkerDied`. Default: twice the number of workers. A sample that ends
        two of them is to blame (or restarts / 40 of them, if that is more: many may be chance).
    worker_threads : int
        Threads that numerical libraries (OpenMP, OpenCV, torch) may use in each worker process.
    rank, world_size : int or "env", optional
        Every rank has the same order and gets every `world_size`-th sample of it; `batch_size` is
        that of one rank, `length` counts the samples of all. "env": from ``RANK`` and
        ``WORLD_SIZE``. Default: those of `torch.distributed` if it is initialised, but not where
        a sampler or iterable decides what this rank gets.
    uneven : {"pad", "drop", "keep"}
        Where `world_size` does not divide the last samples of an epoch: repeat fewer than
        `world_size` of them, leave out as few, or let some ranks have one sample more.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or two do not go together; names the argument and its value.
    OSError
        If neither the folder of ``TMPDIR`` nor ``/tmp`` can hold the sockets.
    """

    def __init__(
        self,
        iterable: Any,
        batch_size: int,
        worker_template: Worker,
        nworkers: int,
        length: int | None = None,
        num_mini_batches: int = 1,
        start_iteration: int = 0,
        shared_memory: bool | int = True,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        last_batch: str = "keep",
        in_order: bool = True,
        prefetch: int | None = None,
        timeout: float | None = 120.0,
        on_error: OnError = "raise",
        start_method: str | None = None,
        max_buffers: int | None = None,
        seed_globals: bool = False,
        restarts: int | None = None,
        worker_threads: int = 1,
        rank: int | str | None = None,
        world_size: int | str | None = None,
        uneven: str = "pad",
    ) -> None:
        self._engine: AnyEngine | None = None
        self._current: Epoch | None = None  # that was begun last
        self._upcoming: tuple[Planner, EpochPlan, AnyPass] | None = None
        self._torn = False  # whether the loader's own code was interrupted
        self._lock = threading.RLock()  # held by who starts, stops, or begins an epoch
        self._seeded = seed is not None
        self._seed = entropy_seed() if seed is None else check_seed(seed)
        self._planner = Planner(
            iterable,
            batch_size,
            length=length,
            shuffle=check_flag("shuffle", shuffle),
            seed=self._seed,
            sampler=sampler,
            batch_sampler=batch_sampler,
            last_batch=last_batch,
            rank=rank,
            world_size=world_size,
            uneven=uneven,
        )
        shard = self._planner.shard
        random = shuffle or isinstance(sampler, SeekableSampler)
        if shard.world_size > 1 and random and seed is None:
            raise ValueError(
                f"A random order with world_size={shard.world_size} needs seed=: the ranks have "
                f"the same order only if they have the same seed."
            )
        if not isinstance(worker_template, Worker):
            raise TypeError(
                "worker_template must be an instance of crumpets_like.broker.Worker, got "
                f"{worker_template!r}."
            )
        check_names(worker_template)
        self._nworkers = nworkers = check_count("nworkers", nworkers, 0)
        num_mini_batches = check_count("num_mini_batches", num_mini_batches)
        self._num_mini_batches = num_mini_batches
        if batch_size % num_mini_batches:
            raise ValueError(
                f"batch_size must be divisible by num_mini_batches, got {batch_size} and "
                f"{num_mini_batches}."
            )
        self._iterations = check_count("start_iteration", start_iteration, 0)
        if not isinstance(shared_memory, bool):
            shared_memory = check_count("shared_memory", shared_memory, 0)
        max_buffers = check_optional_count("max_buffers", max_buffers)
        self._timeout = timeout = check_timeout(timeout)
        start_method = "forkserver" if start_method is None else start_method
        if start_method not in START_METHODS:
            raise ValueError(f"start_method must be one of {START_METHODS}, got {start_method!r}.")
        if seed_globals and start_method == "thread" and nworkers > 0:
            raise ValueError(
                'seed_globals=True does not go with start_method="thread": threads of one process '
                "share the global generators. Use worker processes, or draw from self.rng."
            )
        self._batch_size = int(batch_size)
        self._options = EngineOptions(
            worker_template,
            iterable if self._planner.indexable else None,
            self._batch_size // num_mini_batches,
            nworkers,
            shared_memory=shared_memory,
            prefetch=check_optional_count("prefetch", prefetch),
            in_order=check_flag("in_order", in_order),
            timeout=timeout,
            start_method=start_method,
            max_buffers=max_buffers,
            seed=shard.seed(self._seed),
            seed_globals=check_flag("seed_globals", seed_globals),
            on_error=check_on_error(on_error),
            restarts=check_optional_count("restarts", restarts, 0),
            worker_threads=check_count("worker_threads", worker_threads, 1),
        )
        if max_buffers is not None and max_buffers < max(self._options.buffers, num_mini_batches):
            raise ValueError(
                f"max_buffers must be at least shared_memory and num_mini_batches (each mini-batch "
                f"of an iteration has a buffer), got {max_buffers}, {shared_memory} and "
                f"{num_mini_batches}."
            )
        self._clock = Clock()

    # -- life ----------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the workers; ``with loader:`` does so, too. A started loader stays as it is.

        Raises
        ------
        MemoryError
            If the buffers do not fit the available memory.
        OSError
            On Windows, which has none of the means this loader stands on.
        Exception
            If the template or the dataset cannot be pickled: the text names the attribute.
        """
        if sys.platform == "win32":
            raise OSError(
                "crumpets-like runs on Linux and macOS: it needs Unix sockets and shared memory "
                "passed by descriptor. On Windows use WSL."
            )
        with self._lock:
            if self._engine is None:
                self._engine = self._make_engine()
                self._clock = Clock()
        return self

    def _make_engine(self) -> AnyEngine:
        if self._nworkers:
            return Engine(self._options)
        with interrupts_deferred():
            from .broker.local import LocalEngine

        return LocalEngine(self._options)

    def stop(self) -> None:
        """Stop the workers; mini-batches that the caller holds stay valid. May be repeated."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        try:
            self._torn = False
            if self._current is not None:
                with suppress(LoaderError):  # then it ends under another thread's feet
                    self._current.close("The iterator was closed: the loader was stopped.", 1.0)
                self._current.torn = False
            self._drop_upcoming()
        finally:
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    # -- iteration -----------------------------------------------------------------------

    def __iter__(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Begin the next epoch.

        Raises
        ------
        LoaderClosed
            Outside ``with loader:`` or ``start()`` and ``stop()``.
        """
        with self._lock:  # threads that begin epochs at once: the last one has it
            return self._begin()

    def _begin(self) -> EpochIterator:
        entered = time.perf_counter()
        last = self._current
        if self._engine is not None and last is not None:
            last.close()  # first of all: another thread may be in the middle of it
        if self._torn or (last is not None and last.torn):
            self._start_anew()
        if self._engine is None:
            raise LoaderClosed(
                "The loader is not started: iterate it inside `with loader:`, or between start() "
                "and stop()."
            )
        self._torn = True
        if self._clock.asked is None:
            self._clock.asked = entered
        if last is not None:
            last.join()
        if self._upcoming is not None:
            _, plan, this = self._upcoming
            self._upcoming = None
        else:
            self._planner, plan, this = self._open(self._engine, None)
        self._torn = False
        self._clock.waited += time.perf_counter() - entered  # a sampler may take its time
        self._current = Epoch(self._engine, plan, this, self._timeout)
        return EpochIterator(self, self._current)

    def _open_ahead(self, current: AnyPass) -> None:
        """Request the first batches of the next epoch, once all of this one are requested."""
        if self._upcoming is None and self._engine is not None:
            planner, plan, this = self._open(self._engine, current)
            self._upcoming = (self._planner, plan, this)
            self._planner = planner  # in this order: another thread may take a state

    def _open(
        self, engine: AnyEngine, current: AnyPass | None
    ) -> tuple[Planner, EpochPlan, AnyPass]:
        """Plan an epoch and begin its pass, requested behind that of `current`."""
        planner = copy.copy(self._planner)
        plan = planner.open()
        return planner, plan, engine.open(plan, after=current)

    def _start_anew(self) -> None:
        """Something, such as Ctrl-C, has interrupted the loader's own code: trust none of it."""
        clock = self._clock
        with interrupts_deferred():
            self._end()
            self.start()
        self._clock = clock

    def _drop_upcoming(self) -> None:
        """Take back an epoch that was opened ahead."""
        if self._upcoming is not None:
            self._planner, _, this = self._upcoming
            self._upcoming = None
            if self._engine is not None:
                self._engine.close_pass(this)

    def __len__(self) -> int:
        """Iterations of the current epoch; between epochs, of the next one.

        Raises
        ------
        TypeError
            If the iterable or sampler has none and none was set.
        """
        iterations = self.epoch_iterations
        if iterations is None:
            raise TypeError(
                "The iterable or sampler has no length: pass length=, or call set_length() or "
                "set_epoch_iterations()."
            )
        return iterations

    def set_length(self, length: int) -> None:
        """Set the samples of an epoch; acts at the next ``for``.

        Raises
        ------
        TypeError, ValueError
            If it is not an integer of at least 1.
        """
        length = check_count("length", length)
        with self._lock:
            self._drop_upcoming()
            self._planner.set_length(length)

    def set_epoch_iterations(self, iterations: int) -> None:
        """Set the iterations of an epoch and leave `length`; acts at the next ``for``.

        Raises
        ------
        TypeError, ValueError
            If it is not an integer of at least 1.
        """
        iterations = check_count("epoch_iterations", iterations)
        with self._lock:
            self._drop_upcoming()
            self._planner.set_epoch_iterations(iterations)

    def update_dataset(self) -> None:
        """Give the workers the dataset as it is now, without new processes where that can be.

        Acts at the next ``for``; mini-batches of the epoch in use may show either state. (On macOS
        the workers are started anew, which ends that epoch. Threads, and ``nworkers=0``, read the
        caller's own object anyway.)

        Raises
        ------
        Exception
            If the dataset cannot be pickled: the text names the attribute.
        """
        with self._lock:
            if self._engine is not None and self._options.dataset is not None:
                self._drop_upcoming()
                if not self._engine.update_dataset():
                    self._start_anew()

    # -- facts ---------------------------------------------------------------------------

    @property
    def iterations(self) -> int:
        """`start_iteration` and the batches that the caller received, broken epochs included."""
        return self._iterations

    @property
    def epoch_iterations(self) -> int | None:
        """Iterations of the current epoch; between epochs, of the next one. None: not known."""
        if self._current is not None and not self._current.closed:
            return self._current.plan.iterations
        if self._upcoming is not None:
            return self._upcoming[1].iterations
        return self._planner.iterations()

    @property
    def length(self) -> int | None:
        """Samples of an epoch as given, or of one pass; None: not known."""
        return self._planner.length

    @property
    def batch_size(self) -> int:
        """Samples of one iteration."""
        return self._batch_size

    @property
    def mini_batch_size(self) -> int:
        """Samples of one mini-batch."""
        return self._batch_size // self._num_mini_batches

    @property
    def num_mini_batches(self) -> int:
        """Mini-batches of one iteration."""
        return self._num_mini_batches

    @property
    def nworkers(self) -> int:
        """Number of workers."""
        return self._nworkers

    def statistics(self) -> Statistics:
        """Figures since the last start.

        Raises
        ------
        LoaderClosed
            If the loader is not started.
        """
        engine = self._engine
        if engine is None:
            raise LoaderClosed("statistics() needs a started loader.")
        return make_statistics(self._clock, engine.facts())
