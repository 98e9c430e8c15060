"""Every message on every socket: its name, its fields and its way.

A message is a multipart of frames. The first frame is one byte, the message's number,
and the msgpack list of its fields; more frames follow where the fields say so, and
pass through the broker untouched. Indices travel as raw native int64, since the broker
only cuts them (0.1 microseconds a cut; 5 as a decoded array). Values that workers return use
:mod:`crumpets_like.broker.encoding`.

What is received begins with the loader's secret token, has the declared types and the right number
of frames, or is refused: a stray message must neither end a process that others depend on nor be
taken for one of ours.

========================  =====================  =========================================
message                   way                    frames behind it
========================  =====================  =========================================
Submit                    Producer -> Broker     one of int64 indices, or one per sample
Cancel, Waiting, Stop     Producer -> Broker     -
NewDataset                Producer -> Broker     where its snapshot lies
NewDataset                Broker -> Worker       the same
Ready                     Worker -> Broker       -
Chunk                     Broker -> Worker       as Submit; one more if `lost`
Stop                      Broker -> Worker       -
Done                      Worker -> Broker       as its parts say
Failure                   Worker -> Broker       one pickled exception, which is passed on
Results                   Broker -> Consumer     as its items say (result stream)
WorkersUp                 Broker -> Consumer     - (control stream)
Record                    any -> Consumer        one pickled log record (control stream)
Failure                   any -> Consumer        one pickled exception (control stream)
========================  =====================  =========================================
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgpack

__all__ = [
    "INDEX_BYTES",
    "BatchHead",
    "Cancel",
    "Chunk",
    "Done",
    "Failure",
    "Item",
    "Kind",
    "Message",
    "NewDataset",
    "Outcome",
    "Part",
    "Ready",
    "Record",
    "Results",
    "Segment",
    "Status",
    "Stop",
    "Submit",
    "Waiting",
    "WorkersUp",
    "pack",
    "unpack",
]

Frame: TypeAlias = bytes | memoryview

INDEX_BYTES = 8


class Kind(IntEnum):
    """What the workers are given."""

    INDICES = 0  # int64 indices of the dataset, in one frame
    KEYS = 1  # pickled keys of the dataset, a frame each
    SAMPLES = 2  # pickled samples, a frame each


class Status(IntEnum):
    """How a mini-batch, or a part of it, ended."""

    DONE = 0
    FAILED = 1  # one frame: the pickled exception
    CANCELLED = 2


class BatchHead(NamedTuple):
    """One mini-batch that is wanted."""

    number: int  # counts the mini-batches of its pass
    slot: int  # buffer to fill, NO_SLOT: arrays travel in messages
    rows: int  # samples
    position: int  # of its first sample in the epoch
    worker: int = -1  # that alone may make it, -1: any


class Submit(NamedTuple):
    """Wanted mini-batches, in order."""

    pass_id: int
    epoch: int
    kind: Kind
    batches: list[BatchHead]

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return _samples_fit(self.kind, sum(head.rows for head in self.batches), frames)


class Cancel(NamedTuple):
    """Drop what is left of a pass; each of its mini-batches still comes back once."""

    pass_id: int


class Waiting(NamedTuple):
    """The caller waits long for a mini-batch."""

    pass_id: int
    number: int  # -1: any of the pass
    overdue: int  # 1: its timeout is over; 0: half of it
    seconds: float  # the timeout


class NewDataset(NamedTuple):
    """From now on, for workers that start later too, indices refer to another dataset."""

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return len(frames) == 1


class Stop(NamedTuple):
    """End now."""


class Ready(NamedTuple):
    """A worker asks for work for the first time."""

    worker_id: int
    start: int  # which of the processes that were started this one is; 0: a thread


class Part(NamedTuple):
    """Rows of one mini-batch."""

    slot: int
    rows: int  # of the whole mini-batch
    start: int
    size: int  # rows of this part
    position: int  # of the first of these samples in the epoch


class Chunk(NamedTuple):
    """Work for one worker: rows of one mini-batch, or several whole mini-batches."""

    chunk_id: int  # never used twice: names the attempt, too
    epoch: int
    kind: Kind
    lost: int  # 1: the last frame tells which samples have ended a worker, and how
    parts: list[Part]

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        if self.lost:
            frames = frames[:-1]
        return _samples_fit(self.kind, sum(part.size for part in self.parts), frames)


class Outcome(NamedTuple):
    """How a part ended."""

    status: int
    frames: int
    first_index: int  # of its first sample in the dataset, -1 where samples have none
    skipped: int  # rows that hold no sample; the last frame tells which, and why


class Done(NamedTuple):
    """A chunk is finished."""

    chunk_id: int
    seconds: float  # spent on it
    parts: list[Outcome]

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return len(frames) == sum([part.frames for part in self.parts])


class Segment(NamedTuple):
    """Rows of a mini-batch that one worker wrote."""

    start: int
    size: int
    frames: int
    first_index: int
    skipped: int


class Item(NamedTuple):
    """One mini-batch that is finished."""

    pass_id: int
    number: int
    slot: int
    rows: int
    status: int
    segments: list[Segment]

    @property
    def frames(self) -> int:
        """Frames that belong to it."""
        if self.status == Status.FAILED:
            return 1
        return sum([segment.frames for segment in self.segments])


class Results(NamedTuple):
    """Finished mini-batches. The frames of all segments follow."""

    seconds_per_sample: float  # moving average
    chunk_samples: int  # of the last chunk
    items: list[Item]

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return len(frames) == sum([item.frames for item in self.items])


class WorkersUp(NamedTuple):
    """All workers have finished their setup, or their number has changed since."""

    nworkers: int  # that are ready now


class Record(NamedTuple):
    """What a process of the loader has logged."""

    worker_id: int  # -1: not a worker

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return len(frames) == 1


class Failure(NamedTuple):
    """An error that ends the loader."""

    worker_id: int  # -1: not a worker

    def fits(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames can be those behind this message."""
        return len(frames) == 1


