"""Scenarios of user code that ends or blocks a worker, wherever the loader calls it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from crumpets_like import BufferWorker, LoaderTimeout, TurboDataLoader, Worker, WorkerDied
from tests.support.loading import Items, run_items

__all__ = [
    "bulk",
    "collate",
    "pickling_of_results",
    "restarts_of_an_epoch_ahead",
    "start_epoch",
    "unpickling",
]


def _hang() -> None:
    while True:
        time.sleep(1)


def _exit() -> None:
    os._exit(3)


TROUBLES: dict[str, Callable[[], None]] = {"hangs": _hang, "exits": _exit}
CULPRIT = 21


class ManyAtOnce:
    """A dataset that is read in bulk; one of its samples makes trouble."""

    def __init__(self, trouble: str | None) -> None:
        self.trouble = trouble

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: list[int]) -> list[int]:
        if self.trouble and CULPRIT in indices:
            TROUBLES[self.trouble]()
        return indices


class BulkItems(BufferWorker):
    """Prepares all samples of a chunk; one of them makes trouble."""

    def __init__(self, trouble: str | None) -> None:
        super().__init__()
        self.add_buffer("item", ((), np.int64))
        self.trouble = trouble

    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        if self.trouble and CULPRIT in samples:
            TROUBLES[self.trouble]()
        time.sleep(0.001)
        buffers["item"][...] = samples


def bulk(start_method: str, where: str, on_error: str) -> None:
    """Samples that are read or prepared at once: none of them is blamed that may be innocent."""
    dataset: Any = ManyAtOnce("hangs" if where == "read" else None)
    worker = BulkItems("hangs" if where == "prepare" else None)
    options: Any = {"on_error": on_error, "timeout": 1, "start_method": start_method}
    with TurboDataLoader(dataset, 8, worker, 2, **options) as loader:
        if on_error == "skip":
            assert run_items(loader) == [n for n in range(64) if n != CULPRIT]
            return
        with pytest.raises(LoaderTimeout) as caught:
            run_items(loader)
    error = caught.value
    assert (error.batch, error.worker_id is None) == (2, False), error
    if error.index is None:
        assert CULPRIT in error.indices, error
        assert len(error.indices) > 1
        assert set(error.indices) <= set(range(16, 24))
        assert f"{len(error.indices)} samples at once, with the indices" in str(error)
    else:  # it was alone
        assert (error.index, error.indices) == (CULPRIT, ())
    assert "in _hang" in error.stack, error


class Collates(Worker):
    """Makes trouble where it joins the results of the third mini-batch."""

    def __init__(self, trouble: str) -> None:
        self.trouble = trouble

    def process(self, sample: Any) -> dict[str, Any]:
        return {"item": sample}

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        if results[0]["item"] == 16:
            TROUBLES[self.trouble]()
        return super().collate(results)


def collate(start_method: str, trouble: str, on_error: str) -> None:
    """The mini-batch is named, and none of its samples."""
    seen: list[int] = []
    options: Any = {"on_error": on_error, "timeout": 1, "start_method": start_method}
    error: Any = None
    with TurboDataLoader(range(64), 8, Collates(trouble), 2, **options) as loader:
        try:
            for _, (batch,) in loader:
                seen += batch["item"].tolist()
        except (LoaderTimeout, WorkerDied) as caught:
            error = caught
    assert isinstance(error, LoaderTimeout if trouble == "hangs" else WorkerDied), error
    assert (error.index, error.indices, error.epoch, error.batch) == (None, (), 0, 2), error
    assert "collate, or pickling its result (epoch 0, mini-batch 2)" in str(error)
    assert seen == list(range(16)), "what was before it is there"


class BadEpoch(Items):
    """Makes trouble before its second epoch."""

    def __init__(self, trouble: str) -> None:
        super().__init__()
        self.trouble = trouble

    def start_epoch(self, epoch: int) -> None:
        if epoch == 1:
            TROUBLES[self.trouble]()


def start_epoch(start_method: str, trouble: str, on_error: str) -> None:
    """All of the epoch before is there, although the next one has begun; later ones are, too."""
    options: Any = {"on_error": on_error, "timeout": 1, "start_method": start_method}
    worker = BadEpoch(trouble)
    with TurboDataLoader(range(64), 8, worker, 2, shared_memory=16, **options) as loader:
        engine = loader._engine
        seen: list[int] = []
        for _, (batch,) in loader:
            seen += batch["item"].tolist()
            if len(seen) == 8 and trouble == "exits":
                time.sleep(1)  # workers go on with the next epoch meanwhile
        assert seen == list(range(64)), seen
        with pytest.raises((LoaderTimeout, WorkerDied)) as caught:
            run_items(loader)
        error: Any = caught.value
        assert isinstance(error, LoaderTimeout if trouble == "hangs" else WorkerDied), error
        assert (error.index, error.epoch, error.batch) == (None, 1, None), error
        assert "start_epoch (epoch 1)" in str(error)
        assert run_items(loader) == list(range(64))
        assert loader._engine is engine, "without new processes"


class DeadlyEpoch(Items):
    """Each sample of the second epoch ends its worker."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if self.epoch == 1:
            os._exit(3)
        super().prepare(sample, batch, buffers)


