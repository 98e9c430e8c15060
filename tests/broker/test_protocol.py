"""Messages survive the way; anything else is refused."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crumpets_like.broker import protocol
from crumpets_like.broker.protocol import (
    BatchHead,
    Cancel,
    Chunk,
    Done,
    Failure,
    Item,
    Kind,
    NewDataset,
    Outcome,
    Part,
    Ready,
    Record,
    Results,
    Segment,
    Status,
    Stop,
    Submit,
    Waiting,
    WorkersUp,
    pack,
    unpack,
)

EXAMPLES: list[tuple[protocol.Message, int]] = [  # with the number of frames
    (Submit(1, 2, Kind.KEYS, [BatchHead(0, 1, 2, 3), BatchHead(1, 2, 3, 5)]), 5),
    (Cancel(7), 0),
    (Waiting(7, -1, 1, 2.5), 0),
    (NewDataset(), 1),
    (Stop(), 0),
    (Ready(3, 4242), 0),
    (Chunk(9, 1, Kind.SAMPLES, 0, [Part(0, 4, 2, 2, 10), Part(1, 4, 0, 4, 12)]), 6),
    (Chunk(9, 1, Kind.KEYS, 1, [Part(0, 4, 2, 2, 10)]), 3),
    (Done(9, 0.25, [Outcome(0, 1, 17, 0), Outcome(0, 3, -1, 2)]), 4),
    (Results(0.5, 4, [Item(1, 0, 2, 4, int(Status.DONE), [Segment(0, 4, 2, -1, 1)])]), 2),
    (Results(0.5, 4, [Item(1, 0, 2, 4, int(Status.FAILED), [])] * 3), 3),
    (Results(0.0, 0, [Item(1, 0, 2, 4, int(Status.CANCELLED), [])]), 0),
    (WorkersUp(4), 0),
    (Record(3), 1),
    (Failure(-1), 1),
]
MESSAGES = [message for message, _ in EXAMPLES]
MESSAGE_TYPES = typing.get_args(protocol.Message)


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary()


def _submit() -> Submit:
    return Submit(1, 2, Kind.INDICES, [BatchHead(0, 1, 2, 3), BatchHead(1, 2, 3, 5)])


def _chunk() -> Chunk:
    return Chunk(9, 1, Kind.INDICES, 0, [Part(0, 4, 2, 2, 10), Part(1, 3, 0, 3, 12)])


def test_the_table_names_every_message() -> None:
    assert {type(message) for message in MESSAGES} == set(MESSAGE_TYPES)
    for message in MESSAGES:
        assert type(message).__name__ in (protocol.__doc__ or "")


@pytest.mark.parametrize(("message", "count"), EXAMPLES)
def test_round_trip(message: protocol.Message, count: int) -> None:
    again = unpack(pack(message), [b"frame"] * count)
    assert again == message
    assert types(again) == types(message)


@pytest.mark.parametrize(("message", "count"), EXAMPLES)
def test_messages_of_another_loader_are_refused(message: protocol.Message, count: int) -> None:
    frames = [b"frame"] * count
    assert unpack(pack(message, b"secret"), frames, b"secret") == message
    for token in (b"", b"sec", b"another"):
        with pytest.raises(ValueError, match="not a message of this loader"):
            unpack(pack(message, token), frames, b"secret")


def types(value: Any) -> Any:
    """Types of a message, and of what is in it."""
    if isinstance(value, list | tuple):
        return type(value), [types(item) for item in value]
    return type(value)


@pytest.mark.parametrize("make", [_submit, _chunk])
def test_indices_are_one_frame(make: Callable[[], protocol.Message]) -> None:
    message = make()
    assert unpack(pack(message), [bytes(8 * 5)]) == message
    for frames in ([], [bytes(8 * 4)], [bytes(8 * 5 + 1)], [bytes(8 * 5), b""]):
        with pytest.raises(ValueError, match=f"frames do not fit a {type(message).__name__}"):
            unpack(pack(message), frames)


def test_what_is_lost_is_one_frame_more() -> None:
    message = _chunk()._replace(lost=1)
    assert unpack(pack(message), [bytes(8 * 5), b"lost"]) == message
    for frames in ([], [b"lost"], [bytes(8 * 5)], [bytes(8 * 4), b"lost"]):
        with pytest.raises(ValueError, match="frames do not fit a Chunk"):
            unpack(pack(message), frames)


@pytest.mark.parametrize(("message", "count"), EXAMPLES)
def test_missing_and_additional_frames_are_refused(message: protocol.Message, count: int) -> None:
    for wrong in {count - 1, count + 1} - {-1}:
        with pytest.raises(ValueError, match=f"{wrong} frames do not fit"):
            unpack(pack(message), [b"frame"] * wrong)


WRONG = [None, True, 0.5, "text", b"bytes", [], [[]], {}, 2**63]


@pytest.mark.parametrize("message", MESSAGES)
def test_fields_of_other_types_are_refused(message: protocol.Message) -> None:
    number = pack(message)[:1]
    for fields in variants(list(message)):
        with pytest.raises(ValueError, match="not a message of this protocol"):
            unpack(number + msgpack.packb(fields))
    for fields in (*WRONG, [*message, 0], list(message)[1:]):
        if fields or message != Stop():
            with pytest.raises(ValueError, match="not a message of this protocol"):
                unpack(number + msgpack.packb(fields))


def variants(value: list[Any]) -> Iterator[list[Any]]:
    """Copies of nested lists that have a wrong leaf each."""
    for place, item in enumerate(value):
        if isinstance(item, list | tuple):
            others: Iterable[Any] = [*variants(list(item)), 1, "text", None]
        else:
            others = [wrong for wrong in WRONG if type(wrong) is not type(item)]
            others = [wrong for wrong in others if type(wrong) is not int or type(item) is float]
        for other in others:
            yield [*value[:place], other, *value[place + 1 :]]


def test_unknown_kinds_are_refused() -> None:
    frame = pack(Submit(1, 2, Kind.KEYS, []))
    for kind in (3, -1):
        with pytest.raises(ValueError, match="not a message"):
            unpack(frame[:1] + msgpack.packb([1, 2, kind, []]))


@example(3, b"")
@given(
    st.integers(0, len(MESSAGE_TYPES) - 1),
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=6)),
)
def test_whatever_is_taken_is_a_whole_message(number: int, fields: Any) -> None:
    try:
        message = unpack(bytes([number]) + msgpack.packb(fields), [b""])
    except ValueError:
        return
    assert msgpack.unpackb(pack(message)[1:]) == fields
    assert types(message)[1] == types(type(message)(*message))[1]


@given(st.binary(max_size=64))
def test_other_bytes_are_refused(data: bytes) -> None:
    noise = bytes([255]) + data
    with pytest.raises(ValueError, match="not a message of this protocol"):
        unpack(noise)


@pytest.mark.parametrize("noise", [b"", b"\x00", b"\x00\x91\x01", b"\x03\xc1", b"\x04\x01"])
def test_broken_messages_are_refused(noise: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of this protocol"):
        unpack(noise)
