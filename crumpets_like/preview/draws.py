"""What a loader's worker makes of the next samples, in the epochs to come."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..broker.local import LocalEngine
from ..broker.options import EngineOptions
from ..chain import Place
from ..passes import Batch, EpochPlan, Mark
from ..seeding import preserve_globals

if TYPE_CHECKING:
    from ..dataloader import TurboDataLoader

__all__ = ["Draws", "draw"]


_SPARE = 32  # samples that may fail and be left out


class Draws:
    """Samples, and what became of them.

    Attributes
    ----------
    keys : list of int, or of other keys of the dataset
        Of the samples.
    samples : list
        As the dataset gives them.
    epochs : list of int
        Numbers of the epochs that the samples are drawn for.
    batches : list of dict
        For each epoch the mini-batch's fields, with a list of all samples' values each.
    failed : list of (key, Exception)
        Samples in between that were left out, as ``on_error="skip"`` leaves them out of training.
    """

    def __init__(self, epochs: list[int]) -> None:
        self.keys: list[Any] = []
        self.samples: list[Any] = []
        self.epochs = epochs
        self.batches: list[dict[str, list[Any]]] = [{} for _ in epochs]
        self.failed: list[tuple[Any, Exception]] = []

    def add(self, key: Any, sample: Any, drawn: list[dict[str, Any]]) -> None:
        """Note one sample, and its fields in each epoch."""
        self.keys.append(key)
        self.samples.append(sample)
        for batch, fields in zip(self.batches, drawn, strict=True):
            for name, value in fields.items():
                batch.setdefault(name, []).append(value)


def draw(loader: TurboDataLoader, count: int, times: int) -> Draws:
    """Prepare the next samples of a loader in the calling thread; nothing of the loader moves.

    Parameters
    ----------
    loader : TurboDataLoader
        Of a dataset that is read by index.
    count : int
        Number of samples; there are fewer where the epoch has fewer.
    times : int
        Number of epochs, from the next one on.

    Raises
    ------
    TypeError
        If the loader reads an iterable.
    ValueError
        If there is no sample.
    Exception
        What a sample raises; with ``on_error="skip"`` the next one takes its place, and the error
        is raised if there is none left.
    """
    options = loader._options
    skips = options.on_error == "skip"
    epoch, position, batch = _next_samples(loader, count + _SPARE if skips else count)
    draws = Draws([epoch + number for number in range(times)])
    with preserve_globals(), _same_threads():
        engine = LocalEngine(
            EngineOptions(
                options.worker_template,
                _Samples(options.dataset),
                1,
                0,
                shared_memory=False,
                seed=options.seed,
                seed_globals=options.seed_globals,
            )
        )
        try:
            for number, key in enumerate(
                batch.tolist() if isinstance(batch, np.ndarray) else batch
            ):
                try:
                    sample = options.dataset[key]
                    one = batch[number : number + 1], position + number
                    drawn = [_draw_one(engine, epoch, *one) for epoch in draws.epochs]
                except Exception as error:
                    if not skips:
                        raise
                    draws.failed.append((key, error))
                    continue
                draws.add(key, sample, drawn)
                if len(draws.keys) == count:
                    break
        finally:
            engine.stop()
    if not draws.keys:
        raise draws.failed[0][1]
    return draws


def _draw_one(engine: LocalEngine, epoch: int, batch: Batch, position: int) -> dict[str, Any]:
    """The fields of the one sample in `batch`, not in the engine's memory."""
    [fields] = engine.next_batch(engine.open(_OneBatch(epoch, position, batch))) or [{}]
    return {name: copy.copy(values[0]) for name, values in fields.items()}


def _next_samples(loader: TurboDataLoader, count: int) -> tuple[int, int, Batch]:
    """Look into the next epoch: its number, the position where it begins, and what comes first."""
    with loader._lock:
        upcoming = loader._upcoming
        planner = copy.copy(loader._planner if upcoming is None else upcoming[0])
    dataset = loader._options.dataset
    if not planner.indexable:
        raise TypeError(
            "preview needs a dataset with __len__ and __getitem__: samples of an iterable would be "
            "missing in training. Preview a list of some of them, with the same worker."
        )
    batch: Batch
    if planner.own_order:
        plan = planner.open()
        epoch, position = plan.epoch, plan.first_position
        indices: list[int] = []
        while len(indices) < count and (more := next(plan, None)) is not None:
            indices.extend(more)
        batch = np.array(indices[:count], np.int64)
    else:
        epoch, position = planner.epoch, 0
        if isinstance(dataset, Mapping):
            batch = list(islice(dataset, count))
        else:
            batch = np.arange(min(count, len(dataset)))
    if not len(batch):
        raise ValueError("the next epoch has no samples, so there is nothing to preview")
    return epoch, position, batch


class _OneBatch(EpochPlan):
    """Some samples at their places in an epoch."""

    kind = "indices"
    ahead = False

    def __init__(self, epoch: int, position: int, batch: Batch) -> None:
        super().__init__(epoch, len(batch), len(batch), Mark(0, position, False, Place(0, 0)))
        self._batch = batch

    def __next__(self) -> Batch:
        if self.over:
            raise StopIteration
        self._given = len(self._batch)
        return self._batch


class _Samples:
    """A dataset that is not told of epochs: it is the caller's own object."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: Any) -> Any:
        return self._dataset[key]


@contextmanager
def _same_threads() -> Iterator[None]:
    """OpenCV has as many threads afterwards as before; image workers set them in `setup`."""
    import cv2

    threads = cv2.getNumThreads()
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
