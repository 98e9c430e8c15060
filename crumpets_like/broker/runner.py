"""What a worker does with its work: from indices or samples to rows.

One :class:`Runner` belongs to one copy of the worker, wherever it runs: in a process,
in a thread, or in the caller's thread (``nworkers=0``).
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arguments import OnError
from ..errors import Whereabouts
from .buffers import SlotLayout
from .encoding import Arena, Frame, Shares, collate, encode, stack_part
from .failures import add_note, describe_failure, pack_errors
from .lists import ListCheck, check_lengths
from .pickling import find_unpicklable, pickling_error
from .protocol import Kind, Outcome, Part, Status
from .reading import Reader
from .rows import RowBuffers, RowWriter
from .segment import NO_SLOT, RingGeometry, Stage, StatusPage
from .settling import Pending, Settling
from .standing import Standing
from .worker import BufferWorker, Worker, overrides

__all__ = ["Runner"]

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
    worker_id : int
        Number of the worker, 0-based.
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
        self._may_exit = may_exit
        self._guard = guard or (lambda: _NO_GUARD)
        self._epoch: int | None = None
        self.where: Whereabouts | None = None  # of the latest error
        self._shares = Shares(memory, geometry)
        self._layout: SlotLayout | None = None
        if isinstance(worker, BufferWorker):
            self._layout = SlotLayout(worker.buffer_specs, rows)
            self._writer = RowWriter(self._layout)
            self._bulk = overrides(worker, "prepare_batch")
        page = StatusPage(memory, max(1, geometry.nworkers))
        specs = self._layout.specs if self._layout else None
        self._standing = Standing(worker, page, worker_id, seed, seed_globals, specs)
        self._settling = Settling(on_error, self._standing)
        self._reader = Reader(self._standing, dataset)

    def use_dataset(self, dataset: Any) -> None:
        """From now on indices refer to this dataset."""
        self._reader.use_dataset(dataset)
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
            self._standing.release()

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
            described = describe_failure(error, where=self.where)
            return Outcome(Status.FAILED, 1, first_index, 0), [described]
        return Outcome(Status.DONE, len(frames), first_index, skipped), frames

    def fill_part(
        self, part: Part, epoch: int, kind: Kind, keys: Any, lost: bytes = b""
    ) -> tuple[list[Frame], int]:
        """As :meth:`run_part`, but raises; a note on the error says where it happened.

        Returns the frames, and how many rows were skipped.
        """
        started = time.perf_counter()
        standing = self._standing
        self._reader.begin(lost)
        standing.begin(part, kind, keys)
        skipped = self._settling.begin()
        try:
            with self._guard():
                if epoch != self._epoch:
                    self._start_epoch(epoch)
                standing.enter(Stage.SAMPLE)
                frames = self._fill(part, keys)
        except BaseException as error:
            if isinstance(error, SystemExit) and self._may_exit:
                raise  # the position stays in the status page: it tells whose fault it is
            add_note(error, standing.note(error))
            self.where = standing.whereabouts()
            standing.end(time.perf_counter() - started)
            raise
        standing.end(time.perf_counter() - started)
        if skipped:
            frames.append(pack_errors(list(skipped.items())))
        return frames, len(skipped)

    def _tell_dataset(self, epoch: int) -> None:
        if callable(set_epoch := getattr(self._reader.dataset, "set_epoch", None)):
            set_epoch(epoch)

    def _start_epoch(self, epoch: int) -> None:
        self._standing.enter(Stage.START_EPOCH)
        self._tell_dataset(epoch)
        self._standing.current.epoch = epoch
        self.worker.start_epoch(epoch)
        self._epoch = epoch

    def _source_of_each(self, keys: Any) -> tuple[Any, Sequence[Any]]:
        """Where to get each sample; `on_error` is asked about each one that cannot be read."""
        try:
            return self._reader.source(keys)
        except Exception:
            if self._settling.raises:
                raise
        self._standing.enter(Stage.SAMPLE)
        return self._reader.source(keys, singly=True)

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
            if skipped := self._settling.skipped:
                rows_left = np.delete(np.arange(part.size), list(skipped))
                fields = {name: array[rows_left] for name, array in fields.items()}
            lists |= fields
        return self._encode(lists, None, part)

    def _prepare_bulk(
        self, keys: Any, batch: defaultdict[str, list[Any]], arrays: RowBuffers
    ) -> None:
        """Fill rows by prepare_batch; if that fails, one by one to find out whose fault it is.

        One by one with `seed_globals`, too: what is drawn must not depend on the chunk.
        """
        if not self._standing.reseeds:
            try:
                samples = self._reader.samples(keys, 0)
                self._prepare_chunk(0, samples, len(keys), batch, arrays)
                return
            except Exception:
                if self._settling.raises:
                    raise
            batch.clear()
        chunks = range(len(keys))  # of one sample each

        def prepare(source: Any, pending: Pending) -> None:
            for position, _, buffers in pending:
                self._writer.reset(buffers)
                row = position - self._standing.first
                self._standing.seed(position)  # once: reading and prepare_batch go on with it
                samples = source  # in place of others
                if source is chunks:
                    samples = self._reader.samples(keys[row : row + 1], row)
                lists: defaultdict[str, list[Any]] = defaultdict(list)
                self._prepare_chunk(row, samples, 1, lists, buffers)
                for name, values in lists.items():
                    batch[name] += values

        self._settling.each(chunks, chunks, self._writer.single_rows(arrays, len(keys)), prepare)
        check_lengths(batch, len(keys) - len(self._settling.skipped))

    def _prepare_chunk(
        self,
        row: int,
        samples: Any,
        size: int,
        batch: defaultdict[str, list[Any]],
        arrays: RowBuffers,
    ) -> None:
        worker: Any = self.worker
        current = self._standing.current
        position = current.first + row
        current.one = False
        current.chunk, current.rngs = (position, size), None
        if self._standing.kind is Kind.INDICES:
            current.indices = np.array(self._standing.keys[row : row + size])
        self._standing.enter(Stage.SAMPLES if size > 1 else Stage.SAMPLE, position)
        worker.prepare_batch(samples, batch, arrays)
        check_lengths(batch, size)

    def _prepare_each(
        self, keys: Any, batch: defaultdict[str, list[Any]], rows: Sequence[RowBuffers]
    ) -> None:
        worker: Any = self.worker
        prepare = worker.prepare
        reseed = self._standing.reseeds
        cell, first = self._standing.cell, self._standing.first
        skipped = self._settling.skipped
        lists = ListCheck(cell, first)
        check = lists.check

        def prepare_all(source: Any, pending: Pending) -> None:
            # The loop that every sample goes through: attributes are local names, nothing is
            # made that is not used, the generator is positioned only when it is asked for.
            for position, key, buffers in pending:
                cell[0] = position
                if reseed:
                    self._standing.seed(position)
                prepare(source[key], batch, buffers)
                if batch:
                    check(batch, position - first - len(skipped))

        def undo(done: int, buffers: RowBuffers) -> None:
            lists.undo(batch, done)
            self._writer.reset(buffers)

        source, names = self._source_of_each(keys)
        self._standing.current.one = True
        self._settling.each(source, names, rows, prepare_all, undo)

    def _fill_free_form(self, part: Part, keys: Any) -> list[Frame]:
        worker = self.worker
        process, cell, reseed = worker.process, self._standing.cell, self._standing.reseeds
        results: list[dict[str, Any]] = []

        def process_all(source: Any, pending: Pending) -> None:
            for position, key, _ in pending:
                cell[0] = position
                if reseed:
                    self._standing.seed(position)
                result = process(source[key])
                if not isinstance(result, dict):
                    raise TypeError(
                        f"process() must return a dict, it returned {type(result).__name__}."
                    )
                results.append(result)

        arena = None
        if part.slot != NO_SLOT:
            arena = self._shares.arena(part.slot, part.rows, part.start, part.size)
        source, names = self._source_of_each(keys)
        current = self._standing.current
        current.one, current.arena = True, arena
        self._settling.each(source, names, [None] * len(keys), process_all)
        current.one = False
        if not results:
            return []
        self._standing.enter(Stage.COLLATE, part.position)
        if part.size == part.rows:
            self._standing.seed(part.position, "collate")
            columns = worker.collate(results)
        else:
            columns = collate(results, stack_part, part.start)
        frames = self._encode(columns, arena, part, results)
        if arena is not None:
            self._shares.note(arena, part.size)
        return frames

    def _encode(
        self,
        columns: dict[str, Any],
        arena: Arena | None,
        part: Part,
        results: list[dict[str, Any]] | None = None,
    ) -> list[Frame]:
        """As :func:`encode`; an error says what of which sample cannot be pickled.

        Each sample has a result of its own, or one value in each column.
        """
        if not columns:
            return []
        self._standing.enter(Stage.COLLATE, part.position)
        try:
            return encode(columns, arena)
        except Exception as error:
            name = "result"
            if results is None:
                values = zip(*columns.values(), strict=False)
                name, results = "batch", [dict(zip(columns, v, strict=True)) for v in values]
            rows = (row for row in range(part.size) if row not in self._settling.skipped)
            for row, result in zip(rows, results, strict=False):
                if path := find_unpicklable(result, name, _dump):
                    self._standing.enter(Stage.SAMPLE, part.position + row)
                    break
            else:
                path = find_unpicklable(columns, "batch", _dump)
            if path is None:
                raise
            what = "cannot be sent to the training process"
            knob = "Return arrays and plain values, or leave it out in __getstate__."
            raise pickling_error(f"{path} {what} ({error}). {knob}", error) from error


def _dump(value: Any) -> Any:
    return encode({"": value}, None)
