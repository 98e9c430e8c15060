"""How the samples of a batch become one: :func:`default_batchify_fn`."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["default_batchify_fn"]


def default_batchify_fn(data: list[Any]) -> Any:
    """Stack samples, with the semantics of gluon 1.9.1 and numpy's arrays in the place of its own.

    Parameters
    ----------
    data : list
        Samples: numbers, or arrays, tensors or lists of one shape; or tuples of these.

    Returns
    -------
    ndarray of shape (len(data), *shape), or list
        For tuples, a list of what becomes of all first items, all second items, and so on. Arrays
        keep their dtype; Python integers become int64, floats float64.

    Raises
    ------
    ValueError
        If the samples do not have one shape, or tuples one length.
    TypeError
        If they are no numbers, strings, arrays or lists of these.
    """
    first = data[0]
    if isinstance(first, tuple):
        lengths = dict.fromkeys(len(sample) for sample in data)
        if len(lengths) > 1:
            raise ValueError(
                f"default_batchify_fn needs tuples of one length, but those of this batch have "
                f"the lengths {', '.join(map(str, lengths))}."
            )
        return [default_batchify_fn(list(items)) for items in zip(*data, strict=True)]
    try:
        if hasattr(first, "__array__") and not isinstance(first, np.generic):
            batch = np.stack([np.asarray(sample) for sample in data])
        else:
            batch = np.asarray(data)
    except ValueError as error:
        raise ValueError(
            f"default_batchify_fn stacks samples of one shape ({error}): let the dataset pad or "
            "crop them, or give a batchify_fn."
        ) from None
    if batch.dtype.hasobject:
        raise TypeError(
            "default_batchify_fn makes arrays of numbers or strings, but a sample is a "
            f"{type(first).__name__}: {first!r:.80}. Give a batchify_fn."
        )
    return batch
