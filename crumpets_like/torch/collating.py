"""torch's default collate, with less work for the usual samples.

Columns of equal arrays, tensors or numbers are joined at once, large ones straight in the ring.
Anything else is left to torch's own function, so results are the same: types, dtypes, values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import (
    collate,
    collate_float_fn,
    collate_int_fn,
    collate_numpy_array_fn,
    collate_numpy_scalar_fn,
    collate_str_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)

from ..broker.encoding import Arena

__all__ = ["collate_fast", "foreign_collate_functions"]

_LARGE = 1 << 12  # bytes: what is smaller is not worth a place in the ring

_TORCH_OWN = {
    collate_float_fn,
    collate_int_fn,
    collate_numpy_array_fn,
    collate_numpy_scalar_fn,
    collate_str_fn,
    collate_tensor_fn,
}


def foreign_collate_functions() -> dict[Any, Callable[..., Any]]:
    """What the user has put into torch's `default_collate_fn_map`."""
    return {
        kind: function
        for kind, function in default_collate_fn_map.items()
        if function not in _TORCH_OWN
    }


def collate_fast(batch: Sequence[Any], arena: Arena | None = None) -> Any:
    """As ``torch.utils.data.default_collate(batch)``.

    Parameters
    ----------
    batch : sequence
        The samples.
    arena : Arena, optional
        Where large results are made; default: anywhere.
    """
    first = batch[0]
    kind = type(first)
    join = _JOIN.get(kind)
    if join is not None:
        if set(map(type, batch)) == {kind}:
            joined = join(batch, arena)
            if joined is not None:
                return joined
    elif kind is dict:
        return {key: collate_fast([d[key] for d in batch], arena) for key in first}
    elif _is_row(first) and set(map(len, batch)) == {len(first)}:
        columns = [collate_fast(column, arena) for column in zip(*batch, strict=True)]
        return columns if kind in (tuple, list) else kind(*columns)
    return collate(batch, collate_fn_map=default_collate_fn_map)


def _is_row(sample: Any) -> bool:
    """Whether it is a tuple, list or named tuple."""
    return type(sample) in (tuple, list) or (
        isinstance(sample, tuple) and hasattr(sample, "_fields")
    )


def _place(shape: tuple[int, ...], dtype: Any, arena: Arena | None) -> NDArray[Any] | None:
    nbytes = math.prod(shape) * dtype.itemsize
    placed = arena.place(shape, dtype) if arena is not None and nbytes >= _LARGE else None
    return None if placed is None else placed[0]


def _join_arrays(batch: Sequence[NDArray[Any]], arena: Arena | None) -> Any:
    first = batch[0]
    shape, dtype = first.shape, first.dtype
    if dtype not in _DTYPES or not shape or {array.shape for array in batch} != {shape}:
        return None
    if {array.dtype for array in batch} != {dtype}:
        return None
    joined = _place((len(batch), *shape), dtype, arena)
    if joined is None:
        joined = np.empty((len(batch), *shape), dtype)
    np.concatenate(batch, out=joined.reshape(len(batch) * shape[0], *shape[1:]))
    return torch.from_numpy(joined)


def _join_tensors(batch: Sequence[torch.Tensor], arena: Arena | None) -> Any:
    first = batch[0]
    if first.layout is not torch.strided or first.device.type != "cpu" or first.is_nested:
        return None
    if {(t.dtype, t.shape, t.requires_grad, t.device) for t in batch} != {
        (first.dtype, first.shape, False, first.device)
    }:
        return None
    dtype = _NUMPY_DTYPES.get(first.dtype)
    joined = None if dtype is None else _place((len(batch), *first.shape), dtype, arena)
    if joined is None:
        return torch.stack(tuple(batch))
    return torch.stack(tuple(batch), out=torch.from_numpy(joined))


def _join_scalars(batch: Sequence[Any], arena: Arena | None) -> Any:
    return torch.from_numpy(np.array(batch))


def _join_floats(batch: Sequence[float], arena: Arena | None) -> Any:
    return torch.from_numpy(np.array(batch, np.float64))


def _join_integers(batch: Sequence[int], arena: Arena | None) -> Any:
    joined = np.array(batch)
    return torch.from_numpy(joined) if joined.dtype == np.int64 else None


def _join_texts(batch: Sequence[Any], arena: Arena | None) -> Any:
    return batch


def _usable(code: str) -> bool:
    try:
        torch.from_numpy(np.empty(0, code))
    except TypeError:
        return False
    return True


_DTYPES = {np.dtype(code) for code in "?bBhHiIlLqQefdFD" if _usable(code)}
_NUMPY_DTYPES = {torch.from_numpy(np.empty(0, dtype)).dtype: dtype for dtype in _DTYPES}
_JOIN: dict[type, Callable[[Any, Arena | None], Any]] = {
    np.ndarray: _join_arrays,
    torch.Tensor: _join_tensors,
    **{dtype.type: _join_scalars for dtype in _DTYPES - {np.dtype(np.uint64)}},  # as torch
    bool: _join_scalars,
    float: _join_floats,
    int: _join_integers,
    str: _join_texts,
    bytes: _join_texts,
}