Message: TypeAlias = (
    Submit
    | Cancel
    | Waiting
    | NewDataset
    | Stop
    | Ready
    | Chunk
    | Done
    | Results
    | WorkersUp
    | Record
    | Failure
)
_TYPES: tuple[Any, ...] = get_args(Message)
_NUMBERS = {message_type: bytes((number,)) for number, message_type in enumerate(_TYPES)}
MOST_BYTES = 1 << 32  # of one frame, so that a stray sender cannot make us allocate more


def pack(message: Message, token: bytes = b"") -> bytes:
    """Encode a message as its first frame; `token` is the loader's secret."""
    return token + _NUMBERS[type(message)] + cast(bytes, msgpack.packb(message))


def unpack(head: Frame, frames: Sequence[Frame] = (), token: bytes = b"") -> Message:
    """Decode a first frame; `frames` are those behind it.

    Raises
    ------
    ValueError
        If it is no message of this loader, or the frames do not fit it.
    """
    if head[: len(token)] != token:
        raise ValueError(f"not a message of this loader: {bytes(head[:32])!r}")
    head = head[len(token) :]
    try:
        fields = msgpack.unpackb(head[1:])
        if type(fields) is not list:
            raise TypeError("The fields of a message are a list.")
        message = cast(Message, _DECODERS[head[0]](fields))
    except (IndexError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"not a message of this protocol: {bytes(head[:32])!r}") from error
    fits: Callable[[Sequence[Frame]], bool] = getattr(message, "fits", operator.not_)
    if not fits(frames):
        name = type(message).__name__
        raise ValueError(f"{len(frames)} frames do not fit a {name}: {bytes(head[:32])!r}")
    return message


def _samples_fit(kind: Kind, samples: int, frames: Sequence[Frame]) -> bool:
    if kind is Kind.INDICES:
        return len(frames) == 1 and len(frames[0]) == INDEX_BYTES * samples
    return len(frames) == samples


def _decoder(record: Any) -> Callable[[list[Any]], Any]:
    """Return the function that checks the fields of a decoded record and makes it.

    Fields are numbers, enumerations, and at the end perhaps a list of records.
    """
    is_named = hasattr(record, "_make")
    hints = tuple(get_type_hints(record).values() if is_named else get_args(record))
    make = record._make if is_named else tuple
    enums = [(i, hint) for i, hint in enumerate(hints) if hint is Kind]
    expected = tuple(
        list if get_origin(hint) is list else float if hint is float else int for hint in hints
    )
    decode_row = _decoder(get_args(hints[-1])[0]) if list in expected else None

    def decode(fields: list[Any]) -> Any:
        if tuple(map(type, fields)) != expected:
            raise TypeError
        for i, enum in enums:
            fields[i] = enum(fields[i])
        if decode_row is not None:
            fields[-1] = [decode_row(row) for row in fields[-1]]
        return make(fields)

    return decode


_DECODERS = [_decoder(message_type) for message_type in _TYPES]
