"""torch's tensors on their way through the ring: as arrays, which are not copied into a pickle.

Nothing here imports torch: where it is not imported yet, there are no tensors.
"""

from __future__ import annotations

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
    import torch

    whole = (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )
    return _reduce(tensor) if whole else tensor.__reduce_ex__(5)


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
        tensor.layout is not torch.strided
        or tensor.device.type == "meta"
        or tensor.is_quantized
        or tensor.requires_grad
        or tensor.__dict__
    ):
        return tensor.__reduce_ex__(5)
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    try:
        return _from_array, (tensor.numpy(),)
    except TypeError:  # a dtype that numpy does not have, such as bfloat16
        data = tensor.reshape(-1).view(torch.uint8).numpy()
        return _from_bytes, (data, tensor.dtype, tuple(tensor.shape))


def _from_array(array: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)


def _from_bytes(data: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(data).view(dtype).reshape(shape)
