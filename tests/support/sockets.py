"""Hand-made peers of the engine's sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from crumpets_like.broker.addresses import make_addresses, remove_directory
from crumpets_like.broker.protocol import (
    Done,
    Failure,
    Item,
    Message,
    Outcome,
    Record,
    Results,
    pack,
    unpack,
)

__all__ = ["GARBAGE", "Peer", "Peers", "addresses", "in_thread"]

_TIMEOUT = 20_000  # milliseconds: a message that is late has got lost

GARBAGE: list[list[bytes]] = [
    [b""],
    [b"\xff"],
    [b"GET / HTTP/1.1\r\n"],
    [b"", b"", b""],
    [bytes(range(256)) * 100],
    [b"\x00\x94\x01\x02\x00\x03"],
    [pack(Done(1, 0.25, [Outcome(0, 5, 0, 0)]))],
    [pack(Results(0.25, 2, []))[:1] + b"\x93\x01\x02\x03"],
    [pack(Results(0.25, 2, [Item(1, 0, 0, 4, 1, [])]))],
    [pack(Failure(0))],
    [pack(Record(0))],
]
"""Messages that are none, and some that look like one: wrong types, too few frames."""


@contextmanager
def addresses(*kinds: str) -> Iterator[list[str]]:
    """Addresses that nobody uses yet."""
    uid = f"test-{threading.get_ident()}"
    try:
        yield [group[0] for group in make_addresses(uid, "test", [(kind, 1) for kind in kinds])]
    finally:
        remove_directory(uid)


class Peers:
    """Opens sockets, and closes all of them."""

    def __init__(self) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self._peers: list[Peer] = []

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *error: object) -> None:
        for peer in self._peers:
            peer.socket.close(linger=0)
        self.context.term()

    def open(self, kind: int, address: str, *, bind: bool = False, name: bytes = b"") -> Peer:
        """Open a socket."""
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.linger = 1000
        socket.rcvtimeo = socket.sndtimeo = _TIMEOUT
        if name:
            socket.identity = name
        if bind:
            socket.bind(address)
        else:
            socket.connect(address)
        self._peers.append(Peer(socket))
        return self._peers[-1]


class Peer:
    """One socket, for messages of the protocol and others."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def send(self, message: Message, *frames: bytes) -> None:
        """Send a message of the protocol."""
        self.socket.send_multipart([pack(message), *frames])

    def send_raw(self, frames: list[bytes]) -> None:
        """Send anything."""
        self.socket.send_multipart(frames)

    def receive(self) -> tuple[Any, list[bytes]]:
        """Wait for a message of the protocol and its frames."""
        head, *frames = self.socket.recv_multipart()
        return unpack(head, frames), frames

    def silent(self, seconds: float = 0.05) -> bool:
        """Whether nothing comes."""
        return not self.socket.poll(int(1000 * seconds))


@contextmanager
def in_thread(function: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """Run a function in a thread until `stop` was called, and raise what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(20)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
