"""Mini-batches on their way to a device: all that this package does with devices.

A :class:`Device` copies tensors; a :class:`Transfer` says which, and keeps what is being copied
from being written over. CUDA devices copy by themselves, beside the caller's work, others at once.
What is then done with a mini-batch, such as its augmentation, is done on the same stream.

NOTE [Streams]. A CUDA device copies on a stream of its own, and allocates the copies there.
The caller's stream waits for the copy's event before it uses them, on the device, not on the
processor. ``record_stream`` tells torch's allocator that the caller's stream uses them, too:
without it their memory would be taken for the next copy as soon as the caller drops them, while
kernels that read them are still queued. What a mini-batch is made into is waited for and recorded
in the same way; its slot is free when the copy is done, before that.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = [
    "CudaDevice",
    "Device",
    "Pending",
    "Transfer",
    "as_tensor",
    "check_devices",
    "named",
    "open_devices",
]

logger = logging.getLogger(__name__)

_PORTABLE = 1  # cudaHostRegisterPortable: page-locked for every device, not for the current one
_cuda: Any = torch.cuda  # parts of it have no types
_profiler_enabled: Any = getattr(torch.autograd, "_profiler_enabled")  # noqa: B009
_NOTHING: contextlib.nullcontext[None] = contextlib.nullcontext()

Function = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes another mini-batch of one, on the device and stream that are current."""


class Event(Protocol):
    """The end of a copy, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether it has been reached."""

    def synchronize(self) -> None:
        """Wait until it has been reached."""


class Device:
    """Copies tensors to a device at once, with nothing but ``Tensor.to``.

    Parameters
    ----------
    device : torch.device
        Tensors that are there already, those of the CPU, stay what they are: views of the ring.
    """

    ahead = False
    """Whether copies go on by themselves, so that it is worth while to begin them early."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copies = device.type != "cpu"

    def copy(self, sources: list[torch.Tensor]) -> tuple[list[torch.Tensor], Event | None]:
        """Begin to copy; the event is that of the last copy, None if all are done."""
        return [source.to(self.device) for source in sources], None

    def apply(
        self, function: Function, values: dict[str, Any]
    ) -> tuple[dict[str, Any], Event | None]:
        """Begin to make something of a mini-batch, behind its copy; the event as in `copy`."""
        return function(values), None

    def hand_over(self, tensors: list[torch.Tensor], event: Event | None) -> None:
        """Let the caller use tensors at once, on whatever stream is its current one."""

    def synchronize(self) -> None:
        """Wait until all copies are done."""

    def lock_pages(self, memory: NDArray[np.uint8]) -> str | None:
        """Page-lock memory so that it can be copied from directly; why not, if that fails."""
        return None

    def unlock_pages(self, memory: NDArray[np.uint8]) -> None:
        """Undo :meth:`lock_pages`."""


class CudaDevice(Device):
    """Copies on a stream of its own. See NOTE [Streams].

    Parameters
    ----------
    device : torch.device
        Without an index: the current CUDA device.
    """

    ahead = True

    def __init__(self, device: torch.device) -> None:
        index = _cuda.current_device() if device.index is None else device.index
        super().__init__(torch.device("cuda", index))
        self._stream = _cuda.Stream(self.device)

    def copy(self, sources: list[torch.Tensor]) -> tuple[list[torch.Tensor], Event | None]:
        """Begin to copy, through page-locked memory of torch's where `sources` are not there."""
        event = _cuda.Event(blocking=True)
        try:
            with _cuda.stream(self._stream):
                tensors = [
                    # (torch keeps its page-locked memory until the copy from it is done.)
                    (source if source.is_pinned() else source.pin_memory()).to(
                        self.device, non_blocking=True
                    )
                    for source in sources
                ]
                event.record(self._stream)
        except BaseException:  # such as out of memory, at the second of two
            self.synchronize()  # nobody may write to what the first is copied from
            raise
        return tensors, event

    def apply(
        self, function: Function, values: dict[str, Any]
    ) -> tuple[dict[str, Any], Event | None]:
        """Queue it on the stream of the copies."""
        event = _cuda.Event(blocking=True)
        with _cuda.stream(self._stream):
            values = function(values)
            event.record(self._stream)
        return values, event

    def hand_over(self, tensors: list[torch.Tensor], event: Event | None) -> None:
        """Let the current stream wait for them, and the allocator for the current stream."""
        current = _cuda.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)

    def synchronize(self) -> None:
        """Wait until all copies are done."""
        self._stream.synchronize()

    def lock_pages(self, memory: NDArray[np.uint8]) -> str | None:
        """``cudaHostRegister``: no second copy of the memory, and no copy to page-locked one."""
        return self._call("cudaHostRegister", memory.ctypes.data, memory.nbytes, _PORTABLE)

    def unlock_pages(self, memory: NDArray[np.uint8]) -> None:
        """``cudaHostUnregister``."""
        why = self._call("cudaHostUnregister", memory.ctypes.data)
        if why is not None:
            raise RuntimeError(why)

    def _call(self, name: str, *arguments: int) -> str | None:
        """Call the CUDA runtime; why it failed, if it did."""
        runtime = _cuda.cudart()
        with _cuda.device(self.device):  # else the first device would be used, too
            result = getattr(runtime, name)(*arguments)
        if int(result) == 0:
            return None
        try:  # The error stays with the thread, and the next kernel would be blamed for it.
            torch.ones((), device=self.device)
        except RuntimeError:
            pass
        return f"{name}: {runtime.cudaGetErrorString(result)}"


