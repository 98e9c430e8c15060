"""Which worker gets which samples: the decisions of the broker, without any socket.

Work is measured in time. A mini-batch is cut into chunks only if it takes longer than
:data:`CHUNK_SECONDS`, so slow samples spread over all workers and the first mini-batch
is early; fast mini-batches are grouped, several in one chunk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from .failures import pack_errors
from .protocol import INDEX_BYTES, BatchHead, Item, Kind, Outcome, Part, Segment, Status, Submit

__all__ = ["CHUNK_SECONDS", "Assignment", "MiniBatch", "Piece", "Scheduler"]

CHUNK_SECONDS = 0.01  # of work in one message, at least: overhead below 2 %
_LONG_CHUNK_SECONDS = 0.08  # while there is plenty of work: overhead below 0.3 %
_LOOKAHEAD_SECONDS = 0.02  # a worker gets a second chunk in advance only if it is short
_MEMORY = 0.9  # weight of older chunks in the moving average

Frames: TypeAlias = list[Any]


class MiniBatch:
    """A mini-batch that was asked for and is not finished."""

    __slots__ = (
        "cancelled",
        "epoch",
        "failure",
        "given",
        "kind",
        "missing",
        "number",
        "pass_id",
        "payload",
        "position",
        "rows",
        "segments",
        "slot",
        "worker",
    )

    def __init__(self, submit: Submit, head: BatchHead, payload: Any) -> None:
        self.pass_id = submit.pass_id
        self.epoch = submit.epoch
        self.kind = submit.kind
        self.number, self.slot, self.rows, self.position, self.worker = head
        self.payload = payload  # bytes of the indices, or one frame per sample
        self.given = 0  # rows that were given to workers
        self.missing = self.rows  # rows that are not finished
        self.segments: list[tuple[Segment, Frames]] = []
        self.failure: tuple[int, Frames] | None = None  # (row, pickled exception)
        self.cancelled = False

    def frames(self, start: int, count: int) -> Frames:
        """The part of the payload that belongs to some rows."""
        if self.kind == Kind.INDICES:
            return [self.payload[start * INDEX_BYTES : (start + count) * INDEX_BYTES]]
        return list(self.payload[start : start + count])

    def drop_rest(self) -> None:
        """Do not give out the rows that no worker has got yet."""
        self.missing -= self.rows - self.given
        self.given = self.rows

    def item(self) -> tuple[Item, Frames]:
        """The message for the consumer."""
        status, segments, frames = Status.DONE, [], []
        if self.cancelled:
            status = Status.CANCELLED
        elif self.failure is not None:
            status, frames = Status.FAILED, self.failure[1]
        else:
            self.segments.sort(key=lambda pair: pair[0].start)
            for segment, segment_frames in self.segments:
                segments.append(segment)
                frames.extend(segment_frames)
        return Item(self.pass_id, self.number, self.slot, self.rows, status, segments), frames


class Piece(NamedTuple):
    """Rows of one mini-batch, in the hands of a worker."""

    batch: MiniBatch
    start: int
    size: int
    lost: tuple[tuple[int, bytes], ...] = ()  # positions that ended a worker, described exceptions
    careful: bool = False  # whether to read one by one: a sample among them ends its worker

    def holds(self, position: int) -> bool:
        """Whether a sample of the epoch is among them."""
        return 0 <= position - self.batch.position - self.start < self.size

    @property
    def indices(self) -> tuple[int, ...]:
        """Their dataset indices; samples of an iterable are counted; keys are no indices."""
        batch, start = self.batch, self.start
        if batch.kind == Kind.INDICES:
            (frame,) = batch.frames(start, self.size)
            return tuple(memoryview(frame).cast("B").cast("q"))
        if batch.kind == Kind.SAMPLES:
            return tuple(range(batch.position + start, batch.position + start + self.size))
        return ()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Their keys, pickled, where these are no indices."""
        batch = self.batch
        return tuple(batch.frames(self.start, self.size)) if batch.kind == Kind.KEYS else ()


