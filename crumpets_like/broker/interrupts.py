"""Signals while the loader must not be interrupted: they wait, and the user sees them once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

__all__ = ["interrupts_deferred"]


@contextmanager
def interrupts_deferred(at_exit: bool = False) -> Iterator[None]:
    """Signals with a handler in Python, such as Ctrl-C, take effect at the end of the block.

    Ctrl-C not at all if one is on its way through already: whoever presses it twice would otherwise
    interrupt the very code that cleans up. Nor `at_exit`, where its exception would find nobody.
    In code that opens things an exception would lose them, and in imports and the hooks that run
    at a fork it would get lost itself, since Python ignores what is raised in their callbacks. Only
    the main thread runs handlers: in other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    unwinding = isinstance(sys.exc_info()[1], KeyboardInterrupt)
    unwinding |= at_exit and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    owner = os.getpid()
    came: list[int] = []
    actions = {int(number): signal.getsignal(number) for number in signal.valid_signals()}
    # The others are the default action, none, or a handler that is not in Python.
    handlers = {number: action for number, action in actions.items() if callable(action)}
    over = False

    def receive(number: int, frame: FrameType | None) -> None:
        # The first handler that is back may raise before the others are: then this one stays.
        if over:
            handlers[number](number, frame)
        else:
            came.append(number)

    try:
        for number in handlers:
            signal.signal(number, receive)
        yield
    finally:
        over = True
        try:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        finally:
            if os.getpid() == owner:
                # Called, not sent again: who listens to a wake-up descriptor has heard of them.
                with ExitStack() as all_of_them:
                    for number in dict.fromkeys(reversed(came)):
                        if not (unwinding and number == signal.SIGINT):
                            all_of_them.callback(handlers[number], number, sys._getframe())
