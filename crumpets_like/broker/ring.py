"""The rotating set of shared-memory buffers, and who has which.

The ring is one sparse, nameless segment that every process maps. A *slot* holds one
mini-batch. This side, the training process, owns the bookkeeping: it takes a slot
for each mini-batch that it requests, and a slot is free again when the last array
that looks at it is gone.

NOTE [Leases]. What the caller gets are views of one ``uint8`` base array per slot and
lease. numpy keeps that base array alive for every slice, reshape, ``memoryview`` and
``torch.from_numpy`` of a view, so a weak reference to the base array tells exactly
when the slot may be used again. Its callback may run in any thread, inside any call:
all it does is put the slot on a ``SimpleQueue``, which is safe there. Raw addresses
(``__array_interface__``, ``.ctypes.data``) are not covered.
"""

from __future__ import annotations

import gc
import mmap
import os
import queue
import threading
import weakref
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferExhausted
from .buffers import SlotLayout
from .limits import address_space_left, available_memory
from .memory import anonymous_file, hide_from_dumps
from .segment import NO_SLOT, RingGeometry, StatusPage

__all__ = ["FREE_FORM_STRIDE", "BufferRing"]

FREE_FORM_STRIDE = 1 << 28  # sparse bytes of a slot whose content has no spec
_FREE_FORM_SLOTS = 4096
_LARGEST_MAPPING = 1 << 44  # a third of what x86-64 can map
_DISUSE = 4096  # slots taken before unused extra slots go back to the system


