"""torch's ``DataLoader`` on our engine: the same interface, order and batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    IterDataPipe,
    MapDataPipe,
    Sampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

from ..arguments import check_count
from ..course import COUNTS, KEYS, Course
from ..origin import Origin, torch_part
from ..resume import VERSION, check_state, refuse_unordered
from ..sources import size_of
from .iterators import CallerIterator, WorkersIterator
from .pool import Pool

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """``torch.utils.data.DataLoader`` whose workers live on and write into shared memory.

    Arguments, attributes, order, batches, draws from generators, warnings and errors are those of
    torch 2.13, whose class this is a subclass of; ``docs/migrate-torch.md`` tells what differs,
    and why. Workers start at the first ``iter`` and live until :meth:`close`, the loader's
    collection or the end of the process. Iterators are independent of each other, several may be
    in use at once. Tensors are views of shared memory, valid as long as anything looks at them.

    Parameters
    ----------
    dataset : Dataset or IterableDataset
        Each ``iter`` gives the workers a fresh copy of what it is at that moment, and of
        `collate_fn` and `worker_init_fn`; with ``persistent_workers=True`` only the first.
    batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last
        As torch's.
    timeout, worker_init_fn, generator, prefetch_factor, persistent_workers, pin_memory_device
        As torch's.
    multiprocessing_context : str or context, optional
        Only its start method counts. Default: ``"forkserver"``.
    in_order : bool
        As torch's.
    seed_globals : bool
        Also seed ``random``, ``numpy.random`` and torch's default generator for each batch, so
        that what is drawn from them does not depend on the number of workers (0 included).

    Raises
    ------
    TypeError
        For datapipes.
    TypeError, ValueError
        As torch.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed_globals: bool = False,
    ) -> None:
        if isinstance(dataset, IterDataPipe | MapDataPipe):
            raise TypeError(
                f"dataset is a datapipe ({type(dataset).__name__}), which this loader does not "
                "know: use torch.utils.data.DataLoader for it, or an IterableDataset."
            )
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **({} if in_order else {"in_order": in_order}),  # which torch has since 2.6
        )
        self.in_order = in_order
        self.seed_globals = seed_globals
        self._pool = Pool()
        self._loaded: dict[str, Any] | None = None  # a state that the next pass goes on from

    def __getstate__(self) -> dict[str, Any]:
        """A copy, pickled or not, has workers of its own."""
        return {**self.__dict__, "_pool": Pool()}

    def __iter__(self) -> Any:
        """The batches of one pass, or the rest of one where a state was loaded."""
        iterator = self._open(self._loaded)
        if not iterator.left:
            iterator = self._open(None)
        self._loaded = None
        self._course.newest = iterator._record
        return iterator

    def _open(self, place: Any) -> Any:
        if self.num_workers:
            self.check_worker_number_rationality()
            if not self.prefetch_factor:  # torch, too, says it only here
                raise AssertionError(
                    "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
                )
            check_count("prefetch_factor", self.prefetch_factor)
            return WorkersIterator(self, self._pool, place)
        return CallerIterator(self, place)

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on behind the last batch that the caller has received.

        It is that of the iterator which was made last, whether it is still in use or not; other
        iterators of this loader do not count. At the end of its pass it is the next pass, as it
        would begin now.

        Returns
        -------
        dict
            Of strings, numbers, lists and None, for ``json``, ``pickle`` and ``torch.save``. Its
            size does not depend on that of the dataset: about 5 kB for each generator that the
            order is drawn from (torch's default one, that of `generator` or of the sampler), since
            a pass is drawn again from where they stood; up to twice that for a default one that
            has been used for other things meanwhile. A sampler or batch sampler that has a
            ``state_dict`` adds that, as ``"sampler_state"``.

        Raises
        ------
        ValueError
            In the middle of a pass with ``in_order=False``, where what was received is not its
            beginning.
        """
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        course = self._course
        record = course.newest
        if record is not None and self.num_workers and not (self.in_order or record.over):
            refuse_unordered(f"{record.received} batches", record.epoch)
        steps = "i" if self._pool.persistent else None
        seed = self._pool.persistent.get("_base_seed")
        return {**self._head(), **course.place(steps=steps, seed=seed)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``iter`` go on where a state was taken: with the rest of that pass, if any.

        That ``iter`` sets the generators that the order is drawn from, torch's default one
        included, as they were when the state was taken. Iterators in use stay what they are. The
        number of workers (but for an ``IterableDataset``), `prefetch_factor` and the like may be
        others than those of the loader that gave the state.

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
            sampler and so on: names both values. Nothing is changed then.
        """
        check_state(state_dict, self._head(), KEYS, COUNTS)
        self._course.check(state_dict)
        self._loaded = copy.deepcopy(dict(state_dict))

    def _head(self) -> dict[str, Any]:
        """What two loaders must have in common."""
        streams = isinstance(self.dataset, IterableDataset)
        return {
            "version": VERSION,
            "dataset_length": None if streams else size_of(self.dataset),
            "sampler": type(self.sampler).__name__,
            "batches": None if streams else size_of(self._index_sampler),
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "seed_globals": self.seed_globals,
            # Streams are dealt out to workers.
            "num_workers": self.num_workers if streams else None,
        }

    @property
    def _course(self) -> Course:
        if self._pool.course is None:
            keys: Any = self._index_sampler
            single = getattr(keys, "sampler", None)
            # (Another batch sampler may have read more of it than what it gave.)
            inner = single if type(keys) is BatchSampler else None
            argument = "sampler" if self.batch_size is not None else "batch_sampler"
            found = [self.generator, *(getattr(one, "generator", None) for one in (keys, single))]
            own = {
                id(one): one
                for one in found
                if isinstance(one, torch.Generator) and one is not torch.default_generator
            }
            parts = {
                f"generator {number}": torch_part(one) for number, one in enumerate(own.values())
            }
            self._pool.course = Course(argument, keys, inner, Origin("torch", parts))
        return self._pool.course

    def close(self) -> None:
        """End the workers, and the iterators that are in use; the next ``iter`` starts new ones.

        Batches that the caller holds stay valid.
        """
        self._pool.close()
