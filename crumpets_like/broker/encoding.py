"""Values that workers return, on their way to the caller.

Plain Python values are msgpack, small numpy values msgpack-numpy inside an extension,
larger arrays lie in the slot of their mini-batch (or in a frame of their own) and only
their place is sent. Everything else is a pickle extension of protocol 5, whose buffers
lie in the slot as well. Types are kept: a tuple comes back as a tuple (but a bytearray as bytes).
"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgpack
import msgpack_numpy
import numpy as np
from numpy.typing import NDArray

from .pickling import dump_object
from .segment import ALIGNMENT, RingGeometry, align

__all__ = [
    "Arena",
    "Shares",
    "collate",
    "decode",
    "different_keys",
    "encode",
    "join",
    "stack_or_list",
    "stack_part",
]

Frame: TypeAlias = bytes | memoryview | NDArray[Any]

_NUMPY, _PICKLE, _ARRAY_IN_SLOT, _ARRAY_IN_FRAME = 1, 2, 3, 4
_SMALL = 1 << 12  # bytes: below, one message is cheaper than a place in a slot
_RAW_KINDS = "biufcmMSU"
_PLAIN_ARRAYS = (np.ndarray, np.memmap)  # other subclasses know more: masks, units


class Arena:
    """A part of a slot from which one chunk takes memory, front to back.

    Results that are made in an array of :meth:`place` are not copied when they are encoded.
    """

    def __init__(self, memory: Any, slot_offset: int, start: int, stop: int) -> None:
        self._memory = memory
        self._slot_offset = slot_offset
        self._next = align(start)
        self._stop = stop
        self.wanted = 0  # bytes of all arrays, those that did not fit included
        self._placed: dict[int, tuple[int, int]] = {}  # address: bytes, offset

    def place(self, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[NDArray[Any], int] | None:
        """An uninitialised array and its offset in the slot; None if it does not fit."""
        array_bytes = math.prod(shape) * dtype.itemsize
        offset = self._next
        self.wanted += align(max(array_bytes, ALIGNMENT))
        if offset + array_bytes > self._stop:
            return None
        self._next = align(offset + max(array_bytes, ALIGNMENT))
        array = np.ndarray(tuple(shape), dtype, self._memory, self._slot_offset + offset)
        self._placed[_address(array)] = array_bytes, offset
        return array, offset

    def find(self, array: NDArray[Any]) -> int | None:
        """Offset in the slot of an array that is, bytes and all, one that was placed."""
        array_bytes, offset = self._placed.get(_address(array), (-1, 0))
        return offset if array_bytes == array.nbytes and array.flags.c_contiguous else None


class Shares:
    """Divides slots among the parts of a mini-batch whose sizes are not known before.

    Parameters
    ----------
    memory : buffer
        The ring's mapping.
    geometry : RingGeometry
        Its sizes.
    """

    def __init__(self, memory: Any, geometry: RingGeometry) -> None:
        self._memory = memory
        self._geometry = geometry
        self._row_bytes = 0  # most bytes of arrays per sample

    def arena(self, slot: int, rows: int, start: int, size: int) -> Arena:
        """What belongs to `size` of the `rows` of a mini-batch, from `start` on."""
        share = self._share(rows)
        offset = self._geometry.offset(slot)
        first, stop = (share + share * row // rows for row in (start, start + size))
        return Arena(self._memory, offset, first, stop)

    def note(self, arena: Arena, size: int) -> None:
        """So much was needed for `size` samples."""
        self._row_bytes = max(self._row_bytes, -(-arena.wanted // size))

    def _share(self, rows: int) -> int:
        """Bytes of a slot to divide among the rows of a mini-batch: a power of two.

        Share n lies at n, so that workers of different opinions do not meet; and it is not much
        larger than what is needed, since parts at other places would touch ever more of the slot.
        """
        most = 1 << ((self._geometry.stride // 2).bit_length() - 1)
        if not self._row_bytes:  # nothing is known yet
            return most
        return min(most, 1 << (2 * rows * self._row_bytes - 1).bit_length())


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class _Encoder:
    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        self.frames: list[Frame] = []

    def pack(self, obj: Any) -> Any:
        try:
            # No packer is kept: it and this object would be a cycle that keeps the arrays.
            return msgpack.packb(obj, default=self._extension, strict_types=True)
        except (OverflowError, ValueError, RecursionError):  # huge integers, lone surrogates, depth
            return msgpack.packb(self._pickle(obj))

    def _extension(self, obj: Any) -> msgpack.ExtType:
        if type(obj) in _PLAIN_ARRAYS and _is_raw(obj):
            if obj.nbytes < _SMALL and obj.dtype.kind not in "mM":  # which msgpack-numpy cannot
                return msgpack.ExtType(
                    _NUMPY, msgpack_numpy.packb(np.ascontiguousarray(obj).reshape(obj.shape))
                )
            return self._array(obj)
        if isinstance(obj, np.bool_ | np.number):
            # (Not packb, for which np.float64 is a float.)
            return msgpack.ExtType(_NUMPY, msgpack.packb(msgpack_numpy.encode(obj)))
        return self._pickle(obj)

    def _array(self, array: NDArray[Any]) -> msgpack.ExtType:
        facts = [array.dtype.str, array.shape]
        offset = self._arena.find(array) if self._arena else None
        if offset is not None:
            return msgpack.ExtType(_ARRAY_IN_SLOT, msgpack.packb([*facts, offset]))
        place = self._arena.place(array.shape, array.dtype) if self._arena else None
        if place is None:
            self.frames.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
            return msgpack.ExtType(_ARRAY_IN_FRAME, msgpack.packb([*facts, len(self.frames)]))
        target, offset = place
        target[...] = array
        return msgpack.ExtType(_ARRAY_IN_SLOT, msgpack.packb([*facts, offset]))

    def _pickle(self, obj: Any) -> msgpack.ExtType:
        buffers: list[bytes] = []

        def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
            try:
                raw = buffer.raw()
            except BufferError:
                return True
            if raw.nbytes < _SMALL:
                return True
            buffers.append(msgpack.packb(self._array(np.frombuffer(raw, np.uint8))))
            return False

        stream = dump_object(obj, keep_in_band)
        return msgpack.ExtType(_PICKLE, msgpack.packb([stream, buffers]))


def encode(columns: dict[str, Any], arena: Arena | None) -> list[Frame]:
    """Encode named values as frames; no frame at all for an empty dict.

    Raises
    ------
    Exception
        Whatever pickling a value raises.
    """
    if not columns:
        return []
    encoder = _Encoder(arena)
    packed = {}
    for name, value in columns.items():
        key = encoder.pack(name)
        if (
            type(value) is np.ndarray
            and value.dtype.kind in _RAW_KINDS
            and value.dtype.names is None
        ):
            packed[key] = (
                msgpack.packb(encoder._array(value))
                if value.nbytes >= _SMALL
                else encoder.pack(value)
            )
        else:
            packed[key] = encoder.pack(value)
    return [msgpack.packb(packed), *encoder.frames]


class _Decoder:
    """Decodes with references to nothing but its arguments.

    Functions that call each other would be a cycle, which keeps the slot until it is collected.
    """

    def __init__(self, frames: Sequence[Any], base: NDArray[np.uint8] | None) -> None:
        self._frames = frames
        self._base = base

    def unpack(self, data: bytes) -> Any:
        return msgpack.unpackb(data, ext_hook=self._extension, strict_map_key=False)

    def _extension(self, code: int, data: bytes) -> Any:
        if code == _NUMPY:
            value = msgpack_numpy.unpackb(data)
            return value.copy() if isinstance(value, np.ndarray) else value
        if code == _ARRAY_IN_SLOT:
            dtype, shape, offset = msgpack.unpackb(data)
            return np.ndarray(tuple(shape), np.dtype(dtype), self._base, offset)
        if code == _ARRAY_IN_FRAME:
            dtype, shape, number = msgpack.unpackb(data)
            return np.frombuffer(bytearray(self._frames[number]), np.dtype(dtype)).reshape(shape)
        stream, buffers = msgpack.unpackb(data)
        return pickle.loads(stream, buffers=[self.unpack(buffer) for buffer in buffers])


def decode(frames: Sequence[Any], base: NDArray[np.uint8] | None) -> dict[str, Any]:
    """Decode what :func:`encode` made; arrays in the slot become views of `base`."""
    if not frames:
        return {}
    unpack = _Decoder(frames, base).unpack
    return {unpack(key): unpack(data) for key, data in msgpack.unpackb(frames[0]).items()}


def collate(
    results: Sequence[dict[str, Any]], stack: Callable[[list[Any]], Any], first: int = 0
) -> dict[str, Any]:
    """Join dicts key by key; `first` is the number of the first one in its mini-batch.

    Raises
    ------
    ValueError
        If they do not have the same keys.
    """
    keys = results[0].keys()
    for number, result in enumerate(results, first):
        if result.keys() != keys:
            raise ValueError(different_keys(result, f"sample {number}", keys, f"sample {first}"))
    return {key: stack([result[key] for result in results]) for key in keys}


def different_keys(keys: Iterable[Any], name: str, others: Iterable[Any], other: str) -> str:
    """Text of the error for samples whose dicts do not have the same keys."""
    return (
        f"process() returned the keys {sorted(map(str, keys))} for {name} of the mini-batch, but "
        f"{sorted(map(str, others))} for {other}: every sample needs the same keys."
    )


def stack_or_list(values: list[Any]) -> Any:
    """Stack equal-shaped arrays, Python numbers and bools; anything else stays a list."""
    first = values[0]
    if isinstance(first, np.ndarray | np.generic):
        if all(_is_raw(value) and value.shape == first.shape for value in values):
            with contextlib.suppress(TypeError):  # dtypes without a common one: dates and numbers
                return np.stack(values)
        return values
    if all(type(value) in (bool, int, float, complex) for value in values):
        array = np.array(values)
        if array.dtype.kind == "f" and float not in map(type, values):
            return values  # integers for which int64 and uint64 are too small would lose digits
        return array if array.dtype.kind in "biufc" else values  # integers beyond 64 bits
    return values


def stack_part(values: list[Any]) -> Any:
    """Stack the values of a part of a mini-batch only where that loses nothing.

    What the values of the whole mini-batch become is seen when all parts are together: by
    :func:`join`, which has to know each of them for that.
    """
    first = values[0]
    if (
        _is_raw(first)
        and (first.ndim or isinstance(first, np.generic))
        and first.dtype.isnative
        and all(
            type(value) is type(first) and (value.dtype, value.shape) == (first.dtype, first.shape)
            for value in values
        )
    ):
        return np.stack(values)
    return values


def _is_raw(value: Any) -> bool:
    """Whether a value is an array (or numpy scalar) that is nothing but its bytes and dtype."""
    return (
        (type(value) in _PLAIN_ARRAYS or isinstance(value, np.generic))
        and value.dtype.kind in _RAW_KINDS
        and value.dtype.names is None
    )


def join(columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the free-form columns of a mini-batch's parts, as if there had been one part.

    The parts are collated by :func:`stack_part`, and have the same keys.
    """
    joined: dict[str, Any] = {}
    for key in columns[0]:
        pieces = [column[key] for column in columns]
        arrays = [piece for piece in pieces if isinstance(piece, np.ndarray)]
        if len(arrays) == len(pieces) and len({array.shape[1:] for array in arrays}) == 1:
            with contextlib.suppress(TypeError):  # dtypes without a common one
                joined[key] = np.concatenate(arrays)
                continue
        joined[key] = stack_or_list([value for piece in pieces for value in piece])
    return joined