class Assignment(NamedTuple):
    """A chunk that is given to a worker."""

    chunk_id: int
    worker: int
    pieces: list[Piece]

    @property
    def parts(self) -> list[Part]:
        """What the worker has to know."""
        return [
            Part(batch.slot, batch.rows, start, size, batch.position + start)
            for batch, start, size, *_ in self.pieces
        ]

    @property
    def careful(self) -> bool:
        """Whether a frame behind the others tells of samples that end their worker."""
        return self.pieces[0].careful  # such a piece travels alone

    @property
    def frames(self) -> Frames:
        """The indices, keys or samples."""
        cuts = [batch.frames(start, size) for batch, start, size, *_ in self.pieces]
        lost = [pack_errors(self.pieces[0].lost)] if self.careful else []
        if self.pieces[0].batch.kind == Kind.INDICES:
            return [b"".join([cut[0] for cut in cuts]), *lost]
        return [*(frame for cut in cuts for frame in cut), *lost]


class Scheduler:
    """Cuts and groups mini-batches into chunks and follows each of them.

    Parameters
    ----------
    nworkers : int
        Workers that will ask for work.
    splittable : bool
        Whether several workers may make one mini-batch.
    one_epoch : bool
        Whether work of an epoch waits until nothing of another one is under way.
    """

    def __init__(self, nworkers: int, splittable: bool, one_epoch: bool = False) -> None:
        self._nworkers = nworkers
        self._splittable = splittable
        self._one_epoch = one_epoch
        self._pending: deque[MiniBatch] = deque()  # with rows to give out, in order
        self._pinned: dict[int, deque[MiniBatch]] = {}  # those that only one worker may make
        self._streams: dict[tuple[int, int], Frames] = {}  # (pass, worker) that has begun: its end
        self._ended: dict[int, Frames] = {}  # passes that have failed
        self._again: deque[Piece] = deque()  # rows of workers that died: they go first
        self._unfinished: dict[tuple[int, int], MiniBatch] = {}
        self._assignments: dict[int, Assignment] = {}
        self._load: dict[int, set[int]] = {}  # chunks of each worker
        self._idle: dict[int, None] = {}  # workers without a chunk, in the order they asked
        self._spare: dict[int, None] = {}  # workers with one chunk
        self._chunks = 0
        self._seconds = 0.0
        self._samples = 0.0
        self.chunk_samples = 0
        self._finished: list[MiniBatch] = []

    @property
    def seconds_per_sample(self) -> float:
        """Moving average; 0 before anything was measured."""
        return self._seconds / self._samples if self._samples else 0.0

    # -- what comes in -------------------------------------------------------------------

    def submit(self, submit: Submit, frames: Frames) -> None:
        """Add mini-batches that the producer wants."""
        first = 0
        indices = memoryview(frames[0]) if submit.kind == Kind.INDICES else None
        for head in submit.batches:
            stop = first + head.rows
            if indices is not None:
                payload: Any = indices[first * INDEX_BYTES : stop * INDEX_BYTES]
            else:
                payload = frames[first:stop]
            first = stop
            batch = MiniBatch(submit, head, payload)
            self._unfinished[batch.pass_id, batch.number] = batch
            if batch.worker < 0:
                self._pending.append(batch)
            else:
                self._pinned.setdefault(batch.worker, deque()).append(batch)
            self._fail_if_ended(batch)

    def cancel(self, pass_id: int) -> None:
        """Drop a pass: rows that no worker has are not given out any more."""
        for batch in [b for b in self._unfinished.values() if b.pass_id == pass_id]:
            batch.cancelled = True
            batch.drop_rest()
            self._again = deque(piece for piece in self._again if not self._drop(piece, batch))
            self._finish_if_complete(batch)
        self._streams = {key: end for key, end in self._streams.items() if key[0] != pass_id}
        self._ended.pop(pass_id, None)

    @staticmethod
    def _drop(piece: Piece, batch: MiniBatch) -> bool:
        if piece.batch is not batch:
            return False
        batch.missing -= piece.size
        return True

    def add_worker(self, worker: int) -> None:
        """A worker asks for work."""
        self._load[worker] = set()
        self._idle[worker] = None

    def remove_worker(self, worker: int) -> list[Piece]:
        """A worker is gone; returns the rows it had, which nobody else will write now."""
        self._idle.pop(worker, None)
        self._spare.pop(worker, None)
        chunk_ids = self._load.pop(worker, set())
        return [piece for cid in sorted(chunk_ids) for piece in self._assignments.pop(cid).pieces]

    def singly(self, piece: Piece) -> list[Piece]:
        """The same rows one by one, or at least read one by one."""
        if not self._splittable or piece.lost:
            return [piece._replace(careful=True)]
        return [Piece(piece.batch, piece.start + row, 1) for row in range(piece.size)]

    def give_again(self, pieces: Sequence[Piece]) -> None:
        """Give rows of a dead worker to others, before anything else, the oldest ones first.

        Were they behind younger ones, a sample among those might be in the way of what is awaited.
        """
        for piece in pieces:
            if piece.batch.cancelled or piece.batch.failure is not None:
                piece.batch.missing -= piece.size
                self._finish_if_complete(piece.batch)
            elif piece.batch.worker >= 0:
                self.fail_lost([piece], self._streams[piece.batch.pass_id, piece.batch.worker])
            else:
                self._again.append(piece)
        order = lambda piece: (piece.batch.pass_id, piece.batch.number, piece.start)  # noqa: E731
        self._again = deque(sorted(self._again, key=order))

    def has_streams(self, worker: int) -> bool:
        """Whether a worker has begun a stream that has not ended."""
        return any(key[1] == worker and not end for key, end in self._streams.items())

    def end_streams(self, worker: int, frames: Frames) -> None:
        """A worker is gone, and with it its place in its streams: what is left of them fails."""
        for key in self._streams:
            if key[1] == worker and not self._streams[key]:
                self._streams[key] = frames
        for batch in self._pinned.get(worker, ()):
            self._fail_if_ended(batch)

    def end_pass(self, pass_id: int, frames: Frames) -> None:
        """What is not finished of a pass fails, also what is asked for from now on."""
        self._ended.setdefault(pass_id, frames)
        for batch in [b for b in self._unfinished.values() if b.pass_id == pass_id]:
            self._fail_if_ended(batch)

    def _fail_if_ended(self, batch: MiniBatch) -> None:
        """Let a mini-batch fail whose pass has ended, or the stream that it belongs to."""
        end = self._ended.get(batch.pass_id)
        if end is None and batch.given < batch.rows:
            end = self._streams.get((batch.pass_id, batch.worker))
        if end:
            self.fail(Piece(batch, 0, batch.rows), end)
            self._finish_if_complete(batch)

    def done(
        self,
        chunk_id: int,
        seconds: float,
        outcomes: Sequence[Outcome],
        frames: Frames,
    ) -> bool:
        """A worker answers; False if the chunk is not its business (any more)."""
        assignment = self._assignments.pop(chunk_id, None)
        if assignment is None:
            return False
        self._release(assignment.worker, chunk_id)
        first = 0
        samples = 0
        for piece, outcome in zip(assignment.pieces, outcomes, strict=True):
            status, nframes, index, skipped = outcome
            mine = frames[first : first + nframes]
            first += nframes
            samples += piece.size
            if status == Status.FAILED:
                self.fail(piece, mine)
            else:
                segment = Segment(piece.start, piece.size, nframes, index, skipped)
                piece.batch.segments.append((segment, mine))
            piece.batch.missing -= piece.size
            self._finish_if_complete(piece.batch)
        self._seconds = _MEMORY * self._seconds + seconds
        self._samples = _MEMORY * self._samples + samples
        return True

    def fail(self, piece: Piece, frames: Frames) -> None:
        """Rows could not be made: the mini-batch fails with its first failing rows' error."""
        batch = piece.batch
        if batch.failure is None or piece.start < batch.failure[0]:
            batch.failure = (piece.start, frames)
        batch.drop_rest()
        if self._again:
            self._again = deque(other for other in self._again if not self._drop(other, batch))

    def fail_lost(self, pieces: Sequence[Piece], frames: Frames) -> None:
        """Rows of a dead worker fail."""
        for piece in pieces:
            self.fail(piece, frames)
            piece.batch.missing -= piece.size
            self._finish_if_complete(piece.batch)

    def chunk_of(self, worker: int) -> int | None:
        """The chunk that a worker got first of those it has."""
        return min(self._load.get(worker, ()), default=None)

    def blocking(self, pass_id: int, number: int) -> set[int]:
        """Workers that a mini-batch has to wait for; number -1: the oldest of the pass.

        Those that hold rows of it; if some of its rows are with nobody, all that hold any. If none
        is wanted of it, those that hold rows which nobody wants: their slots may be what lacks.
        """
        wanted = [
            batch
            for batch in self._unfinished.values()
            if batch.pass_id == pass_id and number in (-1, batch.number)
        ]
        holders = [
            (assignment.worker, piece.batch)
            for assignment in self._assignments.values()
            for piece in assignment.pieces
        ]
        if not wanted:
            return {worker for worker, batch in holders if batch.cancelled}
        oldest = min(wanted, key=lambda batch: batch.number)
        if oldest.worker >= 0:
            return {oldest.worker}
        left = oldest.given < oldest.rows or any(piece.batch is oldest for piece in self._again)
        return {worker for worker, batch in holders if left or batch is oldest}

    def _finish_if_complete(self, batch: MiniBatch) -> None:
        key = (batch.pass_id, batch.number)
        if batch.missing == 0 and key in self._unfinished:
            del self._unfinished[key]
            self._finished.append(batch)

    def _release(self, worker: int, chunk_id: int) -> None:
        load = self._load[worker]
        load.discard(chunk_id)
        if load:
            self._spare[worker] = None
        else:
            self._spare.pop(worker, None)
            self._idle[worker] = None

    # -- what goes out -------------------------------------------------------------------

    def finished(self) -> list[MiniBatch]:
        """Mini-batches that were finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def assignments(self) -> Iterator[Assignment]:
        """Chunks to give out now."""
        while found := self._next_cut():
            worker, pieces = found
            self._chunks += 1
            assignment = Assignment(self._chunks, worker, pieces)
            self._assignments[self._chunks] = assignment
            self._load[worker].add(self._chunks)
            if worker in self._idle:
                del self._idle[worker]
                self._spare[worker] = None
            else:
                del self._spare[worker]
            self.chunk_samples = sum(piece.size for piece in pieces)
            yield assignment

    def _next_cut(self) -> tuple[int, list[Piece]] | None:
        """A worker that should get a chunk now, and the rows of it."""
        pace = self.seconds_per_sample
        asking = [self._idle]
        if pace and pace < _LOOKAHEAD_SECONDS:
            asking.append(self._spare)
        for worker in chain(*asking):
            pieces = self._cut_pinned(worker) or self._cut()
            if pieces:
                return worker, pieces
            if not self._pinned:  # then there is nothing for the others either
                return None
        return None

    def _cut_pinned(self, worker: int) -> list[Piece]:
        """The next mini-batch that only this worker may make."""
        pinned = self._pinned.get(worker)
        while pinned:
            batch = pinned.popleft()
            if not pinned:
                del self._pinned[worker]
            if batch.given < batch.rows:
                batch.given = batch.rows
                self._streams.setdefault((batch.pass_id, worker), [])
                return [Piece(batch, 0, batch.rows)]
        return []

    def _cut(self) -> list[Piece]:
        """Rows for one worker."""
        if self._again:
            return [self._again.popleft()]
        pending = self._pending
        while pending and pending[0].given == pending[0].rows:  # cancelled or failed meanwhile
            pending.popleft()
        if not pending:
            return []
        head = pending[0]
        if self._one_epoch and self._other_epoch_under_way(head.epoch):
            return []
        pace = self.seconds_per_sample
        wanted = _LONG_CHUNK_SECONDS / pace if pace else math.inf
        piece = Piece(head, head.given, self._rows_to_give(head, pace))
        head.given += piece.size
        pieces = [piece]
        if not pace:
            return pieces
        most = -(-len(self._unfinished) // (2 * self._nworkers))
        samples = piece.size
        while len(pieces) < most and head.given == head.rows and len(pending) > 1:
            pending.popleft()
            batch = pending[0]
            rows = batch.rows - batch.given
            same = (batch.epoch, batch.kind) == (head.epoch, head.kind)
            if not same or samples + rows > wanted or not rows:
                break
            head = batch
            pieces.append(Piece(head, head.given, rows))
            head.given += rows
            samples += rows
        return pieces

    def _other_epoch_under_way(self, epoch: int) -> bool:
        assignment = next(iter(self._assignments.values()), None)
        return assignment is not None and assignment.pieces[0].batch.epoch != epoch

    def _rows_to_give(self, batch: MiniBatch, pace: float) -> int:
        rest = batch.rows - batch.given
        if not self._splittable:
            return rest
        if not pace:  # the first mini-batch is as early as all workers together can make it
            return min(rest, -(-batch.rows // self._nworkers))
        if batch.number == 0:  # so it is in each pass, whichever workers are there or free
            return min(rest, max(math.ceil(CHUNK_SECONDS / pace), -(-rest // self._nworkers)))
        # Two chunks for each worker, as far as that makes them neither too short nor too long.
        share = len(self._unfinished) * batch.rows / (2 * self._nworkers) * pace
        seconds = min(max(share, CHUNK_SECONDS), _LONG_CHUNK_SECONDS)
        chunks = max(1, round(rest * pace / seconds))
        return -(-rest // chunks)