def restarts_of_an_epoch_ahead(start_method: str) -> None:
    """Its limit is its own: what workers are lost for it costs the current epoch nothing."""
    options: Any = {"restarts": 2, "start_method": start_method, "shared_memory": 16}
    with TurboDataLoader(range(64), 8, DeadlyEpoch(), 3, **options) as loader:
        seen: list[int] = []
        for _, (batch,) in loader:
            if not seen:
                time.sleep(1)
            seen += batch["item"].tolist()
        assert seen == list(range(64)), seen
        with pytest.raises(WorkerDied) as caught:
            run_items(loader)
        assert caught.value.epoch == 1, caught.value
        assert run_items(loader) == list(range(64))


class Sample:
    """Makes trouble where it is unpickled."""

    def __init__(self, number: int, trouble: str) -> None:
        self.number = number
        self.trouble = trouble

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        if self.number == CULPRIT:
            if self.trouble == "raises":
                raise LookupError("bad state")
            TROUBLES[self.trouble]()


class Samples:
    """An iterable of them."""

    def __init__(self, trouble: str) -> None:
        self.trouble = trouble

    def __iter__(self) -> Iterator[Sample]:
        return (Sample(number, self.trouble) for number in range(64))


class Numbers(Items):
    """Writes the number of a sample, or the sample if it is a number."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        super().prepare(getattr(sample, "number", sample), batch, buffers)


class BulkNumbers(Numbers):
    """The same for a chunk."""

    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        super().prepare_batch(samples, batch, buffers)


class FreeNumbers(Worker):
    """The same without buffers."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"item": getattr(sample, "number", sample)}


WORKERS: dict[str, Callable[[], Worker]] = {
    "each": Numbers,
    "bulk": BulkNumbers,
    "free": FreeNumbers,
}


def unpickling(start_method: str, trouble: str, on_error: str, kind: str) -> None:
    """What a sample does where a worker unpickles it is for `on_error`, too."""

    def instead(index: int, error: Exception) -> int:
        assert index == CULPRIT
        return 1000

    worker = WORKERS[kind]()
    how: Any = instead if on_error == "callable" else on_error
    options: Any = {"on_error": how, "timeout": 1, "start_method": start_method}
    with TurboDataLoader(Samples(trouble), 8, worker, 2, **options) as loader:
        if on_error == "skip":
            assert run_items(loader) == [n for n in range(64) if n != CULPRIT]
            assert loader.statistics().skipped == 1
            return
        if on_error == "callable":
            assert run_items(loader) == [1000 if n == CULPRIT else n for n in range(64)]
            return
        with pytest.raises((LookupError, LoaderTimeout, WorkerDied)) as caught:
            run_items(loader)
    error: Any = caught.value
    if trouble == "raises":
        assert isinstance(error, LookupError)
        assert f"sample number {CULPRIT} of the epoch" in "".join(error.__notes__)
        return
    assert isinstance(error, LoaderTimeout if trouble == "hangs" else WorkerDied), error
    assert (error.index, error.epoch, error.batch) == (CULPRIT, 0, 2), error


class Transform:
    """Cannot be pickled, for what it holds."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Meta:
    """Holds it."""

    def __init__(self) -> None:
        self.transform = Transform()


class Refuses:
    """Cannot be pickled, as it says itself."""

    def __getstate__(self) -> dict[str, Any]:
        raise ValueError("no state")


class Results(Worker):
    """One result cannot be pickled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def process(self, sample: Any) -> dict[str, Any]:
        return {"item": sample, "meta": self.make() if sample == CULPRIT else None}


class CollatedResults(Results):
    """The same, but what cannot be pickled comes from `collate`."""

    def process(self, sample: Any) -> dict[str, Any]:
        return {"item": sample}

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        return {"item": [result["item"] for result in results], "meta": self.make()}


class Lists(Numbers):
    """The same in a list."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        super().prepare(sample, batch, buffers)
        batch["meta"].append(self.make() if sample == CULPRIT else None)


UNPICKLABLE: dict[str, tuple[Callable[[Any], Worker], Any, str, str]] = {
    "attribute": (Results, Meta, "result['meta'].transform.lock", f"index {CULPRIT}."),
    "item": (Results, lambda: [0, {"a": Refuses()}], "result['meta'][1]['a']", f"index {CULPRIT}."),
    "list": (Lists, Meta, "batch['meta'].transform.lock", f"index {CULPRIT}."),
    "collated": (CollatedResults, Meta, "batch['meta'].transform.lock", "collate of the samples"),
}


def pickling_of_results(start_method: str, nworkers: int, kind: str) -> None:
    """The error names the attribute, and the sample where it is one's."""
    make, held, path, where = UNPICKLABLE[kind]
    options: Any = {"start_method": start_method, "shared_memory": 4}
    with TurboDataLoader(range(64), 8, make(held), nworkers, **options) as loader:
        iterator = iter(loader)
        if kind != "collated":
            next(iterator)
        began = time.monotonic()
        with pytest.raises(Exception, match="cannot be sent to the training process") as caught:
            for _ in iterator:
                pass
        assert time.monotonic() - began < 2
    assert str(caught.value).startswith(f"{path} cannot be sent to the training process ("), caught
    assert where in "".join(caught.value.__notes__), caught.value.__notes__
