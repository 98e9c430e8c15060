"""Arrays in packed samples, as msgpack-numpy writes them.

Its own decoder is not used: it unpickles, and takes bytes for the addresses of objects, so that a
sample from elsewhere could run code or crash the worker.
"""

import math
import re
from typing import Any

import numpy as np

__all__ = ["decode_packed"]

_DTYPE = re.compile(r"[<>|=]?\w{1,20}(\[\w{1,20}\])?")
_KINDS = "biufcmMSUV"  # of values that lie in the array itself


def decode_packed(packed: dict[Any, Any]) -> Any:
    """Return the array, the number or the complex number that `packed` describes.

    Parameters
    ----------
    packed : dict
        Any mapping out of msgpack. One that describes none of these is returned as it is.

    Raises
    ------
    ValueError
        If the description is wrong, or of an array of objects. The text has none of its values.
    """
    if b"nd" in packed:
        try:
            return _array(packed)
        except (IndexError, KeyError, OverflowError, RecursionError, TypeError) as error:
            raise ValueError(
                f"it has a malformed description of an array ({type(error).__name__})"
            ) from None
    if b"complex" in packed:
        try:
            text = packed[b"data"]
            return complex(text.decode() if isinstance(text, bytes) else text)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError("it has a malformed complex number") from None
    return packed


def _array(packed: dict[Any, Any]) -> Any:
    if packed.get(b"kind") == b"O":
        raise ValueError("it has an array of pickled objects, which are not loaded")
    try:
        dtype = _dtype(packed[b"type"])
    except ValueError:  # whose text may have names of the fields
        raise TypeError from None
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise ValueError("it has an array of objects, which are not loaded")
    if packed[b"nd"] is True:
        shape = tuple(packed[b"shape"])
    elif packed[b"nd"] is False:
        shape = ()
    else:
        raise TypeError
    data = packed[b"data"]
    if type(data) is not bytes or any(type(extent) is not int or extent < 0 for extent in shape):
        raise TypeError
    # A dtype of no bytes would allow any shape.
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(
            f"it has an array whose shape and dtype do not fit its {len(data):,} bytes of data"
        )
    array: Any = np.ndarray(shape, dtype, data)
    return array if packed[b"nd"] else array[()]


def _dtype(described: Any) -> np.dtype[Any]:
    """Make a dtype of its name, or of the names, dtypes and shapes of a record's fields."""
    if isinstance(described, list | tuple):
        fields = [
            (_text(name), _dtype(inner), *(tuple(shape) for shape in rest))
            for name, inner, *rest in described
        ]
        return np.dtype(fields)
    name = _text(described)
    if not _DTYPE.fullmatch(name):
        raise TypeError
    return np.dtype(name)


def _text(name: Any) -> str:
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    if not isinstance(text, str):
        raise TypeError
    return text
