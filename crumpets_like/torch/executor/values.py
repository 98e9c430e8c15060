"""Values that callers give: which of them count, and copying them into bound arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..device import as_tensor

__all__ = ["Copies", "array_of", "check_shape_of", "checked"]

_cuda: Any = torch.cuda  # parts of it have no types


def array_of(value: Any) -> Tensor | None:
    """A tensor with the values of a tensor or a numpy array of numbers; None of anything else."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.ma.MaskedArray):
        value = np.asarray(value)  # such as a memory map
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()  # torch would warn of it, or refuse it
    return as_tensor(value)


def check_shape_of(name: str, array: Tensor, value: Tensor) -> None:
    """Refuse a value that does not fit into an array.

    Raises
    ------
    ValueError
        With both shapes.
    """
    if value.shape != array.shape:
        raise ValueError(
            f"Shape not match! Argument {name}, need: {tuple(array.shape)}, "
            f"received: {tuple(value.shape)}"
        )


def checked(
    given: Mapping[str, Any], bound: Mapping[str, Tensor], strict: bool
) -> dict[str, Tensor]:
    """The arrays among what is given that are for a bound argument.

    Raises
    ------
    ValueError, TypeError
        If it is `strict`: for what is no array, and for unknown names.
    """
    values = {}
    for name, value in given.items():
        tensor = array_of(value)
        if tensor is not None and name in bound:
            values[name] = tensor
        elif strict and tensor is None:
            raise ValueError(
                "only accept keyword argument of torch.Tensor and numpy.ndarray, got "
                f"{type(value).__name__} for {name}"
            )
        elif strict:
            raise TypeError(f"Unknown argument {name}")
    return values


class Copies:
    """Copies into bound arrays; from page-locked memory they go on beside the caller's work."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._held: list[Tensor] = []

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copy into arrays, given as (array, source)."""
        for event in self._events:
            event.synchronize()
        self._events.clear()
        self._held.clear()
        devices = set()
        with torch.no_grad():
            for array, source in pairs:
                ahead = array.is_cuda and source.is_pinned()
                array.copy_(source, non_blocking=ahead)
                if ahead:  # a loader fills a buffer again as soon as nothing looks at it
                    self._held.append(source)
                    devices.add(array.device)
        for device in devices:
            event = _cuda.Event()
            event.record(_cuda.current_stream(device))
            self._events.append(event)
