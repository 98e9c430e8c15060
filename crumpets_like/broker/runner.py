"""What a worker does with its work: from indices or samples to rows.

One :class:`Runner` belongs to one copy of the worker, wherever it runs: in a process,
in a thread, or in the caller's thread (``nworkers=0``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import length_hint
from typing import Any, TypeAlias

import numpy as np

from .. import seeding
from ..arguments import OnError
from ..errors import LoaderTimeout, Whereabouts, WorkerDied
from .buffers import SlotLayout
from .careful import Keyed, Lossy, OneByOne, is_lazy
from .encoding import Arena, Frame, collate, encode, stack_part
from .failures import add_note, describe_failure, pack_errors, unpack_errors
from .lists import ListCheck, check_lengths
from .pickling import find_unpicklable, pickling_error
from .protocol import Kind, Outcome, Part, Status
from .rows import RowBuffers, RowWriter
from .segment import NO_SLOT, RingGeometry, Stage, StatusPage
from .worker import BufferWorker, Worker, overrides

__all__ = ["Runner"]

# Samples that are waiting: their positions, what they are called in their source, their rows.
Pending: TypeAlias = Iterable[tuple[int, Any, Any]]

_SKIP = object()  # what `on_error` says
_NO_GUARD: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


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
    on_error : "raise", "skip" or callable
        What becomes of a sample that raises an exception, see :class:`TurboDataLoader`.
    may_exit : bool
        Whether ``sys.exit()`` in a sample ends the process, as elsewhere; else it is an error.
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
        on_error: OnError = "raise",
        may_exit: bool = False,
        guard: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.worker = worker
        self._memory = memory
        self._geometry = geometry
        self._worker_id = worker_id
        self._seed = seed
        self._seed_globals = seed_globals
        self._on_error = on_error
        self._may_exit = may_exit
        self._guard = guard or (lambda: _NO_GUARD)
        self._epoch: int | None = None
        self._where: Whereabouts | None = None  # of the latest error
        self._row_bytes = 0  # most bytes of arrays per sample in free-form results
        self.use_dataset(dataset)
        self._buffer_worker = worker if isinstance(worker, BufferWorker) else None
        self._layout: SlotLayout | None = None
        if self._buffer_worker is not None:
            self._layout = SlotLayout(self._buffer_worker.buffer_specs, rows)
            self._writer = RowWriter(self._layout)
            self._bulk = overrides(worker, "prepare_batch")
        self._stage = Stage.SAMPLE
        self._page = StatusPage(memory, max(1, geometry.nworkers))
        self._cell = worker._cell = self._page.cell(worker_id)
        worker.worker_id = worker_id
        worker._seed = seed

    def use_dataset(self, dataset: Any) -> None:
        """From now on indices refer to this dataset."""
        self._dataset = dataset
        self._is_array = isinstance(dataset, np.ndarray)
        self._has_getitems = callable(getattr(dataset, "__getitems__", None))
        if self._epoch is not None:
            self._tell_dataset(self._epoch)

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
        self, part: Part, epoch: int, kind: Kind, keys: Any, lost: bytes = b""
    ) -> tuple[Outcome, list[Frame]]:
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
        lost : bytes
            Tells which samples have ended another worker, and how: an error, for `on_error`. Not
            empty: samples are read one by one.

        Returns
        -------
        outcome, frames
            Frames hold lists and free-form results, or the pickled exception; the last one holds
            the skipped rows, if there are any.

        Raises
        ------
        SystemExit
            If a sample raises it and `may_exit`.
        """
        first_index = int(keys[0]) if kind is Kind.INDICES else -1
        try:
            frames, skipped = self.fill_part(part, epoch, kind, keys, lost)
        except BaseException as error:
            if isinstance(error, SystemExit) and self._may_exit:
                raise
            described = describe_failure(error, where=self._where)
            return Outcome(Status.FAILED, 1, first_index, 0), [described]
        return Outcome(Status.DONE, len(frames), first_index, skipped), frames

    def fill_part(
        self, part: Part, epoch: int, kind: Kind, keys: Any, lost: bytes = b""
    ) -> tuple[list[Frame], int]:
        """As :meth:`run_part`, but raises; a note on the error says where it happened.

        Returns the frames, and how many rows were skipped.
        """
        started = time.perf_counter()
        worker = self.worker
        self._kind = kind
        self._skipped: list[tuple[int, bytes]] = []
        self._careful = bool(lost)
        self._lost = dict(unpack_errors(lost)) if lost else {}
        worker._keys = keys.tolist() if kind is Kind.INDICES else None
        worker._first = self._cell[0] = part.position
        try:
            with self._guard():
                if epoch != self._epoch:
                    self._start_epoch(epoch)
                self._enter(Stage.SAMPLE)
                frames = self._fill(part, keys)
        except BaseException as error:
            if isinstance(error, SystemExit) and self._may_exit:
                raise  # the position stays in the status page: it tells whose fault it is
            add_note(error, self._note(error))
            self._where = self._whereabouts(part.size)
            self._end_part(part, started)
            raise
        self._end_part(part, started)
        if self._skipped:
            frames.append(pack_errors(self._skipped))
        return frames, len(self._skipped)

    def _end_part(self, part: Part, started: float) -> None:
        worker = self.worker
        self._cell[0] = worker._drawn = -1
        worker._one = False
        worker._chunk = worker.indices = worker._keys = worker._arena = None
        self._page.add_work(self._worker_id, part.size, time.perf_counter() - started)

    def _tell_dataset(self, epoch: int) -> None:
        if callable(set_epoch := getattr(self._dataset, "set_epoch", None)):
            set_epoch(epoch)

    def _start_epoch(self, epoch: int) -> None:
        self._enter(Stage.START_EPOCH)
        self._tell_dataset(epoch)
        self.worker.epoch = epoch
        self.worker.start_epoch(epoch)
        self._epoch = epoch

    # -- where it is ---------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        """Note for everyone what the position stands for from now on."""
        self._stage = stage
        self._page.set_stage(self._worker_id, stage)

    def _index(self) -> int | None:
        """Index of the current sample; those of an iterable are counted, keys are no indices."""
        if self.worker._keys is not None:
            return self.worker._keys[self._cell[0] - self.worker._first]
        return self._cell[0] if self._kind is Kind.SAMPLES else None

    def _whereabouts(self, size: int) -> Whereabouts:
        where = Whereabouts(self._worker_id, os.getpid(), epoch=self.worker.epoch)
        if self._one_sample:
            return replace(where, index=self._index())
        if self._stage is Stage.SAMPLES and self.worker._keys is not None:
            return replace(where, indices=tuple(self.worker._keys))
        return where

    @property
    def _one_sample(self) -> bool:
        """Whether the position stands for one sample alone."""
        return self._stage is Stage.SAMPLE or (self._stage is Stage.SAMPLES and self.worker._one)

    def _note(self, error: BaseException) -> str:
        worker = self.worker
        if self._stage is Stage.START_EPOCH:
            where = "start of an epoch"
        elif self._one_sample and worker._keys is not None:
            where = f"sample with index {self._index()}"
        elif self._one_sample:
            where = f"{worker._unit} number {self._cell[0]} of the epoch"
        else:
            where = "collate of the " if self._stage is Stage.COLLATE else ""
            if worker._keys is not None:
                where += f"{worker._unit}s with the indices {list(worker._keys[:8])}"
                where += ", ..." if len(worker._keys) > 8 else ""
            else:
                where += f"{worker._unit}s from number {worker._first} of the epoch on"
        text = f"In worker {self._worker_id}, epoch {worker.epoch}: {where}."
        if self._layout is not None and isinstance(
            error, ValueError | TypeError | OverflowError | LookupError | Warning
        ):
            specs = [f"{name}={spec}" for name, spec in self._layout.specs.items()]
            text += f" Buffers: {', '.join(specs) or 'none'}."
        return text

    # -- errors --------------------------------------------------------------------------

    def _each(
        self,
        source: Any,
        names: Sequence[Any],
        rows: Sequence[Any],
        work: Callable[[Any, Pending], None],
        undo: Callable[[int, Any], None] | None = None,
    ) -> None:
        """Give all samples to `work`; what becomes of one that fails is for `on_error` to say.

        Parameters
        ----------
        source, names : indexable, sequence
            The samples: ``source[name]``.
        rows : sequence
            What belongs to each of them.
        work : callable
            ``work(source, pending)`` is called again for the samples behind one that fails, and
            for one in place of it.
        undo : callable, optional
            ``undo(done, row)`` takes back what a sample has left that has failed, the first `done`
            ones of all have not.
        """
        positions = iter(range(self.worker._first, self.worker._first + len(names)))
        pending = zip(positions, names, rows, strict=False)
        while True:
            try:
                work(source, pending)
                return
            except Exception as error:  # noqa: BLE001  on_error decides
                row = len(names) - length_hint(positions) - 1
                done = row - len(self._skipped)
                sample = self._settle(error, row)
            if undo is not None:
                undo(done, rows[row])
            if sample is not _SKIP:
                work([sample], [(self.worker._first + row, 0, rows[row])])

    def _settle(self, error: BaseException, row: int) -> Any:
        """What `on_error` says: a sample in place of the one of `row`, or SKIP; else raises."""
        try:
            answer: Any = self._on_error
            if answer == "raise" or not isinstance(error, Exception):
                raise error
            if callable(answer):
                answer = answer(self._index(), error)
                if answer is None:
                    raise error
            if not (isinstance(answer, str) and answer == "skip"):
                self.worker._drawn = -1  # the other sample draws from the beginning
                return answer
            note = "" if isinstance(error, WorkerDied | LoaderTimeout) else self._note(error)
            self._skipped.append((row, describe_failure(error, note)))
            return _SKIP
        finally:
            del error  # or it and this frame, its caller's frames too, would keep each other

    # -- reading -------------------------------------------------------------------------

    def _source(self, keys: Any, row: int = 0, singly: bool = False) -> tuple[Any, Sequence[Any]]:
        """What to index, and by what, to get each sample; `row` is that of the first one.

        Samples are read at once where the dataset can do that, but not if `singly`.
        """
        source, names = self._dataset, range(len(keys))
        if self._kind is Kind.SAMPLES:
            source = keys
        else:
            if self._reads_in_bulk():
                if not singly and not self._careful:
                    return self._read(keys), names
                if self._has_getitems:
                    source = OneByOne(source)
            if self._kind is Kind.KEYS:
                source = Keyed(source, keys)
            else:
                names = keys.tolist()
        if self._lost:
            return Lossy(source, names, self.worker._first + row, self._lost), range(len(keys))
        return source, names

    def _reads_in_bulk(self) -> bool:
        bulk = self._has_getitems or (self._is_array and self._kind is Kind.INDICES)
        return bulk and self._kind is not Kind.SAMPLES and not self._seed_globals

    def _source_of_each(self, keys: Any) -> tuple[Any, Sequence[Any]]:
        """The same, where `on_error` is asked about each sample that cannot be read."""
        try:
            return self._source(keys)
        except Exception:
            if self._on_error == "raise":
                raise
        self._enter(Stage.SAMPLE)
        return self._source(keys, singly=True)

    def _read(self, keys: Any) -> Any:
        """All samples of a chunk in one call."""
        self._enter(Stage.SAMPLES if len(keys) > 1 else Stage.SAMPLE)
        if self._is_array:
            samples = self._dataset[keys]
        else:
            indices = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
            samples = self._dataset.__getitems__(indices)
            if len(samples) != len(indices):
                raise ValueError(
                    f"dataset.__getitems__ returned {len(samples)} samples for {len(indices)} "
                    "indices."
                )
        self._enter(Stage.SAMPLE)
        return samples

    def _samples(self, keys: Any, row: int) -> Any:
        """All samples of a chunk, at once or one after the other."""
        first = self._cell[0] = self.worker._first + row
        source, names = self._source(keys, row)
        if isinstance(names, range) and not is_lazy(source):
            return source
        samples = []
        for position, name in enumerate(names, first):
            self._cell[0] = position
            self._seed_for(position)
            samples.append(source[name])
        return samples

    def _seed_for(self, position: int) -> None:
        if self._seed_globals:
            seeding.seed_globals(self._seed, self.worker.epoch, position)

    # -- writing -------------------------------------------------------------------------

    def _fill(self, part: Part, keys: Any) -> list[Frame]:
        if self._layout is None:
            return self._fill_free_form(part, keys)
        memory, offset, start = self._memory, self._geometry.offset(part.slot), part.start
        if part.slot == NO_SLOT:  # the arrays travel in the message
            memory, offset, start = bytearray(self._layout.stride), 0, 0
        batch: defaultdict[str, list[Any]] = defaultdict(list)
        if self._bulk:
            arrays = self._writer.all_rows(memory, offset, start, part.size)
            self._prepare_bulk(keys, batch, arrays)
        else:
            rows, copy = self._writer.each_row(memory, offset, start, part.size)
            self._prepare_each(keys, batch, rows)
            copy()
        lists: dict[str, Any] = dict(batch)
        for key in self._layout.specs.keys() & lists.keys():
            raise ValueError(f"batch[{key!r}] was appended to, but {key!r} is a buffer.")
        if part.slot == NO_SLOT:
            fields = self._layout.rows_at(memory, 0, 0, part.size)
            if self._skipped:
                rows_left = np.delete(np.arange(part.size), [row for row, _ in self._skipped])
                fields = {name: array[rows_left] for name, array in fields.items()}
            lists |= fields
        return self._encode(lists, None, part, "batch", lambda: _by_sample(batch))

    def _prepare_bulk(
        self, keys: Any, batch: defaultdict[str, list[Any]], arrays: RowBuffers
    ) -> None:
        """Fill rows by prepare_batch; if that fails, one by one to find out whose fault it is.

        One by one with `seed_globals`, too: what is drawn must not depend on the chunk.
        """
        if not self._seed_globals:
            try:
                self._prepare_chunk(0, self._samples(keys, 0), len(keys), batch, arrays)
                return
            except Exception:
                if self._on_error == "raise":
                    raise
            batch.clear()
        chunks = range(len(keys))  # of one sample each

        def prepare(source: Any, pending: Pending) -> None:
            for position, row, buffers in pending:
                self._enter(Stage.SAMPLE)
                self._writer.reset(buffers)
                at = position - self.worker._first
                samples = source if source is not chunks else self._samples(keys[at : at + 1], row)
                lists: defaultdict[str, list[Any]] = defaultdict(list)
                self._prepare_chunk(at, samples, 1, lists, buffers)
                for name, values in lists.items():
                    batch[name] += values

        self._each(chunks, chunks, self._writer.single_rows(arrays, len(keys)), prepare)
        check_lengths(batch, len(keys) - len(self._skipped))

    def _prepare_chunk(
        self,
        row: int,
        samples: Any,
        size: int,
        batch: defaultdict[str, list[Any]],
        arrays: RowBuffers,
    ) -> None:
        worker: Any = self.worker
        position = self._cell[0] = worker._first + row
        worker._one = False
        worker._chunk = (position, size)
        if worker._keys is not None:
            worker.indices = np.array(worker._keys[row : row + size])
        self._enter(Stage.SAMPLES if size > 1 else Stage.SAMPLE)
        self._seed_for(position)
        worker.prepare_batch(samples, batch, arrays)
        check_lengths(batch, size)

    def _prepare_each(
        self, keys: Any, batch: defaultdict[str, list[Any]], rows: Sequence[RowBuffers]
    ) -> None:
        worker: Any = self.worker
        prepare = worker.prepare
        reseed = self._seed_globals
        cell, first = self._cell, worker._first
        skipped = self._skipped
        lists = ListCheck(cell, first)
        check = lists.check

        def prepare_all(source: Any, pending: Pending) -> None:
            # The loop that every sample goes through: attributes are local names, nothing is
            # made that is not used, the generator is positioned only when it is asked for.
            for position, key, buffers in pending:
                cell[0] = position
                if reseed:
                    seeding.seed_globals(self._seed, worker.epoch, position)
                prepare(source[key], batch, buffers)
                if batch:
                    check(batch, position - first - len(skipped))

        def undo(done: int, buffers: RowBuffers) -> None:
            lists.undo(batch, done)
            self._writer.reset(buffers)

        source, names = self._source_of_each(keys)
        worker._one = True
        self._each(source, names, rows, prepare_all, undo)

    def _fill_free_form(self, part: Part, keys: Any) -> list[Frame]:
        worker = self.worker
        results: list[dict[str, Any]] = []

        def process_all(source: Any, pending: Pending) -> None:
            for position, key, _ in pending:
                self._cell[0] = position
                self._seed_for(position)
                result = worker.process(source[key])
                if not isinstance(result, dict):
                    raise TypeError(
                        f"process() must return a dict, it returned a {type(result).__name__}."
                    )
                results.append(result)

        arena = self._arena(part) if part.slot != NO_SLOT else None
        source, names = self._source_of_each(keys)
        worker._one, worker._arena = True, arena
        self._each(source, names, [None] * len(keys), process_all)
        worker._one = False
        if not results:
            return []
        self._cell[0] = part.position
        self._enter(Stage.COLLATE)
        if part.size == part.rows:
            self._seed_for(part.position)
            columns = worker.collate(results)
        else:
            columns = collate(results, stack_part, part.start)
        frames = self._encode(columns, arena, part, "result", lambda: results)
        if arena is not None:
            self._row_bytes = max(self._row_bytes, -(-arena.wanted // part.size))
        return frames

    def _encode(
        self,
        columns: dict[str, Any],
        arena: Arena | None,
        part: Part,
        name: str,
        samples: Callable[[], list[dict[str, Any]]],
    ) -> list[Frame]:
        """As :func:`encode`; an error says which attribute of which sample cannot be pickled."""
        self._cell[0] = part.position
        self._enter(Stage.COLLATE)
        try:
            return encode(columns, arena)
        except Exception as error:
            skipped = {row for row, _ in self._skipped}
            rows = [row for row in range(part.size) if row not in skipped]
            for row, sample in zip(rows, samples(), strict=False):
                path = find_unpicklable(sample, name)
                if path is not None:
                    self._cell[0] = part.position + row
                    self._enter(Stage.SAMPLE)
                    break
            else:
                path = find_unpicklable(columns, "batch")
            if path is None:
                raise
            raise pickling_error(
                f"{path} cannot be sent to the training process ({error}). Return arrays and plain "
                "values, or leave it out in __getstate__.",
                error,
            ) from error

    def _arena(self, part: Part) -> Arena:
        """The part of the slot that belongs to a part of a mini-batch."""
        share = self._share(part.rows)
        return Arena(
            self._memory,
            self._geometry.offset(part.slot),
            share + share * part.start // part.rows,
            share + share * (part.start + part.size) // part.rows,
        )

    def _share(self, rows: int) -> int:
        """Bytes of a slot to divide among the rows of a mini-batch: a power of two.

        Share n lies at n, so that workers of different opinions do not meet; and it is not much
        larger than what is needed, since parts at other places would touch ever more of the slot.
        """
        most = 1 << ((self._geometry.stride // 2).bit_length() - 1)
        if not self._row_bytes:  # nothing is known yet
            return most
        return min(most, 1 << (2 * rows * self._row_bytes - 1).bit_length())


def _by_sample(lists: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """What each sample has appended."""
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]
