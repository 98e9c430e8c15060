"""Devices that are none: they copy late, as a GPU may, and say what was asked of them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crumpets_like.torch.device import Device, Event

__all__ = ["SlowDevice", "use_devices"]


class _SlowEvent:
    def __init__(self, device: SlowDevice, number: int) -> None:
        self._device = device
        self._number = number

    def query(self) -> bool:
        return self._device.done > self._number

    def synchronize(self) -> None:
        self._device.run(self._number + 1)


class SlowDevice(Device):
    """Reads what it copies from its raw address when the copy is waited for, not before.

    So a slot that is written to too early, or unmapped, shows.

    Parameters
    ----------
    lag : int, optional
        A copy is done when so many more have begun, too.
    refuses : bool
        Whether pages cannot be locked.
    fails_at : int, optional
        Number of the mini-batch whose copy raises an exception.

    Attributes
    ----------
    begun, done : int
        Copies of mini-batches.
    handed_over : list of int
        Numbers of those that the caller got, in order.
    locked : int
        Bytes of page-locked memory.
    """

    ahead = True

    def __init__(
        self, lag: int | None = None, *, refuses: bool = False, fails_at: int | None = None
    ) -> None:
        super().__init__(torch.device("cpu"))
        self.copies = True
        self.begun = self.done = self.locked = 0
        self.handed_over: list[int] = []
        self.log: list[str] = []
        self._lag = lag
        self._refuses = refuses
        self._fails_at = fails_at
        self._work: list[list[tuple[int, torch.Tensor]]] = []

    def copy(self, sources: list[torch.Tensor]) -> tuple[list[torch.Tensor], Event | None]:
        if self.begun == self._fails_at:
            self._fails_at = None
            raise MemoryError("the device is full")
        tensors = [torch.full_like(source, 0) for source in sources]
        self._work.append(
            [(source.data_ptr(), to) for source, to in zip(sources, tensors, strict=True)]
        )
        event = _SlowEvent(self, self.begun)
        self.begun += 1
        if self._lag is not None:
            self.run(self.begun - self._lag)
        return tensors, event

    def run(self, stop: int) -> None:
        """Copy, up to number `stop`."""
        while self.done < stop:
            for address, to in self._work[self.done]:
                ctypes.memmove(to.data_ptr(), address, to.nbytes)
            self.done += 1

    def synchronize(self) -> None:
        """Copy all that has begun."""
        self.run(self.begun)

    def hand_over(self, tensors: list[torch.Tensor], event: Any) -> None:
        self.handed_over.append(event._number)

    def lock_pages(self, memory: NDArray[np.uint8]) -> str | None:
        if self._refuses:
            return "no such right"
        self.locked = memory.nbytes
        return None

    def unlock_pages(self, memory: NDArray[np.uint8]) -> None:
        assert self.done == self.begun, "pages of copies under way were unlocked"
        memory.sum()  # they are mapped
        self.locked -= memory.nbytes


def use_devices(monkeypatch: Any, *devices: Device) -> None:
    """Let loaders that are made for CUDA devices, which are not there, use these."""
    from crumpets_like.torch import engine, turbo

    names = [torch.device("cuda", index) for index in range(len(devices))]

    def check(device: Any, num_mini_batches: int) -> list[torch.device]:
        return names

    def opened(_: Sequence[torch.device]) -> Sequence[Device]:
        return devices

    monkeypatch.setattr(turbo, "check_devices", check)
    monkeypatch.setattr(engine, "open_devices", opened)
