"""A loader of torch tensors: :class:`TorchTurboDataLoader`."""

from __future__ import annotations

from typing import Any

import torch

from ..broker.contract import AnyEngine
from ..broker.worker import Worker
from ..dataloader import TurboDataLoader
from .device import check_devices
from .engine import DeviceEngine, LocalDeviceEngine

__all__ = ["TorchTurboDataLoader"]


class TorchTurboDataLoader(TurboDataLoader):
    """A :class:`TurboDataLoader` whose mini-batches hold torch tensors, on a device.

    ::

        with TorchTurboDataLoader(dataset, 64, MyWorker(), 4, shuffle=True) as loader:
            for iteration, mini_batches in loader:
                for mini_batch in mini_batches:
                    model(mini_batch["image"])

    On the CPU the tensors are views of the very bytes that the workers wrote, and keep them as
    arrays would. On a CUDA device they are copies, which are made from the workers' buffers
    directly, beside the caller's work, for up to `prefetch` mini-batches ahead. They may be used
    at once on the stream that is current at the ``next``; for other streams, as with any tensor,
    the caller has to see to it.

    Arrays and tensors of a mini-batch become tensors on the device, lists stay as they are. So do
    arrays of dates, strings, records and other dtypes that torch does not have.

    Parameters
    ----------
    iterable, batch_size, worker_template, nworkers, length, num_mini_batches, start_iteration
        As for :class:`TurboDataLoader`.
    device : torch.device, str, int or list of these, optional
        Where the tensors are. With a list, mini-batch i of each iteration goes to device i.
        Default: ``"cuda:0"`` if there is one, else ``"cpu"``.
    gpu_augmentation : bool
        Not there yet.
    shared_memory : bool or int
        As for :class:`TurboDataLoader`. For CUDA devices the buffers are page-locked, and there
        are never more: the caller holds none.
    **options
        All keyword options of :class:`TurboDataLoader`.

    Raises
    ------
    TypeError, ValueError
        As :class:`TurboDataLoader`; if a device is not there; if a list of devices has another
        length than `num_mini_batches`.
    NotImplementedError
        If `gpu_augmentation` is true.
    """

    def __init__(
        self,
        iterable: Any,
        batch_size: int,
        worker_template: Worker,
        nworkers: int,
        length: int | None = None,
        num_mini_batches: int = 1,
        start_iteration: int = 0,
        device: Any = None,
        gpu_augmentation: bool = False,
        shared_memory: bool | int = True,
        **options: Any,
    ) -> None:
        if gpu_augmentation:
            raise NotImplementedError(
                f"gpu_augmentation={gpu_augmentation!r} is not there yet. Augment in the worker, "
                "or the tensors that the loader yields."
            )
        super().__init__(
            iterable,
            batch_size,
            worker_template,
            nworkers,
            length,
            num_mini_batches,
            start_iteration,
            shared_memory,
            **options,
        )
        self._devices = tuple(check_devices(device, self.num_mini_batches))
        self._options.grows = any(device.type != "cuda" for device in self._devices)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where mini-batches go: all to one device, or each of an iteration to its own."""
        return self._devices

    def _make_engine(self) -> AnyEngine:
        make = DeviceEngine if self._nworkers else LocalDeviceEngine
        return make(self._options, self._devices)