class Pending(NamedTuple):
    """A mini-batch whose tensors are being copied, or made of copies."""

    values: dict[str, Any]
    tensors: list[torch.Tensor]
    event: Event | None
    device: Device


class Transfer:
    """Brings mini-batches to devices, and keeps what copies read from until they are done.

    A slot of the ring is free when no array looks at it, so all there is to do is to hold the
    views that a copy reads from until its event is reached.

    Parameters
    ----------
    devices : sequence of Device
        One for all mini-batches, or one for each mini-batch of an iteration.
    function : callable, optional
        What is to be done with each mini-batch once it is on its device.
    """

    def __init__(self, devices: Sequence[Device], function: Function | None = None) -> None:
        self._devices = devices
        self._function = function
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._under_way: deque[tuple[Event, list[torch.Tensor]]] = deque()
        self._locked: NDArray[np.uint8] | None = None

    @property
    def ahead(self) -> bool:
        """Whether it is worth while to begin copies before the caller asks for them."""
        return all(device.ahead for device in self._devices)

    @property
    def per_mini_batch(self) -> bool:
        """Whether mini-batches of one iteration go to several devices."""
        return len(self._devices) > 1

    def lock_pages(self, memory: NDArray[np.uint8]) -> None:
        """Page-lock what most copies will read from; it stays mapped until :meth:`close`.

        Warns
        -----
        RuntimeWarning
            If the system refuses it.
        """
        if not memory.size or not self.ahead:
            return
        why = self._devices[0].lock_pages(memory)
        if why is None:
            self._locked = memory
        else:
            warnings.warn(
                f"The {memory.nbytes:,} bytes of the loader's buffers could not be page-locked "
                f"({why}). Mini-batches are copied to other page-locked memory first, which costs "
                "time of the processor. Likely cause: a limit of the container or virtual machine; "
                "fewer buffers (shared_memory=n) or a smaller batch_size need less.",
                RuntimeWarning,
                stacklevel=2,
            )

    def begin(self, mini_batch: dict[str, Any], part: int = 0) -> Pending:
        """Begin to copy the arrays and tensors of a mini-batch.

        What is begun early may be used when the caller has left its ``inference_mode``.

        Parameters
        ----------
        mini_batch : dict
            As the engine made it.
        part : int
            Which mini-batch of its iteration it is.
        """
        device = self._devices[part if self.per_mini_batch else 0]
        values: dict[str, Any] = {}
        sources: dict[str, torch.Tensor] = {}
        for name, value in mini_batch.items():
            tensor = as_tensor(value)
            if tensor is not None and not _is_plain(tensor):
                value = tensor.to(device.device)
            elif tensor is not None:
                sources[name] = tensor
            elif isinstance(value, np.ndarray) and device.copies:
                value = value.copy()  # else it would keep the slot as long as the caller keeps it
            values[name] = value
        held = list(sources.values())
        with torch.inference_mode(False) if device.ahead else _NOTHING:
            tensors, event = self._copy(device, held)
            values.update(zip(sources, tensors, strict=True))
            if self._function is not None:
                with named(f"crumpets_like: augment on {device.device}"):
                    values, event = device.apply(self._function, values)
                tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
        return Pending(values, tensors, event, device)

    def _copy(
        self, device: Device, held: list[torch.Tensor]
    ) -> tuple[list[torch.Tensor], Event | None]:
        with named(f"crumpets_like: copy to {device.device}") if device.copies else _NOTHING:
            tensors, event = device.copy(held)
        if event is not None:
            self._under_way.append((event, held))
        return tensors, event

    def finish(self, pending: Pending) -> dict[str, Any]:
        """The mini-batch, for the caller to use at once."""
        pending.device.hand_over(pending.tensors, pending.event)
        return pending.values

    def release(self) -> None:
        """Let go of what has been copied."""
        with self._lock:
            while self._under_way and self._under_way[0][0].query():
                self._under_way.popleft()

    def wait(self) -> bool:
        """Wait until one more copy is done; False if none is under way."""
        try:
            event, _ = self._under_way[0]
        except IndexError:
            return False
        event.synchronize()
        self.release()
        return True

    def close(self) -> None:
        """Wait for the copies under way and unlock the pages. May be repeated."""
        if os.getpid() != self._owner:  # a forked child of the user, where CUDA does not work
            return
        with self._lock:
            locked, self._locked = self._locked, None
        try:
            for device in self._devices:
                device.synchronize()
            if locked is not None:
                self._devices[0].unlock_pages(locked)
        except RuntimeError as error:  # such as a kernel of the caller that broke the context
            logger.warning("the device failed while the loader was stopped: %s", str(error))
        self._under_way.clear()


