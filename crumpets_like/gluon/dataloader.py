"""The loader with gluon's signature: :class:`DataLoader`."""

from __future__ import annotations

import copy
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, Self, cast

import numpy as np

from ..broker.engine import Engine
from ..broker.options import EngineOptions
from ..course import COUNTS, KEYS, Course, PassRecord
from ..errors import LoaderTimeout
from ..independent import MOST_SAMPLES, BatchIterator, BatchPlan, CollateWorker
from ..origin import Origin
from ..resume import VERSION, check_state
from ..sources import size_of
from .arguments import check_positive_timeout, choose_batch_sampler, negative_as_zero
from .batchify import default_batchify_fn
from .samplers import BatchSampler

__all__ = ["DataLoader"]

_END = object()
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
        # A pass that nobody has taken yet.
        self._ahead: tuple[BatchIterator, PassRecord] | None = None
        self._loaded: dict[str, Any] | None = None  # a state that the next pass goes on from
        if not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"dataset must have __getitem__ and __len__, got {dataset!r} "
                f"({type(dataset).__name__})"
            )
        self._dataset = dataset
        self._batch_sampler = choose_batch_sampler(
            dataset, batch_size, shuffle, sampler, last_batch, batch_sampler
        )
        inner, leftovers = None, {}
        if isinstance(self._batch_sampler, BatchSampler):
            inner = self._batch_sampler.sampler
            leftovers = {"leftovers": self._batch_sampler.leftovers}
        self._course = Course("sampler", self._batch_sampler, inner, Origin("numpy", leftovers))
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
            ahead[0].close()

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on behind the last batch that the caller has received.

        It is that of the pass which was begun last, whether its iterator is still in use or not;
        other passes of this loader do not count. At its end it is the next pass: the one that was
        requested ahead, or one that would begin now.

        Returns
        -------
        dict
            Of strings, numbers, lists and None, for ``json``, ``pickle`` and ``torch.save``. Its
            size does not depend on that of the dataset: about 4 kB where the order is drawn from
            numpy's global generator, since a pass is drawn again from where that stood, and twice
            that where it has been used for other things meanwhile; with "rollover" the leftovers,
            less than a batch of indices. A sampler or batch sampler that has a ``state_dict`` adds
            that, as ``"sampler_state"``.
        """
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        ahead = None if self._ahead is None else self._ahead[1]
        return {**self._head(), **self._course.place(ahead)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass go on where a state was taken: with the rest of that one, if any.

        As it begins it sets the generators that the order is drawn from, numpy's global one, as
        they were when the state was taken. A pass that was requested ahead is dropped, and this
        one requested in its place. Passes in use stay what they are. Workers, `prefetch` and the
        like may be others than those of the loader that gave the state.

        Parameters
        ----------
        state_dict : mapping
            What `state_dict` returned.

        Raises
        ------
        TypeError
            If it is no mapping, or a value is of the wrong type.
        ValueError
            If it is no state of such a loader, or of one with another dataset length, batch size,
            sampler or `last_batch`: names both values. Nothing is changed then.
        """
        check_state(state_dict, self._head(), KEYS, COUNTS)
        self._course.check(state_dict)
        self._loaded = copy.deepcopy(dict(state_dict))
        self._course.newest = None
        self._course.restore_own(state_dict)  # the length depends on leftovers
        if self._ahead is not None:
            self.refresh()

    def _head(self) -> dict[str, Any]:
        """What two loaders must have in common."""
        sampler: Any = self._batch_sampler
        cut = isinstance(sampler, BatchSampler)
        return {
            "version": VERSION,
            "dataset_length": size_of(self._dataset),
            "sampler": type(sampler.sampler if cut else sampler).__name__,
            "sampler_length": size_of(sampler.sampler if cut else sampler),
            "batch_size": sampler.batch_size if cut else None,
            "last_batch": sampler.last_batch if cut else None,
        }

    def __getstate__(self) -> dict[str, Any]:
        if self._nworkers:
            raise TypeError(
                "a DataLoader with workers cannot be pickled or copied, since they belong to it "
                "alone: make a new one of its dataset."
            )
        return self.__dict__

    # -- for the iterators ---------------------------------------------------------------

    def _begin(self) -> tuple[Iterator[Any], PassRecord]:
        """Begin a pass, or take the one that waits."""
        if not self._nworkers:
            record, keys = self._keys()
            batches = self._read_here(keys)
        else:
            engine = self._living_engine()
            taken, self._ahead = self._ahead, None
            if taken is None:
                taken = self._request(engine, self._prefetch + 1)
            else:
                taken[0].widen()
            batches, record = taken
        self._course.newest = record
        return batches, record

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

    def _request(self, engine: Engine, window: int) -> tuple[BatchIterator, PassRecord]:
        record, keys = self._keys()
        plan = BatchPlan(record.epoch, keys)
        return BatchIterator(engine, plan, window, at_once=False), record

    def _keys(self) -> tuple[PassRecord, Iterator[list[Any]]]:
        """The lists of the next pass, or of the rest of one where a state was loaded."""
        course, place = self._course, self._loaded
        if place is not None:
            reader = course.reader(*course.reopen(place, "i"))
            more = course.skip(reader, place["received"])
            self._loaded = None
            if more or not place["received"]:  # a pass may be too short for a batch
                return reader.record, _key_lists(reader)
        record = course.begin("i")
        return record, _key_lists(course.reader(record, iter(self._batch_sampler)))

    def _read_here(self, key_lists: Iterator[list[Any]]) -> Iterator[Any]:
        for keys in key_lists:
            yield self._batchify([self._dataset[key] for key in keys])


class _PassIterator(Iterator[Any]):
    """The batches of one pass; threads that share it get each batch once."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._pass: tuple[Iterator[Any], PassRecord] | None = None
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
        if self._pass is None:
            self._pass = loader._begin()
        batches, record = self._pass
        try:
            batch = next(batches, _END)
        except LoaderTimeout as error:
            raise LoaderTimeout(error.seconds, error.where, error.stack, _SLOW) from None
        if batch is _END:
            record.over = True
            loader._end()
            raise StopIteration
        record.receive()
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
