"""What a benchmark case is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .datasets import FEATURES
from .requirements import Requirement

if TYPE_CHECKING:
    from crumpets_like.broker import BufferWorker

#: What is measured: two whole epochs; only the first batch; the first batches of two passes;
#: training steps on a batch that is there; workers without a loader.
Kind = Literal["epochs", "first", "reopen", "steps", "worker"]

MakeDataset = Callable[[int], Any]


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    Attributes
    ----------
    name : str
        As given on the command line.
    summary : str
        What a sample is and costs.
    batch_size, workers : int
        As passed to the loaders.
    batches : mapping of str to int
        Contender -> batches per epoch, steps, or rounds. Only the contenders named here run.
    dataset : callable
        Takes the number of samples, returns the dataset.
    others : mapping of str to callable
        Contender -> its own kind of dataset, where that differs.
    worker : str
        Class in `copy_workers` that our loader runs.
    own_workers : mapping of str to callable
        Contender of ours -> what makes its worker, where that is no class in `copy_workers`.
    shape, dtype : tuple of int, str
        Of the field ``x``; ``y`` is an int64 scalar.
    requirements : tuple of Requirement
        What must be reached.
    shuffle : bool
        Whether the loaders shuffle.
    seed : int or None
        Seed of the loaders.
    step_s : float
        Seconds that the caller spins in Python for each batch.
    kind : Kind
        What is measured.
    dropin : bool
        Whether ours is the drop-in for torch's `DataLoader`, with the default collate.
    needs : tuple of str
        Optional packages that the case cannot do without.
    notes : mapping of str to str
        Contender -> why it does not run, or what it does differently.
    """

    name: str
    summary: str
    batch_size: int
    workers: int
    batches: Mapping[str, int]
    dataset: MakeDataset
    requirements: tuple[Requirement, ...]
    others: Mapping[str, MakeDataset] | None = None
    worker: str = "CopyWorker"
    own_workers: Mapping[str, Callable[[], BufferWorker]] | None = None
    shape: tuple[int, ...] = (FEATURES,)
    dtype: str = "float32"
    shuffle: bool = False
    seed: int | None = None
    step_s: float = 0.0
    kind: Kind = "epochs"
    dropin: bool = False
    needs: tuple[str, ...] = ()
    notes: Mapping[str, str] | None = None

    @property
    def samples(self) -> int:
        """Length of the dataset: one epoch of our loader; the others load it in part or again."""
        return self.batches["ours"] * self.batch_size

    def make_dataset(self, contender: str) -> Any:
        """Build the dataset that `contender` reads."""
        return (self.others or {}).get(contender, self.dataset)(self.samples)

    def make_worker(self, contender: str) -> BufferWorker:
        """Build the worker that our loader copies when it runs as `contender`."""
        if self.own_workers:
            return self.own_workers[contender]()
        from . import copy_workers

        worker: BufferWorker = getattr(copy_workers, self.worker)(self.shape, self.dtype)
        return worker

    def quick(self) -> Case:
        """Return the same case with as few batches as still show that it works."""
        if self.kind != "epochs":
            return self
        few = {
            name: min(count, 1 if name == "torch0" else 2 * self.workers)
            for name, count in self.batches.items()
        }
        return replace(self, batches=few)
