"""Values that workers return, on their way to the caller.

All values of a part of a mini-batch are one pickle of protocol 5. The bytes of large arrays (and
of torch's tensors) are not in it: they lie in the slot of the mini-batch, or in a frame of their
own, and only their places are sent. Types are kept, and so are byte orders.
"""

from __future__ import annotations

import contextlib
import copyreg
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

from .pickling import cloud_pickler, dump_with
from .segment import ALIGNMENT, RingGeometry, align
from .tensors import reducers

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

_SMALL = 1 << 12  # bytes: fewer are cheaper in the pickle than in a place of their own
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

    def rewinder(self) -> Callable[[], None]:
        """A function that gives back what was taken since this call."""
        state = self._next, self.wanted, dict(self._placed)

        def rewind() -> None:
            self._next, self.wanted, self._placed = state

        return rewind

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
    """One attempt: another one, with another pickler, needs another encoder."""

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena
        # Of the pickle's buffers: offset and bytes in the slot; None: in a frame of its own.
        self._places: list[tuple[int, int] | None] = []
        self._frames: list[Frame] = []

    def encode(
        self, columns: dict[str, Any], kind: type[pickle.Pickler], table: Mapping[type, Any]
    ) -> list[Frame]:
        """Pickle by pickle's or cloudpickle's pickler, which brings the table of its reducers."""
        ours: dict[type, Any] = {
            np.ndarray: self._reduce,
            np.memmap: self._reduce,
            memoryview: _reduce_view,
        }
        stream = dump_with(kind, columns, {**table, **ours, **reducers()}, self._keep_in_band)
        if not self._places:
            return [stream]
        return [stream, msgpack.packb(self._places), *self._frames]

    def _reduce(self, array: NDArray[Any]) -> Any:
        if not _is_raw(array):
            return array.__reduce_ex__(5)
        if array.dtype.kind in "mM":  # numpy's own pickle has no buffers for dates
            return _dates, (array.view(np.int64), array.dtype.str)
        return self._own(array).__reduce_ex__(5)

    def _own(self, array: NDArray[Any]) -> NDArray[Any]:
        """The same values where pickle can take them from as they are: in the slot, if they fit."""
        if self._arena is not None and array.nbytes >= _SMALL:
            if self._arena.find(array) is not None:
                return array
            if place := self._arena.place(array.shape, array.dtype):
                place[0][...] = array
                return place[0]
        flags = array.flags
        if type(array) is np.ndarray and flags.c_contiguous and flags.writeable:
            return array
        return np.array(array, order="C", subok=False)

    def _keep_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        data = np.frombuffer(buffer.raw(), np.uint8)
        if data.nbytes < _SMALL:
            return True
        offset = self._arena.find(data) if self._arena else None
        if offset is not None:
            self._places.append((offset, data.nbytes))
        else:
            self._frames.append(data)
            self._places.append(None)
        return False


def _dates(numbers: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    return numbers.view(dtype)


def _reduce_view(view: memoryview) -> tuple[type[bytes], tuple[bytes]]:
    return bytes, (bytes(view),)


def encode(columns: dict[str, Any], arena: Arena | None) -> list[Frame]:
    """Encode named values as frames; no frame at all for an empty dict.

    Raises
    ------
    Exception
        Whatever pickling a value raises.
    """
    if not columns:
        return []
    rewind = arena.rewinder() if arena else None
    try:
        return _Encoder(arena).encode(columns, pickle.Pickler, copyreg.dispatch_table)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        if rewind is not None:
            rewind()
        kind = cloud_pickler()
        return _Encoder(arena).encode(columns, kind, kind.dispatch_table)


def decode(frames: Sequence[Any], base: NDArray[np.uint8] | None) -> dict[str, Any]:
    """Decode what :func:`encode` made; arrays in the slot become views of `base`."""
    if not frames:
        return {}
    if len(frames) == 1:
        return pickle.loads(frames[0])  # type: ignore[no-any-return]
    stream, places, *others = frames
    others.reverse()
    buffers = [
        bytearray(others.pop()) if place is None else np.ndarray(place[1], np.uint8, base, place[0])
        for place in msgpack.unpackb(places)
    ]
    return pickle.loads(stream, buffers=buffers)  # type: ignore[no-any-return]


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
