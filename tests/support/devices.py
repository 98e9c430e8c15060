"""Loaders of tensors, and devices that are none: they copy as late as a GPU may."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crumpets_like import BufferWorker, Worker
from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.torch.device import Device, Event

__all__ = ["Mixed", "SlowDevice", "check_numbers", "fork", "use_devices"]


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
        Number of the mini-batch whose copy raises an exception, once.
    error : type of Exception
        Which one.

    Attributes
    ----------
    begun, done : int
        Copies of mini-batches.
    handed_over : list of int
        Numbers of those that the caller got, in order.
    locked : int
        Bytes of page-locked memory.
    modes : set of bool
        Whether copies began in torch's inference mode.
    """

    ahead = True

    def __init__(
        self,
        lag: int | None = None,
        *,
        refuses: bool = False,
        fails_at: int | None = None,
        error: type[Exception] = MemoryError,
    ) -> None:
        super().__init__(torch.device("cpu"))
        self.copies = True
        self.begun = self.done = self.locked = 0
        self.handed_over: list[int] = []
        self.log: list[str] = []
        self._lag = lag
        self._refuses = refuses
        self._fails_at = fails_at
        self._error = error
        self.modes: set[bool] = set()
        self._work: list[list[tuple[int, torch.Tensor]]] = []

    def copy(self, sources: list[torch.Tensor]) -> tuple[list[torch.Tensor], Event | None]:
        if self.begun == self._fails_at:
            self._fails_at = None
            raise self._error("the device is full")
        self.modes.add(torch.is_inference_mode_enabled())
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


def fork(dataset: Any, batch_size: int, worker: Worker, nworkers: int, **options: Any) -> Any:
    """A loader of tensors that starts quickly."""
    options = {"start_method": "fork", **options}
    return TorchTurboDataLoader(dataset, batch_size, worker, nworkers, **options)


def check_numbers(mini_batch: dict[str, Any], first: int, rows: int) -> None:
    """The numbers from `first` on, in both fields of ``tests.support.leasing.Rows``."""
    expected = torch.arange(first, first + rows)
    assert torch.equal(mini_batch["y"], expected)
    assert torch.equal(mini_batch["x"].flatten(1), expected[:, None].expand(rows, 6))


class Mixed(BufferWorker):
    """Numbers, dates, which torch does not have, and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("small", ((2,), np.uint8))
        self.add_buffer("when", ((), "M8[D]"))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        buffers["small"][...] = sample
        buffers["when"][...] = np.datetime64(sample, "D")
        batch["name"].append(str(sample))
