"""Descriptors that travel beside a pickle.

What is pickled into a payload may attach descriptors to it: its pickle holds only their numbers
in a list that goes over a socket, or is inherited. The pickles that user code makes within it
count as well, which is why no persistent ids of one pickler are used.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections.abc import Iterator, Sequence

__all__ = ["arrived", "attach", "attached", "detach"]


class _Travel(threading.local):
    outgoing: list[int] | None = None
    incoming: Sequence[int] | None = None


_travel = _Travel()


@contextlib.contextmanager
def attached() -> Iterator[list[int]]:
    """Collect what is attached inside; the caller closes it, but for an exception."""
    outer, descriptors = _travel.outgoing, list[int]()
    _travel.outgoing = descriptors
    try:
        yield descriptors
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    finally:
        _travel.outgoing = outer


def attach(descriptor: int) -> int | None:
    """Attach a duplicate of `descriptor`; its number, None if no payload is being made."""
    if _travel.outgoing is None:
        return None
    _travel.outgoing.append(os.dup(descriptor))  # whoever attaches it may end before it is sent
    return len(_travel.outgoing) - 1


@contextlib.contextmanager
def arrived(descriptors: Sequence[int]) -> Iterator[None]:
    """Let what is unpickled inside find the descriptors that were attached to its payload."""
    outer, _travel.incoming = _travel.incoming, descriptors
    try:
        yield
    finally:
        _travel.incoming = outer


def detach(number: int) -> int:
    """Return a duplicate, for the caller to close, of the descriptor with a number.

    Raises
    ------
    UnpicklingError
        If no payload is being loaded.
    """
    if _travel.incoming is None:
        raise pickle.UnpicklingError(
            "This pickle needs a descriptor of shared memory that came with a loader's payload, "
            "so it can be read only while the loader's workers unpickle that payload."
        )
    return os.dup(_travel.incoming[number])
