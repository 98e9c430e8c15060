"""torch's ``DataLoader`` on our engine: the same interface, order and batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, IterDataPipe, MapDataPipe, Sampler

from .iterators import SeededIterator, WorkersIterator
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

    def __getstate__(self) -> dict[str, Any]:
        """A copy, pickled or not, has workers of its own."""
        return {**self.__dict__, "_pool": Pool()}

    def __iter__(self) -> Any:
        """The batches of one pass."""
        if self.num_workers:
            self.check_worker_number_rationality()
            return WorkersIterator(self, self._pool)
        return SeededIterator(self) if self.seed_globals else super().__iter__()

    def close(self) -> None:
        """End the workers, and the iterators that are in use; the next ``iter`` starts new ones.

        Batches that the caller holds stay valid.
        """
        self._pool.close()
