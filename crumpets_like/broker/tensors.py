"""torch's tensors on their way through the ring: as arrays, which are not copied into a pickle.

Nothing here imports torch: where it is not imported yet, there are no tensors.
"""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the broker imports this before it needs numpy
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["reducers", "whole_reducers"]


def reducers() -> dict[type, Callable[[Any], Any]]:
    """How to pickle tensors, for the `dispatch_table` of a pickler; empty without torch."""
    torch: Any = sys.modules.get("torch")
    return {torch.Tensor: _reduce} if hasattr(torch, "Tensor") else {}


def whole_reducers() -> dict[type, Callable[[Any], Any]]:
    """The same for datasets: tensors that share their memory with others go on sharing it."""
    torch: Any = sys.modules.get("torch")
    return {torch.Tensor: _reduce_whole} if hasattr(torch, "Tensor") else {}


def _reduce_whole(tensor: Any) -> Any:
    whole = (
        tensor.device.type == "cpu"
        and _is_plain(tensor)
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )
    return _reduce(tensor) if whole or not _torch_pickles(tensor.dtype) else tensor.__reduce_ex__(5)


def _is_plain(tensor: Any) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_nested


@functools.cache
def _torch_pickles(dtype: Any) -> bool:
    """Whether torch can load what its tensors of a type pickle to: not so for all of them."""
    import torch

    try:
        pickle.loads(pickle.dumps(torch.empty(1, dtype=dtype)))
    except Exception:  # noqa: BLE001  AttributeError today, of a module's inner parts
        return False
    return True


def _reduce(tensor: Any) -> Any:
    """As its bytes; tensors that are more than that (sparse, part of a graph) as torch does it.

    Raises
    ------
    RuntimeError
        If it is not in the memory of this machine.
    """
    import torch

    if tensor.device.type not in ("cpu", "meta"):
        raise RuntimeError(
            f"a worker returned a tensor on {tensor.device}: workers prepare samples in the memory "
            "of the machine and must not use a device (its driver does not survive a fork, and "
            "each worker would take memory there). Return CPU tensors; the loader moves "
            "mini-batches to the device."
        )
    if (
        not _is_plain(tensor)
        or tensor.device.type == "meta"
        or tensor.is_quantized
        or tensor.requires_grad
        or tensor.__dict__
    ):
        return tensor.__reduce_ex__(5)
    tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        # Other orders of the dimensions, such as channels_last, are kept.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        if tensor.permute(order).is_contiguous():
            inverse = sorted(range(tensor.dim()), key=order.__getitem__)
            return torch.Tensor.permute, (tensor.permute(order), inverse)
    tensor = tensor.contiguous()
    try:
        return _from_array, (tensor.numpy(),)
    except TypeError:  # a dtype that numpy does not have, such as bfloat16
        flat = tensor.as_strided((tensor.numel(),), (1,))  # one value may have any stride
        data = flat.view(torch.uint8).numpy()
        return _from_bytes, (data, tensor.dtype, tuple(tensor.shape))


def _from_array(array: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)


def _from_bytes(data: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape)