def as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor that looks at the same bytes; None if torch has nothing like it.

    So it is for arrays of dates, strings, records, long doubles or foreign byte order, for masked
    arrays and the like, and for all that is neither array nor tensor.
    """
    if isinstance(value, torch.Tensor):
        return value
    if type(value) is np.ndarray:  # others know more than their bytes
        try:
            return torch.from_numpy(value)
        except (TypeError, ValueError):  # the dtype, the byte order
            return None
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes: a sparse one cannot be page-locked, nor recorded."""
    return tensor.layout is torch.strided and not tensor.is_nested


def check_devices(device: Any, num_mini_batches: int) -> list[torch.device]:
    """One device for all mini-batches of an iteration, or one for each.

    Parameters
    ----------
    device : torch.device, str, int, None, or list of these
        None: the first CUDA device if there is one, else the CPU.
    num_mini_batches : int
        As many as a list must have devices.

    Raises
    ------
    TypeError, ValueError
        If a device is none, or is not there; if a list has another length.
    """
    if not isinstance(device, list | tuple):
        return [_check_device(device)]
    if len(device) != num_mini_batches:
        raise ValueError(
            f"device must be one device or as many as num_mini_batches, got {len(device)} devices "
            f"({device!r}) and num_mini_batches={num_mini_batches}."
        )
    return [_check_device(one) for one in device]


def _check_device(device: Any) -> torch.device:
    there = [*_accelerators(), torch.device("cpu", 0)]
    if device is None:
        found = next(one for one in there if one.type != "mps")
    else:
        try:
            found = torch.device(device)
        except RuntimeError as error:
            raise ValueError(f"device {device!r} is no device of torch: {error}") from None
    if torch.device(found.type, found.index or 0) not in there:
        raise ValueError(
            f"device {str(device)!r} is not there: torch {torch.__version__} finds "
            f"{', '.join(map(str, there))}. device=None takes cuda:0 if there is one, else cpu."
        )
    return torch.device("cpu") if found.type == "cpu" else found  # to "cpu:0" torch would copy


def _accelerators() -> list[torch.device]:
    mps = [torch.device("mps", 0)] if torch.backends.mps.is_available() else []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)] + mps


def open_devices(devices: Sequence[torch.device]) -> list[Device]:
    """What copies to each of them; a device that is named twice has one stream."""
    opened: dict[torch.device, Device] = {}
    for device in devices:
        if device not in opened:
            opened[device] = (CudaDevice if device.type == "cuda" else Device)(device)
    return [opened[device] for device in devices]


def named(name: str) -> Any:
    """A range with this name in ``torch.profiler``; nothing where no profiler runs."""
    if _profiler_enabled():
        return torch.profiler.record_function(name)
    return _NOTHING