class BufferRing:
    """Shared buffers for mini-batches, as the training process sees them.

    Parameters
    ----------
    layout : SlotLayout or None
        Where fields lie in a slot; None for free-form results.
    buffers : int
        Slots to make ready at the start; 0: there are no slots, arrays travel in messages.
    nworkers : int
        Lines in the status page.
    max_buffers : int, optional
        Most slots that may exist at once, those that the caller holds included.
        Default: as many as half of the available memory holds.

    Raises
    ------
    MemoryError
        If the slots to make ready do not fit the available memory.
    """

    def __init__(
        self,
        layout: SlotLayout | None,
        buffers: int,
        nworkers: int,
        max_buffers: int | None = None,
    ) -> None:
        self.layout = layout
        self.free_form = layout is None
        self.largest_free_form = 0  # bytes of the arrays of one mini-batch
        self.skips_reported = False  # whether the user was told that samples are skipped
        self._initial = buffers
        self._knob = "raise max_buffers"
        self._lock = threading.Lock()
        self._idle: list[int] = []  # warm slots, last used first
        self._returned: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._next_new = 0
        self._taken = 0
        self._fewest_idle = 0
        available = available_memory()
        stride = 0 if not buffers else FREE_FORM_STRIDE if layout is None else layout.stride
        if layout is not None and stride * buffers > available:
            raise MemoryError(
                f"The ring needs {stride * buffers:,} bytes ({buffers} buffers of {stride:,}), but "
                f"only {available:,} bytes of memory are available (control group limit included). "
                "Use a smaller batch_size, fewer workers, or shared_memory=n for n buffers."
            )
        self.geometry = self._map(nworkers, stride, buffers, max_buffers, available)
        self.limit = self.geometry.slots  # fewer than max_buffers where no more could be mapped
        self._overflows = self.free_form and max_buffers is None
        self.status = StatusPage(self.mapping, max(1, nworkers))
        self.status.clear()

    def _map(
        self, nworkers: int, stride: int, buffers: int, max_buffers: int | None, available: int
    ) -> RingGeometry:
        if not stride:
            slots = 0
        elif max_buffers is not None:
            slots = max_buffers
        elif self.free_form:
            slots = max(_FREE_FORM_SLOTS, buffers)
        else:
            slots = max(buffers, available // 2 // stride)
        wanted = slots
        if stride:
            header = RingGeometry(nworkers, stride, 0).size
            largest = max(0, min(address_space_left(), _LARGEST_MAPPING) - header)
            if self.free_form and slots * stride > largest:
                stride = max(mmap.PAGESIZE, largest // slots // mmap.PAGESIZE * mmap.PAGESIZE)
            slots = max(min(slots, largest // stride), min(slots, buffers))
        while True:
            geometry = RingGeometry(nworkers, stride, slots)
            try:
                self.descriptor = anonymous_file("crumpets-ring", geometry.size)
                try:
                    self.mapping = mmap.mmap(self.descriptor, geometry.size)
                except (OSError, ValueError):
                    os.close(self.descriptor)
                    raise
            except (OSError, ValueError) as error:
                if slots // 2 < buffers or not stride:
                    raise MemoryError(
                        f"A shared segment of {geometry.size:,} bytes for {slots} buffers cannot "
                        f"be made ({error}). Check ulimit -v and -f, or use fewer or smaller "
                        "buffers."
                    ) from error
                slots //= 2
                continue
            hide_from_dumps(self.mapping)
            if slots < wanted:
                self._knob = "raise the limits of this process (ulimit -v, ulimit -f)"
            return geometry

    def touch(self) -> None:
        """Get memory for the first slots now, so that no worker waits for it later."""
        if not self.free_form and self.geometry.stride and hasattr(os, "posix_fallocate"):
            ready = min(self._initial, self.geometry.slots)
            os.posix_fallocate(self.descriptor, 0, self.geometry.offset(ready))

    @property
    def first_slots(self) -> NDArray[np.uint8]:
        """The bytes of the slots that are made ready at the start, and never given back.

        None of free-form results, whose slots are mostly holes.
        """
        slots = 0 if self.free_form else min(self._initial, self.geometry.slots)
        size = slots * self.geometry.stride
        return np.ndarray((size,), np.uint8, self.mapping, self.geometry.offset(0) if size else 0)

    # -- slots ---------------------------------------------------------------------------

    def take(self) -> int | None:
        """A slot to fill; None if `limit` slots are in use. Any thread may call it."""
        if not self.geometry.stride:
            return NO_SLOT
        with self._lock:
            self._collect()
            if self._idle:
                slot = self._idle.pop()
            elif self._next_new < self.limit:
                slot = self._next_new
                self._next_new += 1
            elif self._overflows:
                return NO_SLOT  # nothing is lost: these arrays travel in messages
            else:
                return None
            self._trim()
            return slot

    def take_or_collect(self) -> int | None:
        """As :meth:`take`; looks for unreachable mini-batches when there is no slot."""
        slot = self.take()
        if slot is None:
            gc.collect()
            slot = self.take()
        return slot

    def exhausted(self, made: int = 0) -> BufferExhausted:
        """The error for a caller who holds all slots but `made`, those of a batch in the making."""
        return BufferExhausted(self.held - made, self.limit, self._knob)

    def wait_for_return(self, timeout: float | None) -> bool:
        """Wait until a slot comes back or :meth:`wake` is called; False after `timeout` seconds."""
        if self._idle:  # it came back since the caller looked, and has been noted
            return True
        try:
            slot = self._returned.get(timeout=timeout)
        except queue.Empty:
            return False
        if slot is not None:
            self._returned.put(slot)
        return True

    def wake(self) -> None:
        """End a :meth:`wait_for_return`."""
        self._returned.put(None)

    def give_back(self, slot: int) -> None:
        """Return a slot that nobody looks at. Any thread may call it, also inside a finaliser."""
        if slot != NO_SLOT:
            self._returned.put(slot)

    def _collect(self) -> None:
        while not self._returned.empty():
            try:
                slot = self._returned.get_nowait()
            except queue.Empty:  # wait_for_return() has just looked
                return
            if slot is not None:
                self._leases.pop(slot, None)
                self._idle.append(slot)

    def _trim(self) -> None:
        """Give slots that were idle for thousands of mini-batches back to the system."""
        self._taken += 1
        self._fewest_idle = min(self._fewest_idle, len(self._idle))
        if self._taken < _DISUSE:
            return
        if hasattr(mmap, "MADV_REMOVE") and self.geometry.stride % mmap.PAGESIZE == 0:
            # The list ends with the slot used last: its front has not been touched since.
            for slot in self._idle[: self._fewest_idle]:
                if slot >= self._initial:
                    self.mapping.madvise(
                        mmap.MADV_REMOVE, self.geometry.offset(slot), self.geometry.stride
                    )
        self._taken = 0
        self._fewest_idle = len(self._idle)

    @property
    def idle(self) -> int:
        """Slots that nobody uses: of those that were used once, or made ready at the start."""
        with self._lock:
            self._collect()
            ready = min(self._initial, self.geometry.slots)
            return len(self._idle) + max(0, ready - self._next_new)

    @property
    def held(self) -> int:
        """Mini-batches that the caller still holds."""
        with self._lock:
            self._collect()
            return len(self._leases)

    # -- views ---------------------------------------------------------------------------

    def lease(self, slot: int) -> NDArray[np.uint8]:
        """Base array of a slot; the slot is returned when no array looks at it any more."""
        geometry = self.geometry
        base: NDArray[np.uint8] = np.ndarray(
            (geometry.stride,), np.uint8, self.mapping, geometry.offset(slot)
        )
        # All of it is C: no signal handler can run in it, and raise. (The reference, which the
        # callback gets too, is taken for an argument that `put` ignores. A forked child of the
        # user has a queue of its own.)
        self._leases[slot] = weakref.ref(base, partial(self._returned.put, slot))
        return base

    def close(self) -> None:
        """Let go of the segment; the mapping lives on until the last mini-batch is gone."""
        self.status.release()
        os.close(self.descriptor)
        del self.mapping
