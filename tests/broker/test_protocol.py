"""Messages survive the way; anything else is refused."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.broker import protocol
from crumpets_like.broker.protocol import (
    BatchHead,
    Cancel,
    Chunk,
    Done,
    Failure,
    Item,
    Part,
    Ready,
    Results,
    Segment,
    Status,
    Stop,
    Submit,
    WorkersUp,
    pack,
    unpack,
)

MESSAGES: list[protocol.Message] = [
    Submit(1, 2, 0, [BatchHead(0, 1, 2, 3)]),
    Cancel(7),
    Stop(),
    Ready(3, 4242),
    Chunk(9, 1, 0, [Part(0, 4, 2, 2, 10)]),
    Done(9, 0.25, [(0, 1, 17)]),
    Results(0.5, 4, [Item(1, 0, 2, 4, int(Status.DONE), [Segment(0, 4, 1, -1)])]),
    WorkersUp(4),
    Failure(-1),
]


def test_the_table_names_every_message() -> None:
    assert {type(message) for message in MESSAGES} == set(typing.get_args(protocol.Message))
    for message in MESSAGES:
        assert type(message).__name__ in (protocol.__doc__ or "")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: protocol.Message) -> None:
    again = unpack(pack(message))
    assert type(again) is type(message)
    assert pack(again) == pack(message)


@given(st.binary(max_size=64))
def test_other_bytes_are_refused(data: bytes) -> None:
    noise = bytes([255]) + data
    with pytest.raises(ValueError, match="not a message of this protocol"):
        unpack(noise)


@pytest.mark.parametrize("noise", [b"", b"\x00", b"\x00\x91\x01", b"\x03\xc1", b"\x04\x01"])
def test_broken_messages_are_refused(noise: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of this protocol"):
        unpack(noise)
