"""Opening sockets, with the options that all of them share, and ending what they belong to.

NOTE [Linger]. A socket that sends messages of several frames is not closed with ``linger=0``: if
its peer goes away in the same moment, with a message half sent, libzmq aborts the whole process
("Resource temporarily unavailable (src/session_base.cpp:233)"), here perhaps the training process.
With time to linger it drops the rest of that message in peace. It takes this time only if the peer
has gone, or does not read.
"""

from __future__ import annotations

import errno
import signal
from typing import Any

import zmq

from .protocol import MOST_BYTES

__all__ = ["LINGER", "end_context", "open_socket"]

LINGER = 200  # milliseconds that last messages may take where nobody waits for them longer
"""See NOTE [Linger]."""


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


def end_context(context: zmq.Context[Any], linger: int | None = None) -> None:
    """Close the sockets of a context that are still open, and end its threads.

    Signals go to other threads, or wait: one with a handler, of a timer or a profiler, would
    interrupt this, and pyzmq does not try again. A thread and five descriptors would stay for good.

    Parameters
    ----------
    context : zmq.Context
        No other thread may use its sockets any more.
    linger : int, optional
        Milliseconds that last messages may take. None: as the sockets were opened with.
    """
    faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    try:
        context.destroy(linger=linger)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
