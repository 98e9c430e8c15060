"""Ctrl-C while the loader must not be interrupted: it waits, and the user sees it once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["interrupts_deferred"]


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Ctrl-C inside takes effect at the end; not at all if one is on its way through already.

    Whoever presses it twice would otherwise interrupt the very code that cleans up; and in the
    hooks that run at a fork it would get lost. Only the main thread gets signals: in other threads
    this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # the default action, which ends the process, or none
        yield
        return
    unwinding = isinstance(sys.exc_info()[1], KeyboardInterrupt)
    owner = os.getpid()
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if pressed and not unwinding and os.getpid() == owner:
            os.kill(os.getpid(), signal.SIGINT)
