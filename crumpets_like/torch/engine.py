"""Engines whose mini-batches are tensors on a device."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from ..broker.assembly import RawBatch
from ..broker.contract import EngineFacts
from ..broker.engine import Engine
from ..broker.local import LocalEngine, LocalPass
from ..broker.options import EngineOptions
from ..broker.producer import Pass
from ..broker.protocol import Status
from ..broker.stream import EMPTY, END
from .device import Function, Pending, Transfer, named, open_devices

__all__ = ["DeviceEngine", "LocalDeviceEngine"]

_WAIT = "crumpets_like: wait for a mini-batch"


class DeviceEngine(Engine):
    """An engine whose mini-batches are copied to a device ahead of the caller.

    Whenever the caller asks for a mini-batch, copies of all those that are finished by then begin.
    That is done in the caller's thread: see docs/architecture.md.

    Parameters
    ----------
    options : EngineOptions
        With at least one worker.
    devices : sequence of torch.device
        One, or one for each mini-batch of an iteration.
    function : callable, optional
        What is to be done with each mini-batch once it is on its device.
    """

    def __init__(
        self,
        options: EngineOptions,
        devices: Sequence[torch.device],
        function: Function | None = None,
    ) -> None:
        super().__init__(options)
        self._ahead: dict[int, deque[RawBatch | dict[str, Any] | Pending | Exception]] = {}
        try:
            # Now that the workers are on their way: they are forked from a process without CUDA.
            self._transfer = Transfer(open_devices(devices), function)
            self._close_transfer = weakref.finalize(self, self._transfer.close)
            self._transfer.lock_pages(self._parts.ring.first_slots)
        except BaseException:
            self.stop()
            raise

    def request(self, this: Pass) -> None:
        """As :meth:`Engine.request`, into the slots that were copied by now, too."""
        self._transfer.release()
        super().request(this)

    def _retrieve(self, this: Pass) -> Any:
        ahead = self._ahead.setdefault(this.id, deque())
        if ahead:
            item: Any = ahead.popleft()
        else:
            with named(_WAIT):
                item = self._receive(this)
        if not isinstance(item, Pending | Exception):
            item = self._begin(this, item, 0)
        if self._transfer.ahead:
            self._look_ahead(this, ahead)
        if isinstance(item, Exception):
            self._parts.consumer.raise_known(item)
        return self._transfer.finish(item) if isinstance(item, Pending) else item

    def _look_ahead(self, this: Pass, ahead: deque[Any]) -> None:
        """Begin to copy what is finished; whatever is not just arrays waits for its turn.

        So does that for which the device has no memory now, and all behind it.
        """
        while not (ahead and isinstance(ahead[-1], dict)):
            raw = this.stream.get_ready()
            if raw is None:
                return
            if raw.status == Status.DONE and not raw.skipped:
                ahead.append(self._begin(this, raw, len(ahead) + 1))
            else:
                ahead.append(raw)

    def _begin(self, this: Pass, item: Any, behind: int) -> Any:
        """Begin to copy; the error, if that fails, for its turn. EMPTY and END are passed on."""
        try:
            mini_batch = item if isinstance(item, dict) else self._parts.consumer.finish(item)
            if mini_batch is EMPTY or mini_batch is END:
                return mini_batch
            try:
                return self._transfer.begin(mini_batch, self._part(this, behind))
            except torch.OutOfMemoryError:
                if not behind:
                    raise
                return mini_batch  # the caller may have let go of some memory by its turn
        except Exception as error:  # noqa: BLE001  also what unpickling raises
            return error

    def _part(self, this: Pass, behind: int) -> int:
        """Which mini-batch of its iteration comes `behind` mini-batches after the awaited one."""
        if not self._transfer.per_mini_batch:
            return 0
        number, batch = len(this.partial) + behind, 0
        while number >= this.counts[batch][0]:
            number -= this.counts[batch][0]
            batch += 1
        return number

    def facts(self) -> EngineFacts:
        """As :meth:`Engine.facts`; copies that are done hold nothing."""
        self._transfer.release()
        return super().facts()

    def _wait_for_slot(self, this: Pass) -> None:
        if not self._transfer.wait():
            super()._wait_for_slot(this)

    def close_pass(self, this: Pass) -> None:
        """As :meth:`Engine.close_pass`; copies under way keep their slots until they are done."""
        for item in self._ahead.pop(this.id, ()):
            if isinstance(item, RawBatch):
                self._parts.ring.give_back(item.slot)
        super().close_pass(this)

    def stop(self) -> None:
        """As :meth:`Engine.stop`. The pages are unlocked while they are still mapped."""
        try:
            super().stop()
        finally:
            if hasattr(self, "_close_transfer"):
                self._close_transfer()


class LocalDeviceEngine(LocalEngine):
    """The same in the caller's thread, where nothing is ahead: each copy is waited for.

    Parameters
    ----------
    options : EngineOptions
        With ``nworkers=0``.
    devices : sequence of torch.device
        One, or one for each mini-batch of an iteration.
    function : callable, optional
        What is to be done with each mini-batch once it is on its device.
    """

    def __init__(
        self,
        options: EngineOptions,
        devices: Sequence[torch.device],
        function: Function | None = None,
    ) -> None:
        self._transfer = Transfer(open_devices(devices), function)
        super().__init__(options)

    def _run(self, this: LocalPass, slot: int, keys: Any) -> dict[str, Any] | None:
        with named(_WAIT):
            mini_batch = super()._run(this, slot, keys)
        if mini_batch is None:
            return None
        part = this.mini_batches - len(this.rest) - 1
        values = self._transfer.finish(self._transfer.begin(mini_batch, part))
        while self._transfer.wait():
            pass
        return values
