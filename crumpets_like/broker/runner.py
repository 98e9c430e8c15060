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
from itertools import count
from typing import Any

import numpy as np

from .. import seeding
from ..arguments import OnError
from ..errors import LoaderTimeout, Whereabouts, WorkerDied
from .buffers import SlotLayout
from .careful import Lossy, OneByOne
from .encoding import Arena, Frame, collate, encode, stack_part
from .failures import add_note, describe_failure, pack_errors, unpack_errors
from .lists import ListCheck, check_lengths
from .protocol import Kind, Outcome, Part, Status
from .rows import RowBuffers, RowWriter
from .segment import NO_SLOT, RingGeometry, StatusPage
from .worker import BufferWorker, Worker, overrides

__all__ = ["Runner"]

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

    Attributes
    ----------
    bulk : bool
        Whether several samples are read or prepared at once.
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
        self.bulk = self._bulk_read
        self._buffer_worker = worker if isinstance(worker, BufferWorker) else None
        self._layout: SlotLayout | None = None
        if self._buffer_worker is not None:
            self._layout = SlotLayout(self._buffer_worker.buffer_specs, rows)
            self._writer = RowWriter(self._layout)
            self._bulk = overrides(worker, "prepare_batch")
            self.bulk |= self._bulk
        self._page = StatusPage(memory, max(1, geometry.nworkers))
        self._cell = worker._cell = self._page.cell(worker_id)
        worker.worker_id = worker_id
        worker._seed = seed

    def use_dataset(self, dataset: Any) -> None:
        """From now on indices refer to this dataset."""
        self._dataset = dataset
        self._getitems: Any = getattr(dataset, "__getitems__", None)
        self._is_array = isinstance(dataset, np.ndarray)
        self._bulk_read = (self._is_array or callable(self._getitems)) and not self._seed_globals
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
        self._skipped: list[tuple[int, bytes]] = []
        self._careful = bool(lost)
        self._lost = dict(unpack_errors(lost)) if lost else {}
        try:
            with self._guard():
                if epoch != self._epoch:
                    self._start_epoch(epoch)
                frames = self._fill(part, kind, keys)
        except BaseException as error:
            if isinstance(error, SystemExit) and self._may_exit:
                raise  # the position stays in the status page: it tells whose fault it is
            add_note(error, self._note(error))
            self._where = Whereabouts(self._worker_id, os.getpid(), self._index(), epoch)
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
        self._tell_dataset(epoch)
        self.worker.epoch = epoch
        self.worker.start_epoch(epoch)
        self._epoch = epoch

    def _note(self, error: BaseException) -> str:
        worker = self.worker
        if worker.index >= 0:
            where = f"sample with index {worker.index}"
        elif worker._one:
            where = f"{worker._unit} number {self._cell[0]} of the epoch"
        elif worker._keys is not None:
            where = f"samples with the indices {list(worker._keys[:8])}"
            where += ", ..." if len(worker._keys) > 8 else ""
        else:
            where = "start of an epoch"
        text = f"In worker {self._worker_id}, epoch {worker.epoch}: {where}."
        if self._layout is not None and isinstance(
            error, ValueError | TypeError | OverflowError | LookupError | Warning
        ):
            specs = [f"{name}={spec}" for name, spec in self._layout.specs.items()]
            text += f" Buffers: {', '.join(specs) or 'none'}."
        return text

    # -- errors --------------------------------------------------------------------------

    def _settle(self, error: BaseException, row: int, index: int | None) -> Any:
        """What `on_error` says: a sample in place of the one of `row`, or SKIP; else raises."""
        try:
            answer: Any = self._on_error
            if answer == "raise" or not isinstance(error, Exception):
                raise error
            if callable(answer):
                answer = answer(index, error)
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

    def _source(self, kind: Kind, keys: Any, given: Any = None) -> tuple[Any, Sequence[Any]]:
        """What to index, and by what, to get each sample; `given` stands for the samples."""
        plain = keys.tolist() if isinstance(keys, np.ndarray) else keys
        if kind is Kind.INDICES:
            self.worker._keys = plain
        if given is not None or kind is Kind.SAMPLES:
            source, names = (keys if given is None else given), range(len(keys))
        elif self._reads_in_bulk(kind) and self._careful:  # one of them may end this process, too
            source, names = OneByOne(self._getitems, self._dataset), plain
        elif self._reads_in_bulk(kind):
            try:
                source, names = self._read(keys), range(len(keys))
            except Exception:
                if self._on_error == "raise":
                    raise
                source, names = OneByOne(self._getitems, self._dataset), plain
        else:
            source, names = self._dataset, plain
        if self._lost and given is None:
            return Lossy(source, names, self.worker._first, self._lost), range(len(keys))
        return source, names

    def _reads_in_bulk(self, kind: Kind) -> bool:
        return self._bulk_read and (kind is Kind.INDICES or not self._is_array)

    def _read(self, keys: Any) -> Any:
        """All samples of a chunk in one call."""
        if self._is_array:
            return self._dataset[keys]
        indices = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
        samples = self._getitems(indices)
        if len(samples) != len(indices):
            raise ValueError(
                f"dataset.__getitems__ returned {len(samples)} samples for {len(indices)} indices."
            )
        return samples

    def _read_each(self, source: Any, keys: Sequence[Any]) -> list[Any]:
        """All samples of a chunk, one after the other."""
        samples = []
        for position, key in enumerate(keys, self.worker._first):
            self._cell[0] = position
            if self._seed_globals:
                seeding.seed_globals(self._seed, self.worker.epoch, position)
            samples.append(source[key])
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
            self._prepare_bulk(part.position, kind, keys, batch, arrays)
        else:
            rows, copy = self._writer.each_row(memory, offset, start, part.size)
            self._prepare_each(*self._source(kind, keys), batch, rows)
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
        return encode(lists, None)

    def _prepare_bulk(
        self,
        first: int,
        kind: Kind,
        keys: Any,
        batch: defaultdict[str, list[Any]],
        arrays: RowBuffers,
    ) -> None:
        """Fill rows by prepare_batch; if that fails, one by one to find out whose fault it is.

        One by one with `seed_globals`, too: what is drawn must not depend on the chunk.
        """
        if not self._seed_globals:
            try:
                self._prepare_chunk(first, kind, keys, batch, arrays)
                return
            except Exception:
                if self._on_error == "raise":
                    raise
            batch.clear()
        for row in range(len(keys)):
            key = keys[row : row + 1]
            lists: defaultdict[str, list[Any]] = defaultdict(list)
            rows = self._writer.some_rows(arrays, row, row + 1)
            try:
                self._prepare_chunk(first + row, kind, key, lists, rows)
            except Exception as error:  # noqa: BLE001  on_error decides
                sample = self._settle(error, row, int(key[0]) if kind is Kind.INDICES else None)
                if sample is _SKIP:
                    continue
                lists.clear()
                self._writer.reset(rows)
                self._prepare_chunk(first + row, kind, key, lists, rows, [sample])
            for name, values in lists.items():
                batch[name] += values
        check_lengths(batch, len(keys) - len(self._skipped))

    def _prepare_chunk(
        self,
        first: int,
        kind: Kind,
        keys: Any,
        batch: defaultdict[str, list[Any]],
        arrays: RowBuffers,
        given: list[Any] | None = None,
    ) -> None:
        worker: Any = self.worker
        worker._first, worker._one = first, False
        worker._chunk = (first, len(keys))
        if kind is Kind.INDICES:
            worker.indices = np.array(keys)
        source, names = self._source(kind, keys, given)
        if isinstance(names, range) and not isinstance(source, Lossy):
            samples = source  # all of them are there already
        else:
            samples = self._read_each(source, names)
        self._cell[0] = first
        if self._seed_globals:
            seeding.seed_globals(self._seed, worker.epoch, first)
        worker.prepare_batch(samples, batch, arrays)
        check_lengths(batch, len(keys))

    def _prepare_each(
        self,
        source: Any,
        keys: Sequence[Any],
        batch: defaultdict[str, list[Any]],
        rows: Iterable[RowBuffers],
    ) -> None:
        worker: Any = self.worker
        prepare = worker.prepare
        reseed = self._seed_globals
        cell, first = self._cell, worker._first
        skipped = self._skipped
        lists = ListCheck(cell, first)
        check = lists.check
        worker._one = True
        pending = zip(count(first), keys, rows, strict=False)
        while True:
            try:
                # The loop that every sample goes through: attributes are local names, nothing is
                # made that is not used, the generator is positioned only when it is asked for.
                for position, key, buffers in pending:
                    cell[0] = position
                    if reseed:
                        seeding.seed_globals(self._seed, worker.epoch, position)
                    prepare(source[key], batch, buffers)
                    if batch:
                        check(batch, position - first - len(skipped))
                return
            except Exception as error:  # noqa: BLE001  on_error decides
                row = position - first
                sample = self._settle(error, row, self._index())
            done = row - sum(1 for other, _ in skipped if other != row)
            lists.undo(batch, done)
            if sample is not _SKIP:
                self._writer.reset(buffers)
                if reseed:
                    seeding.seed_globals(self._seed, worker.epoch, position)
                prepare(sample, batch, buffers)
                if batch:
                    check(batch, done)

    def _index(self) -> int | None:
        index = self.worker.index
        return index if index >= 0 else None

    def _fill_free_form(self, part: Part, kind: Kind, keys: Any) -> list[Frame]:
        worker = self.worker
        source, plain = self._source(kind, keys)
        arena = None
        if part.slot != NO_SLOT:
            share = self._share(part.rows)
            arena = Arena(
                self._memory,
                self._geometry.offset(part.slot),
                share + share * part.start // part.rows,
                share + share * (part.start + part.size) // part.rows,
            )
        worker._arena = arena
        results = []
        worker._one = True
        for row, key in enumerate(plain):
            self._cell[0] = part.position + row
            try:
                result = self._process(source, key)
            except Exception as error:  # noqa: BLE001  on_error decides
                sample = self._settle(error, row, self._index())
                if sample is _SKIP:
                    continue
                result = self._process([sample], 0)
            results.append(result)
        worker._one = False
        if not results:
            return []
        if part.size == part.rows:
            if self._seed_globals:
                seeding.seed_globals(self._seed, worker.epoch, part.position)
            frames = encode(worker.collate(results), arena)
        else:
            frames = encode(collate(results, stack_part, part.start), arena)
        if arena is not None:
            self._row_bytes = max(self._row_bytes, -(-arena.wanted // part.size))
        return frames

    def _share(self, rows: int) -> int:
        """Bytes of a slot to divide among the rows of a mini-batch: a power of two.

        Share n lies at n, so that workers of different opinions do not meet; and it is not much
        larger than what is needed, since parts at other places would touch ever more of the slot.
        """
        most = 1 << ((self._geometry.stride // 2).bit_length() - 1)
        if not self._row_bytes:  # nothing is known yet
            return most
        return min(most, 1 << (2 * rows * self._row_bytes - 1).bit_length())

    def _process(self, source: Any, key: Any) -> dict[str, Any]:
        if self._seed_globals:
            seeding.seed_globals(self._seed, self.worker.epoch, self._cell[0])
        result = self.worker.process(source[key])
        if not isinstance(result, dict):
            raise TypeError(f"process() must return a dict, it returned a {type(result).__name__}.")
        return result
