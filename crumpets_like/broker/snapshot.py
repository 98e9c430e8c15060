"""What objects are at one moment, for workers that run already.

A :class:`Payload` that workers do not inherit: they open the descriptors that the training
process holds, through ``/proc``. It lives in nameless segments, so that nothing is left behind.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Any, NamedTuple

import msgpack

from .descriptors import attach, detach
from .payload import Payload, load_payload, segment_of

__all__ = ["Place", "Snapshot", "load_snapshot", "reachable"]


class Place(NamedTuple):
    """Where a snapshot lies."""

    owner: int  # process that holds the descriptors; 0: the one that looks
    descriptor: int
    size: int
    shared: tuple[int, ...]  # descriptors that the objects attached
    segments: tuple[tuple[int, int], ...]  # what all of them refer to: numbers are used again

    def pack(self) -> bytes:
        """Encode."""
        return msgpack.packb(self)  # type: ignore[no-any-return]

    @classmethod
    def unpack(cls, data: bytes) -> Place:
        """Decode what :meth:`pack` made."""
        return cls._make(msgpack.unpackb(data, use_list=False))


class Snapshot:
    """What some objects are at one moment; its memory is free once it is collected.

    The pickle of a snapshot in another payload is the :class:`Place` of descriptors that are
    inherited with that payload.

    Parameters
    ----------
    objects : dict of str to object
        Names are for error messages.

    Raises
    ------
    Exception
        If one cannot be pickled: the text names the attribute.
    """

    def __init__(self, objects: dict[str, Any]) -> None:
        self._hold(Payload(objects))

    def _hold(self, payload: Payload) -> None:
        self._payload = payload
        self._finalizer = weakref.finalize(self, _close, payload, os.getpid())

    def renewed(self, objects: dict[str, Any]) -> Snapshot:
        """A snapshot of some objects: this very one where nothing has changed."""
        payload = self._payload.renewed(objects)
        if payload is self._payload:
            return self
        new = Snapshot.__new__(Snapshot)
        new._hold(payload)
        return new

    @property
    def modules(self) -> list[str]:
        """Modules that loading it will import."""
        return self._payload.modules

    @property
    def place(self) -> Place:
        """Where another process of the same user finds it, as long as it is held here."""
        payload = self._payload
        segments = map(segment_of, (payload.descriptor, *payload.descriptors))
        return Place(
            os.getpid(),
            payload.descriptor,
            payload.size,
            tuple(payload.descriptors),
            tuple(segments),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        payload = self._payload
        numbers = [attach(number) for number in (payload.descriptor, *payload.descriptors)]
        return _inherited, (payload.size, *numbers)


def _inherited(size: int, *numbers: int) -> Place:
    descriptor, *shared = map(detach, numbers)
    return Place(0, descriptor, size, tuple(shared), ())


def _close(payload: Payload, owner: int) -> None:
    if os.getpid() == owner:
        payload.close()


def reachable() -> bool:
    """Whether other processes of this user can open this one's descriptors."""
    if sys.platform != "linux":
        return False
    # (Those of a process that may not be inspected belong to root.)
    return os.path.exists("/proc/self/fd") and os.stat("/proc/self/fd").st_uid == os.geteuid()


def load_snapshot(place: Place) -> Any:
    """A copy of the objects as they were.

    Raises
    ------
    OSError
        If the process that holds it has ended, or does not hold it any more.
    """
    if not place.owner:
        return load_payload(place.descriptor, place.size, place.shared)
    opened: list[int] = []
    try:
        for descriptor in (place.descriptor, *place.shared):
            path = f"/proc/{place.owner}/fd/{descriptor}"
            opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        if tuple(map(segment_of, opened)) != place.segments:
            raise FileNotFoundError(
                f"Process {place.owner} does not hold the dataset any more that this worker was "
                "asked to read: the iterator it belongs to is closed."
            )
        return load_payload(opened[0], place.size, opened[1:])
    finally:
        for descriptor in opened:
            os.close(descriptor)
