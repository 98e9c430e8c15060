"""What the helper processes have to know at their start, passed once as msgpack."""

from __future__ import annotations

import sys
from typing import NamedTuple

import msgpack

from .segment import RingGeometry

__all__ = ["MOST_DESCRIPTORS", "UNICODE_ERRORS", "Settings"]

MOST_DESCRIPTORS = 250  # that one message takes: Linux allows 253
UNICODE_ERRORS = "surrogateescape"  # names of files need not be UTF-8


class Settings(NamedTuple):
    """Facts of one loader, the same for all its processes.

    Descriptors are those of the receiving process; they travel beside the settings.
    """

    start_method: str
    nworkers: int
    rows: int  # most samples of a mini-batch
    splittable: bool  # whether a mini-batch may be made by several workers
    one_epoch: bool  # whether work of two epochs must not be under way at once
    seed: str  # in base 16: an integer of any size, which msgpack has not
    seed_globals: bool
    stride: int
    slots: int
    work_address: str  # Producer -> Broker
    worker_address: str  # Worker <-> Broker
    result_address: str  # Broker -> Consumer
    control_address: str  # any -> Consumer
    uid: str  # names the private folder of the sockets
    token: bytes  # the loader's secret, which begins each of its messages
    restarts: int  # most replacements of workers in a pass
    on_error_raises: bool  # whether a sample that ends its workers is an error
    worker_threads: int  # of numerical libraries, in each worker
    payload_size: int
    trainer: int  # process id of the training process
    modules: list[str]  # to import before workers are forked
    folders: list[str]  # more places to find modules in
    arguments: list[str]  # sys.argv
    levels: dict[str, int]  # of the training process's loggers
    shared: list[int]  # descriptors that the dataset attached to the payload
    ring: int = -1  # descriptor of the ring
    payload: int = -1  # descriptor of the pickled template and dataset

    def pack(self) -> bytes:
        """Encode."""
        return msgpack.packb(self, unicode_errors=UNICODE_ERRORS)  # type: ignore[no-any-return]

    @classmethod
    def unpack(cls, data: bytes) -> Settings:
        """Decode what :meth:`pack` made."""
        return cls._make(msgpack.unpackb(data, unicode_errors=UNICODE_ERRORS))

    def apply(self) -> None:
        """Let a fresh interpreter have what user code expects to find in it."""
        sys.argv[:] = self.arguments

    @property
    def geometry(self) -> RingGeometry:
        """Sizes of the ring."""
        return RingGeometry(self.nworkers, self.stride, self.slots)
