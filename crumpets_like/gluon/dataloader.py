"""The loader with gluon's signature: :class:`DataLoader`."""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Self, cast

import numpy as np

from ..broker.engine import Engine
from ..broker.options import EngineOptions
from ..errors import LoaderTimeout
from ..independent import MOST_SAMPLES, BatchIterator, BatchPlan, CollateWorker
from .arguments import check_positive_timeout, choose_batch_sampler, negative_as_zero
from .batchify import default_batchify_fn

__all__ = ["DataLoader"]

_SLOW = (
    "The likely cause is a slow transform: give it more time by a larger timeout. If workers get "
    "in each other's way (processor cores, memory, disk), fewer workers (num_workers) are faster."
)


class DataLoader:
    """Yields batches of a dataset, made by worker processes or threads; as gluon 1.9.1 does.

    ::

        loader = DataLoader(ArrayDataset(images, labels), 64, shuffle=True, num_workers=4)
        for epoch in range(3):
            for image, label in loader:
                ...

    Batches are numpy arrays (views of the shared memory that workers wrote, writable, valid as
    long as anything looks at them), or whatever `batchify_fn` returns. Workers start with the
    loader and end when it is collected, or with the process. Iterators of one loader may be used
    side by side; each begins its pass at its first ``next``.

    Parameters
    ----------
    dataset : dataset
        Anything with ``len()`` and ``[]``: a `Dataset`, a list, a numpy array, a tensor. Worker
        processes have a copy each, threads share it.
    batch_size : int
        Samples of a batch. Needed unless `batch_sampler` is given.
    shuffle : bool
        A new order in each pass, drawn from numpy's global generator in this process.
    sampler : iterable
        Gives the indices of one pass, in place of `shuffle`.
    last_batch : {"keep", "discard", "rollover"}, optional
        What becomes of a short last batch, see `BatchSampler`. Default: "keep".
    batch_sampler : iterable of lists
        Gives the indices of each batch of one pass, in place of the four above.
    batchify_fn : callable
        Makes a batch of a list of samples, in the worker. Default: `default_batchify_fn`.
    num_workers : int
        Number of workers; 0 or less: the calling thread makes each batch when it is asked for.
    pin_memory : bool
        Batches are torch's tensors, in page-locked memory if there is a CUDA device. They are
        copied there by the calling thread.
    pin_device_id : int
        The CUDA device that the memory is locked for.
    prefetch : int, optional
        Batches requested ahead of the one that is asked for: so many and one more by the first
        ``next``, then one by each. Less than 0 means 0. Default: ``2 * num_workers``.
    thread_pool : bool
        Workers are threads, for datasets that mostly wait for a disk or release the interpreter.
    timeout : float or None
        Most seconds that ``next`` waits for a batch once the workers are up; None: no limit.
    auto_reload : bool
        Request the first `prefetch` batches of the next pass when the loader is made, and at the
        end of each pass. The first iterator that is then used takes them.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or two do not go together; names the argument and its value.
    ImportError
        If `pin_memory` is asked for without torch.
    Exception
        If the dataset or `batchify_fn` cannot be sent to worker processes.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        last_batch: str | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        batchify_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        pin_device_id: int = 0,
        prefetch: int | None = None,
        thread_pool: bool = False,
        timeout: float | None = 120,
        auto_reload: bool = False,
    ) -> None:
        self._engine: Engine | None = None
        self._ahead: BatchIterator | None = None  # a pass that nobody has taken yet
        self._passes = 0
        if not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"dataset must have __getitem__ and __len__, got {dataset!r} "
                f"({type(dataset).__name__})"
            )
        self._dataset = dataset
        self._batch_sampler = choose_batch_sampler(
            dataset, batch_size, shuffle, sampler, last_batch, batch_sampler
        )
        self._batchify = default_batchify_fn if batchify_fn is None else batchify_fn
        if not callable(self._batchify):
            raise TypeError(f"batchify_fn must be callable, got {batchify_fn!r}")
        self._nworkers = negative_as_zero("num_workers", num_workers)
        if prefetch is None:
            prefetch = 2 * self._nworkers
        self._prefetch = negative_as_zero("prefetch", prefetch)
        self._auto_reload = bool(auto_reload)
        self._pin = None
        self._options = EngineOptions(
            CollateWorker(self._batchify),
            _items_only(dataset),
            MOST_SAMPLES,
            self._nworkers,
            timeout=check_positive_timeout(timeout),
            start_method="thread" if thread_pool else "forkserver",
            seed=_numpy_seed(),
        )
        if pin_memory:
            from .pinning import make_pin

            self._pin = make_pin(pin_device_id)
        if self._nworkers:
            self._engine = Engine(self._options)
        if self._auto_reload:
            self.refresh()

    def __iter__(self) -> Iterator[Any]:
        """An iterator of one pass, which begins at its first ``next``."""
        return _PassIterator(self)

    def __len__(self) -> int:
        """Batches of the next pass that begins."""
        return len(cast(Sized, self._batch_sampler))

    def refresh(self) -> None:
        """Request the first `prefetch` batches of a pass now, in place of any that wait.

        The first iterator that is used takes them. With 0 workers, nothing is read ahead.
        """
        self.clean()
        if self._nworkers and self._prefetch:
            self._ahead = self._request(self._living_engine(), self._prefetch)

    def clean(self) -> None:
        """Drop the batches that were requested for a pass that nobody has begun."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._nworkers:
            raise TypeError(
                "a DataLoader with workers cannot be pickled or copied, since they belong to it "
                "alone: make a new one of its dataset."
            )
        return self.__dict__

    # -- for the iterators ---------------------------------------------------------------

    def _begin(self) -> Iterator[Any]:
        """Begin a pass, or take the one that waits."""
        if not self._nworkers:
            return self._read_here()
        engine = self._living_engine()
        batches, self._ahead = self._ahead, None
        if batches is None:
            return self._request(engine, self._prefetch + 1)
        batches.widen()
        return batches

    def _end(self) -> None:
        """A pass has been read to its end."""
        if self._auto_reload and self._ahead is None:
            self.refresh()

    def _living_engine(self) -> Engine:
        """The engine; a new one if an error, an interruption or a fork has taken it."""
        engine = self._engine
        if engine is None or not engine.usable:
            self.clean()
            if engine is not None:
                engine.stop()
            engine = self._engine = Engine(self._options)
        return engine

    def _request(self, engine: Engine, window: int) -> BatchIterator:
        plan = BatchPlan(self._passes, _key_lists(self._batch_sampler))
        self._passes += 1
        return BatchIterator(engine, plan, window, at_once=False)

    def _read_here(self) -> Iterator[Any]:
        for keys in _key_lists(self._batch_sampler):
            yield self._batchify([self._dataset[key] for key in keys])


