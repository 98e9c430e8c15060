"""What a worker does with its work: from indices or samples to rows.

One :class:`Runner` belongs to one copy of the worker, wherever it runs: in a process,
in a thread, or in the caller's thread (``nworkers=0``).
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np

from .. import seeding
from .buffers import BufferSpec, SlotLayout
from .encoding import Arena, Frame, collate, encode, stack_part
from .failures import describe_failure
from .protocol import Kind, Part, Status
from .rows import RowBuffers, RowWriter
from .segment import NO_SLOT, RingGeometry, StatusPage
from .worker import BufferWorker, Worker

__all__ = ["Runner", "overrides"]

_NO_GUARD: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


def overrides(worker: Worker, method: str) -> bool:
    """Whether the worker's class has its own version of a method of the base classes."""
    base = BufferWorker if hasattr(BufferWorker, method) else Worker
    return getattr(type(worker), method) is not getattr(base, method)


class Runner:
    """Runs samples through one copy of a worker.

    Parameters
    ----------
    worker : Worker
        The copy that belongs to this process or thread.
    dataset : object or None
        What indices refer to.
    memory : buffer
        The ring's mapping.
    geometry : RingGeometry
        Its sizes.
    rows : int
        Most samples of a mini-batch.
    seed : int
        The loader's seed.
    seed_globals : bool
        Seed the global generators for each sample.
    guard : callable, optional
        Makes a context manager to work in (``nworkers=0`` saves the caller's generators).
    """

    def __init__(
        self,
        worker: Worker,
        dataset: Any,
        memory: Any,
        geometry: RingGeometry,
        rows: int,
        *,
        worker_id: int,
        seed: int,
        seed_globals: bool,
        guard: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.worker = worker
        self._dataset = dataset
        self._memory = memory
        self._geometry = geometry
        self._worker_id = worker_id
        self._seed = seed
        self._seed_globals = seed_globals
        self._guard = guard or (lambda: _NO_GUARD)
        self._epoch: int | None = None
        self._getitems: Any = getattr(dataset, "__getitems__", None)
        self._is_array = isinstance(dataset, np.ndarray)
        self._bulk_read = (self._is_array or callable(self._getitems)) and not seed_globals
        self._buffer_worker = worker if isinstance(worker, BufferWorker) else None
        self._layout: SlotLayout | None = None
        if self._buffer_worker is not None:
            self._layout = SlotLayout(self._buffer_worker.buffer_specs, rows)
            self._writer = RowWriter(self._layout)
            self._bulk = overrides(worker, "prepare_batch")
        self._page = StatusPage(memory, max(1, geometry.nworkers))
        self._cell = worker._cell = self._page.cell(worker_id)
        worker.worker_id = worker_id
        worker._seed = seed

    def setup(self) -> None:
        """Run the worker's `setup`."""
        with self._guard():
            self.worker.setup()

    def teardown(self) -> None:
        """Run the worker's `teardown`; nothing of it is used afterwards."""
        try:
            with self._guard():
                self.worker.teardown()
        finally:
            self._cell.release()
            self._page.release()

    def run_part(
        self, part: Part, epoch: int, kind: Kind, keys: Any
    ) -> tuple[Status, list[Frame], int]:
        """Fill rows of one mini-batch.

        Parameters
        ----------
        part : Part
            Which rows.
        epoch : int
            Epoch of the samples.
        kind : Kind
            What `keys` are.
        keys : ndarray of int64, or sequence of keys or samples
            One per row.

        Returns
        -------
        status, frames, first_index
            Frames hold lists and free-form results, or the pickled exception.
        """
        first_index = int(keys[0]) if kind is Kind.INDICES else -1
        try:
            return Status.DONE, self.fill_part(part, epoch, kind, keys), first_index
        except BaseException as error:  # noqa: BLE001  everything is the caller's to see
            return Status.FAILED, [describe_failure(error)], first_index

    def fill_part(self, part: Part, epoch: int, kind: Kind, keys: Any) -> list[Frame]:
        """As :meth:`run_part`, but raises; a note on the error says where it happened."""
        worker = self.worker
        started = time.perf_counter()
        try:
            with self._guard():
                if epoch != self._epoch:
                    self._start_epoch(epoch)
                return self._fill(part, kind, keys)
        except BaseException as error:
            error.add_note(self._note(error))
            raise
        finally:
            self._cell[0] = worker._drawn = -1
            worker._one = False
            worker._chunk = worker.indices = worker._keys = None
            self._page.add_work(self._worker_id, part.size, time.perf_counter() - started)

    def _start_epoch(self, epoch: int) -> None:
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        self.worker.epoch = epoch
        self.worker.start_epoch(epoch)
        self._epoch = epoch

    def _note(self, error: BaseException) -> str:
        worker = self.worker
        if worker.index >= 0:
            where = f"sample with index {worker.index}"
        elif worker._one:
            where = f"sample number {self._cell[0]} of the epoch"
        elif worker._keys is not None:
            where = f"samples with the indices {list(worker._keys[:8])}"
            where += ", ..." if len(worker._keys) > 8 else ""
        else:
            where = "start of an epoch"
        text = f"In worker {self._worker_id}, epoch {worker.epoch}: {where}."
        if self._layout is not None and isinstance(
            error, ValueError | TypeError | OverflowError | LookupError | Warning
        ):
            text += f" Buffers: {_describe_specs(self._layout.specs)}."
        return text

    # -- reading -------------------------------------------------------------------------

    def _read(self, kind: Kind, keys: Any) -> Any:
        """All samples of a chunk."""
        if kind is Kind.SAMPLES:
            return keys
        if self._bulk_read and (kind is Kind.INDICES or not self._is_array):
            if self._is_array:
                return self._dataset[keys]
            indices = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
            samples = self._getitems(indices)
            if len(samples) != len(indices):
                raise ValueError(
                    f"dataset.__getitems__ returned {len(samples)} samples for {len(indices)} "
                    "indices."
                )
            return samples
        plain = keys.tolist() if isinstance(keys, np.ndarray) else keys
        dataset = self._dataset
        cell = self._cell
        samples = []
        for position, key in enumerate(plain, self.worker._first):
            cell[0] = position
            if self._seed_globals:
                seeding.seed_globals(self._seed, self.worker.epoch, position)
            samples.append(dataset[key])
        return samples

    # -- writing -------------------------------------------------------------------------

    def _fill(self, part: Part, kind: Kind, keys: Any) -> list[Frame]:
        self.worker._first = self._cell[0] = part.position
        if self._layout is None:
            return self._fill_free_form(part, kind, keys)
        memory, offset, start = self._memory, self._geometry.offset(part.slot), part.start
        if part.slot == NO_SLOT:  # the arrays travel in the message
            memory, offset, start = bytearray(self._layout.stride), 0, 0
        batch: defaultdict[str, list[Any]] = defaultdict(list)
        if self._bulk:
            arrays = self._writer.all_rows(memory, offset, start, part.size)
            self._prepare_bulk(part, kind, keys, batch, arrays)
        else:
            rows, copy = self._writer.each_row(memory, offset, start, part.size)
            self._prepare_each(kind, keys, batch, rows)
            copy()
        lists: dict[str, Any] = dict(batch)
        for key in self._layout.specs.keys() & lists.keys():
            raise ValueError(f"batch[{key!r}] was appended to, but {key!r} is a buffer.")
        if part.slot == NO_SLOT:
            lists |= self._layout.rows_at(memory, 0, 0, part.size)
        return encode(lists, None)

    def _prepare_bulk(
        self,
        part: Part,
        kind: Kind,
        keys: Any,
        batch: defaultdict[str, list[Any]],
        arrays: RowBuffers,
    ) -> None:
        worker: Any = self.worker
        worker._chunk = (part.position, part.size)
        if kind is Kind.INDICES:
            worker.indices = np.array(keys)
            worker._keys = keys.tolist()
        samples = self._read(kind, keys)
        self._cell[0] = part.position
        if self._seed_globals:
            seeding.seed_globals(self._seed, worker.epoch, part.position)
        worker.prepare_batch(samples, batch, arrays)
        for key, values in batch.items():
            if len(values) != part.size:
                raise ValueError(
                    f"prepare_batch appended {len(values)} values to batch[{key!r}] for "
                    f"{part.size} samples: one value per sample is needed."
                )

    def _prepare_each(
        self,
        kind: Kind,
        keys: Any,
        batch: defaultdict[str, list[Any]],
        rows: Iterable[RowBuffers],
    ) -> None:
        worker: Any = self.worker
        prepare = worker.prepare
        plain, samples = self._samples(kind, keys)
        dataset = self._dataset
        reseed = self._seed_globals
        cell, first = self._cell, worker._first
        lists = 0  # that the first sample was appended to
        worker._one = True
        # The loop that every sample goes through: attributes are local names, nothing is made
        # that is not used, the generator is positioned only when it is asked for.
        for position, key, buffers in zip(count(first), plain, rows, strict=False):
            cell[0] = position
            if reseed:
                seeding.seed_globals(self._seed, worker.epoch, position)
            prepare(dataset[key] if samples is None else samples[position - first], batch, buffers)
            if batch:
                row = position - first
                lists = lists if row else len(batch)
                self._check_lists(batch, row, lists)

    def _samples(self, kind: Kind, keys: Any) -> tuple[list[Any], Any]:
        """Plain keys, and the samples if they are here already."""
        plain = keys.tolist() if kind is Kind.INDICES else keys
        if kind is Kind.INDICES:
            self.worker._keys = plain
        if kind is Kind.SAMPLES:
            return plain, keys
        return plain, self._read(kind, keys) if self._bulk_read else None

    def _check_lists(self, batch: dict[str, list[Any]], row: int, lists: int) -> None:
        for number, (key, values) in enumerate(batch.items()):
            if number >= lists:
                self._cell[0] = self.worker._first  # for the note on the error
                raise ValueError(
                    f"batch[{key!r}] has no value for this sample, but for one behind it: prepare "
                    "must append exactly one value per sample to each list."
                )
            if len(values) != row + 1:
                what = "has no value" if len(values) <= row else f"got {len(values) - row} values"
                raise ValueError(
                    f"batch[{key!r}] {what} for this sample: prepare must append exactly one value "
                    "per sample to each list."
                )

    def _fill_free_form(self, part: Part, kind: Kind, keys: Any) -> list[Frame]:
        worker = self.worker
        plain, samples = self._samples(kind, keys)
        results = []
        worker._one = True
        for row, key in enumerate(plain):
            self._cell[0] = part.position + row
            if self._seed_globals:
                seeding.seed_globals(self._seed, worker.epoch, part.position + row)
            result = worker.process(self._dataset[key] if samples is None else samples[row])
            if not isinstance(result, dict):
                raise TypeError(
                    f"process() must return a dict, it returned a {type(result).__name__}."
                )
            results.append(result)
        worker._one = False
        arena = None
        if part.slot != NO_SLOT:
            stride = self._geometry.stride
            arena = Arena(
                self._memory,
                self._geometry.offset(part.slot),
                stride * part.start // part.rows,
                stride * (part.start + part.size) // part.rows,
            )
        if part.size == part.rows:
            return encode(worker.collate(results), arena)
        return encode(collate(results, stack_part, part.start), arena)


def _describe_specs(specs: dict[str, BufferSpec]) -> str:
    return ", ".join(f"{name}={spec}" for name, spec in specs.items()) or "none"
