"""A loader of torch tensors: :class:`TorchTurboDataLoader`."""

from __future__ import annotations

import copy
import warnings
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
        Leave gamma, contrast, noise and blur of images to the device: the workers only note in
        each `augmentation` dict what is to be done, and a :class:`Randomizer` does it to the whole
        mini-batch. On a CUDA device that is behind the copy, beside the caller's work; elsewhere in
        the caller's thread, which on the CPU is a warning.
    shared_memory : bool or int
        As for :class:`TurboDataLoader`. For CUDA devices the buffers are page-locked, and there
        are never more: the caller holds none. (Lists and dicts of arrays that `Worker.process`
        returned stay in their buffers; of these there may be more.)
    **options
        All keyword options of :class:`TurboDataLoader`.

    Raises
    ------
    TypeError, ValueError
        As :class:`TurboDataLoader`; if a device is not there; if a list of devices has another
        length than `num_mini_batches`; if `gpu_augmentation` is true and the worker cannot leave
        these operations out, or has something to do with the image after them.

    Warns
    -----
    RuntimeWarning
        If `gpu_augmentation` is true and the device is the CPU.
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
            worker_template = _without_pixels(worker_template)
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
        self._randomizer: Any = None
        if gpu_augmentation:
            from .randomizer import Randomizer

            self._randomizer = Randomizer(getattr(worker_template, "layout", "CHW"))
            if any(device.type == "cpu" for device in self._devices):
                warnings.warn(
                    "gpu_augmentation=True with device 'cpu': gamma, contrast, noise and blur of "
                    "whole mini-batches are computed in the thread that asks for them, not by the "
                    f"{nworkers} workers. gpu_augmentation=False leaves them to the workers.",
                    RuntimeWarning,
                    stacklevel=2,
                )

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Where mini-batches go: all to one device, or each of an iteration to its own."""
        return self._devices

    def _make_engine(self) -> AnyEngine:
        make = DeviceEngine if self._nworkers else LocalDeviceEngine
        return make(self._options, self._devices, self._randomizer)


def _without_pixels(template: Worker) -> Worker:
    """A copy of the template that leaves pixel operations to the device."""
    if not hasattr(template, "gpu_augmentation"):
        raise ValueError(
            f"gpu_augmentation=True needs a worker that can leave pixel operations to the device, "
            f"as ImageWorker and those made of it, in crumpets_like.workers, do; "
            f"{type(template).__name__} has no attribute gpu_augmentation."
        )
    copied: Any = copy.copy(template)
    copied.gpu_augmentation = True
    return copied  # type: ignore[no-any-return]