class _PassIterator(Iterator[Any]):
    """The batches of one pass; threads that share it get each batch once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._batches: Iterator[Any] | None = None
        self._over = False
        self._lock = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return self._next()

    def _next(self) -> Any:
        if self._over:
            raise StopIteration
        loader = self._loader
        self._over = True  # after an error, too
        try:
            if self._batches is None:
                self._batches = loader._begin()
            batch = next(self._batches)
        except StopIteration:
            loader._end()
            raise
        except LoaderTimeout as error:
            raise LoaderTimeout(error.seconds, error.where, error.stack, _SLOW) from None
        batch = batch if loader._pin is None else loader._pin(batch)
        self._over = False
        return batch


class _Items:
    """A dataset of which workers see the items alone.

    The engine would call its ``set_epoch`` or ``__getitems__``, which gluon does not know.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self._dataset[key]


def _items_only(dataset: Any) -> Any:
    hidden = hasattr(dataset, "set_epoch") or hasattr(dataset, "__getitems__")
    return _Items(dataset) if hidden else dataset


def _key_lists(batch_sampler: Iterable[Iterable[Any]]) -> Iterator[list[Any]]:
    """The lists of one pass over a batch sampler.

    Raises
    ------
    TypeError, ValueError
        If it gives something else, or an empty list.
    """
    for batch in batch_sampler:
        try:
            keys = list(batch)
        except TypeError as error:
            raise TypeError(
                f"batch_sampler must give lists of indices, got {batch!r} "
                f"({type(batch).__name__}): a sampler of single indices is given as sampler"
            ) from error
        if not keys:
            raise ValueError("batch_sampler gave an empty list: a batch needs a sample")
        yield keys


def _numpy_seed() -> int:
    """A seed for the workers' global generators, from the state of numpy's, which draws nothing."""
    state = pickle.dumps(np.random.get_state(legacy=False))
    return int.from_bytes(hashlib.sha256(state).digest()[:8], "little")
