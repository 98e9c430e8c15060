"""Every message on every socket: its name, its fields and its way.

A message is a multipart of frames. The first frame is one byte, the message's number,
and the msgpack list of its fields; more frames follow where the fields say so, and
pass through the broker untouched. Indices travel as raw native int64, since the broker
only cuts them (0.1 microseconds a cut; 5 as a decoded array). Values that workers return use
:mod:`crumpets_like.broker.encoding`.

========================  =====================  =========================================
message                   way                    frames behind it
========================  =====================  =========================================
Submit                    Producer -> Broker     one of int64 indices, or one per sample
Cancel, Stop              Producer -> Broker     -
Ready                     Worker -> Broker       -
Chunk                     Broker -> Worker       as Submit
Stop                      Broker -> Worker       -
Done                      Worker -> Broker       as its parts say
Results                   Broker -> Consumer     as its items say (result stream)
WorkersUp                 Broker -> Consumer     - (control stream)
Failure                   any -> Consumer        one pickled exception (control stream)
========================  =====================  =========================================
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, cast

import msgpack

__all__ = [
    "BatchHead",
    "Cancel",
    "Chunk",
    "Done",
    "Failure",
    "Item",
    "Kind",
    "Part",
    "Ready",
    "Results",
    "Segment",
    "Status",
    "Stop",
    "Submit",
    "WorkersUp",
    "pack",
    "unpack",
]

Frame: TypeAlias = bytes | memoryview


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


class Submit(NamedTuple):
    """Wanted mini-batches, in order."""

    pass_id: int
    epoch: int
    kind: int
    batches: list[BatchHead]


class Cancel(NamedTuple):
    """Drop what is left of a pass; each of its mini-batches still comes back once."""

    pass_id: int


class Stop(NamedTuple):
    """End now."""


class Ready(NamedTuple):
    """A worker asks for work for the first time."""

    worker_id: int
    pid: int


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
    kind: int
    parts: list[Part]


class Done(NamedTuple):
    """A chunk is finished."""

    chunk_id: int
    seconds: float  # spent on it
    parts: list[tuple[int, int, int]]  # (Status, frames, first index) of each part


class Segment(NamedTuple):
    """Rows of a mini-batch that one worker wrote."""

    start: int
    size: int
    frames: int
    first_index: int  # of its first sample in the dataset, -1 where samples have none


class Item(NamedTuple):
    """One mini-batch that is finished."""

    pass_id: int
    number: int
    slot: int
    rows: int
    status: int
    segments: list[Segment]


class Results(NamedTuple):
    """Finished mini-batches. The frames of all segments follow."""

    seconds_per_sample: float  # moving average
    chunk_samples: int  # of the last chunk
    items: list[Item]


class WorkersUp(NamedTuple):
    """All workers have finished their setup."""

    nworkers: int


class Failure(NamedTuple):
    """An error that ends the loader."""

    worker_id: int  # -1: not a worker


Message: TypeAlias = Submit | Cancel | Stop | Ready | Chunk | Done | Results | WorkersUp | Failure
_TYPES: tuple[Any, ...] = (Submit, Cancel, Stop, Ready, Chunk, Done, Results, WorkersUp, Failure)
_NUMBERS = {message_type: bytes((number,)) for number, message_type in enumerate(_TYPES)}
MOST_BYTES = 1 << 32  # of one frame, so that a stray sender cannot make us allocate more


def pack(message: Message) -> bytes:
    """Encode a message as its first frame."""
    return _NUMBERS[type(message)] + cast(bytes, msgpack.packb(message))


def unpack(frame: Frame) -> Message:
    """Decode a first frame.

    Raises
    ------
    ValueError
        If it is no message of this protocol.
    """
    try:
        message_type = _TYPES[frame[0]]
        return message_type._make(msgpack.unpackb(frame[1:]))  # type: ignore[no-any-return]
    except (IndexError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ValueError(f"not a message of this protocol: {bytes(frame[:32])!r}") from error
