"""Values that callers give: which of them count, and copying them into bound arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..device import as_tensor

__all__ = ["Copies", "array_of", "check_value", "checked"]

_cuda: Any = torch.cuda  # parts of it have no types


def array_of(value: Any) -> Tensor | None:
    """A tensor with the values of a tensor or a numpy array of numbers; None of anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
        value = np.asarray(value)  # such as a memory map
        steps, size = value.strides, value.dtype.itemsize
        if value.dtype == np.longdouble:
            value = value.astype(np.float64)
        elif not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        elif not value.flags.writeable or any(step < 0 or step % max(size, 1) for step in steps):
            value = value.copy()  # torch would warn of it, or refuse it
    return as_tensor(value)


def check_value(name: str, array: Tensor, value: Tensor) -> None:
    """Refuse a value that cannot be copied into an array.

    Raises
    ------
    ValueError
        With what both are.
    """
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
        raise ValueError(f"Argument {name} takes plain, dense tensors, received: {kind}")
    if value.shape != array.shape:
        rows, most = value.shape[:1], array.shape[:1]
        short = rows < most and value.shape[1:] == array.shape[1:]
        raise ValueError(
            f"Shape not match! Argument {name}, need: {tuple(array.shape)}, "
            f"received: {tuple(value.shape)}"
            + ". For the short last mini-batch of an epoch there is allow_short=True."
            * short
        )
    if value.is_meta and not array.is_meta:
        raise ValueError(f"Argument {name} takes values, received a tensor on meta, which has none")


def checked(
    given: Mapping[str, Any], bound: Mapping[str, Tensor], strict: bool
) -> dict[str, Tensor]:
    """The arrays among what is given that are for a bound argument.

    Raises
    ------
    ValueError, TypeError
        For what is no array, and for unknown names. If it is not `strict`, unknown names are
        ignored, and so are lists; what else is given for a bound name would not be seen to lack.
    """
    values = {}
    for name, value in given.items():
        if name not in bound and not strict:
            continue
        tensor = array_of(value)
        if tensor is not None and name in bound:
            values[name] = tensor
        elif tensor is not None:
            raise TypeError(f"Unknown argument {name}")
        elif strict or not isinstance(value, list | tuple):
            kind = f" (dtype {value.dtype})" if isinstance(value, np.ndarray) else ""
            raise ValueError(
                "only accept keyword argument of torch.Tensor and numpy.ndarray, got "
                f"{type(value).__name__} for {name}{kind}"
            )
    return values


class Copies:
    """Copies into bound arrays; from page-locked memory they go on beside the caller's work."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._held: list[Tensor] = []

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copy into arrays, given as (array, source)."""
        if self._events:
            self._wait()
        devices = set()
        try:
            with torch.no_grad():
                for array, source in pairs:
                    ahead = array.is_cuda and source.is_pinned()
                    if ahead:  # a loader fills a buffer again as soon as nothing looks at it
                        self._held.append(source)
                        devices.add(array.device)
                    array.copy_(source, non_blocking=ahead)
        finally:  # the first copy is under way, too, if the second fails
            for device in devices:
                event = _cuda.Event()
                event.record(_cuda.current_stream(device))
                self._events.append(event)

    def _wait(self) -> None:
        """Wait for what is under way."""
        for event in self._events:
            event.synchronize()
        self._events.clear()
        self._held.clear()

    def __del__(self) -> None:
        self._wait()
