"""Batches in page-locked memory, as torch's tensors. The one module here that needs torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arguments import check_count

__all__ = ["make_pin"]


def make_pin(device_id: int) -> Callable[[Any], Any]:
    """Return the function that makes tensors of a batch's arrays, lists and tuples becoming lists.

    Page-locked memory is what a CUDA device copies from without the processor's help. Where there
    is no such device, a warning says so, and tensors share the memory of the arrays.

    Parameters
    ----------
    device_id : int
        The CUDA device that the memory is locked for.

    Raises
    ------
    ImportError
        If torch is not installed.
    TypeError, ValueError
        If `device_id` is no integer, or there are CUDA devices, but not this one.
    """
    device_id = check_count("pin_device_id", device_id, 0)
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            "pin_memory=True gives torch's tensors, but torch is not installed: "
            "pip install 'crumpets-like[torch]' brings it."
        ) from error
    if not torch.cuda.is_available():
        warnings.warn(
            "pin_memory=True, but torch finds no CUDA device, and only CUDA has page-locked "
            "memory: batches are tensors in ordinary memory.",
            stacklevel=3,
        )
        return _convert
    count = torch.cuda.device_count()
    if device_id >= count:
        raise ValueError(
            f"pin_device_id must be less than {count}, the number of CUDA devices, got {device_id}"
        )

    return partial(_convert_and_pin, device_id)


def _convert_and_pin(device_id: int, batch: Any) -> Any:
    import torch

    with torch.cuda.device(device_id):
        return _pin(_convert(batch))


def _convert(batch: Any) -> Any:
    """The batch with tensors in place of arrays, which share their memory."""
    import torch

    if isinstance(batch, np.ndarray):
        try:
            return torch.from_numpy(_usable(batch))
        except TypeError:  # a dtype that torch does not have, such as str
            return batch
    return _map(_convert, batch)


def _usable(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy that torch can take: writable, without negative strides, native."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _pin(batch: Any) -> Any:
    import torch

    return batch.pin_memory() if isinstance(batch, torch.Tensor) else _map(_pin, batch)


def _map(function: Callable[[Any], Any], batch: Any) -> Any:
    """Apply a function to the items of a list, tuple or dict; anything else stays as it is."""
    if isinstance(batch, list | tuple):
        return [function(item) for item in batch]
    if isinstance(batch, dict):
        return {key: function(item) for key, item in batch.items()}
    return batch
