"""Opening sockets: the options that all of them share, and errors that name the argument."""

from __future__ import annotations

import errno
from typing import Any

import zmq

from .protocol import MOST_BYTES

__all__ = ["LINGER", "open_socket"]

LINGER = 200  # milliseconds that last messages may take where nobody waits for them longer


def open_socket(
    context: zmq.Context[Any],
    kind: int,
    argument: str,
    address: str,
    *,
    bind: bool = False,
    linger: int = 0,
) -> zmq.Socket[bytes]:
    """Open a socket that queues any number of messages.

    Parameters
    ----------
    context : zmq.Context
        What it belongs to.
    kind : int
        Such as ``zmq.PULL``.
    argument : str
        Name of the argument that brought the address, for messages.
    address : str
        Such as ``ipc:///tmp/folder/name``.
    bind : bool
        Bind the address; False: connect to it.
    linger : int
        Milliseconds that last messages may take.

    Raises
    ------
    TypeError, ValueError
        If the address is no address.
    OSError
        If it cannot be bound, for instance because it is in use.
    """
    if not isinstance(address, str):
        raise TypeError(f"{argument} must be an address, a string, got {address!r}.")
    made: zmq.Socket[bytes] = context.socket(kind)
    made.linger = linger
    made.sndhwm = made.rcvhwm = 0  # the window of the producer bounds what is under way
    made.maxmsgsize = MOST_BYTES
    made.reconnect_ivl = 2  # milliseconds: who binds the address may be just starting
    try:
        if bind:
            made.bind(address)
        else:
            made.connect(address)
    except zmq.ZMQError as error:
        made.close()
        text = f"{argument}={address!r} cannot be {'bound' if bind else 'connected to'}: {error}"
        if error.errno in (errno.EINVAL, errno.EPROTONOSUPPORT):
            raise ValueError(text) from error
        raise OSError(error.errno, text) from error
    return made
