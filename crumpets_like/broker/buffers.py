"""What one mini-batch looks like in memory.

:class:`BufferSpec` describes one field of a mini-batch, :class:`SlotLayout` places
all fields of a mini-batch in one slot of the ring, and :class:`IntegerRows` is the
view through which workers write integers: it refuses values that do not fit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .segment import ALIGNMENT, align

__all__ = ["BufferSpec", "IntegerRows", "IntegerScalar", "SlotLayout"]

_PAGE = 4096


class BufferSpec:
    """Shape, dtype and fill value of one sample's field.

    Parameters
    ----------
    shape : sequence of int
        Shape of one sample, without the mini-batch axis; may be ``()``.
    dtype : numpy dtype
        Any dtype without Python objects.
    fill_value : scalar or array_like, optional
        What a row holds before `prepare` writes to it. A sequence is padded with
        unit dimensions on the right: ``(1, 2, 3)`` for ``(3, H, W)`` is one value
        per channel. Without it rows are zero when they are new and are not reset:
        `prepare` must then write every element.

    Raises
    ------
    TypeError, ValueError
        If the shape, the dtype or the fill value cannot be used; the text names it.
    """

    def __init__(self, shape: Sequence[int], dtype: DTypeLike, fill_value: Any = None) -> None:
        try:
            self.shape = tuple(map(operator.index, shape))
        except TypeError:
            raise TypeError(
                f"shape must be a sequence of integers such as (3, 224, 224), got {shape!r}."
            ) from None
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"shape must not have negative extents, got {shape!r}.")
        self.dtype = np.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(
                f"dtype must not hold Python objects, got {self.dtype}; append such values to "
                "`batch`."
            )
        if not self.dtype.itemsize:
            raise ValueError(
                f"dtype needs a length, since rows have a fixed size: such as "
                f"'{self.dtype.kind}20', got {self.dtype}; or append such values to `batch`."
            )
        self.given_fill = fill_value is not None
        self.fill_value: Any = fill_value if self.given_fill else 0
        self._fill = self._make_fill() if self.given_fill else None

    @classmethod
    def parse(cls, buffer: object) -> BufferSpec:
        """Make a spec from ``(shape, dtype[, fill_value])`` or from a template array."""
        if isinstance(buffer, BufferSpec):
            return buffer
        if isinstance(buffer, np.ndarray):
            return cls(buffer.shape, buffer.dtype, buffer.copy())
        if isinstance(buffer, tuple) and len(buffer) in (2, 3):
            return cls(*buffer)
        raise TypeError(
            "buffer must be (shape, dtype), (shape, dtype, fill_value) or a template array, "
            f"got {buffer!r}."
        )

    def _make_fill(self) -> NDArray[Any]:
        fill = np.asarray(self.fill_value)
        if fill.ndim > len(self.shape):
            raise ValueError(
                f"fill_value has {fill.ndim} dimensions, but shape {self.shape} has only "
                f"{len(self.shape)}."
            )
        if self.dtype.kind in "iu":
            check_range(fill, self.dtype)
        padded = fill.reshape(fill.shape + (1,) * (len(self.shape) - fill.ndim))
        try:
            np.broadcast_to(padded, self.shape)
        except ValueError:
            raise ValueError(
                f"fill_value of shape {fill.shape} does not fit shape {self.shape}: its dimensions "
                "are matched from the left, each equal or 1."
            ) from None
        return padded.astype(self.dtype)

    def fill(self, rows: NDArray[Any]) -> None:
        """Reset `rows`, an array of shape ``(k, *shape)``, if a fill value was given."""
        if self._fill is not None:
            rows[...] = self._fill

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BufferSpec):
            return NotImplemented
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and self.given_fill == other.given_fill
            and bool(np.array_equal(self.fill_value, other.fill_value))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        fill = ""
        if self._fill is not None:
            shown = repr(self.fill_value) if self._fill.size <= 16 else "<array>"
            fill = f", fill_value={shown}"
        return f"BufferSpec({self.shape}, {self.dtype}{fill})"


class IntegerRows(np.ndarray[Any, np.dtype[Any]]):
    """View of integer rows that refuses values outside the dtype.

    Plain numpy wraps integers of another dtype around, and only warns when a NaN
    becomes an integer: wrong labels without an error. Assignments of the same dtype
    and of Python integers (which numpy checks itself) cost no extra look.
    """

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(value) is not int:
            value = np.asarray(value)
            if value.dtype != self.dtype:
                check_range(value, self.dtype)
        _assign(self, key, value)


class IntegerScalar(IntegerRows):
    """The same for a row of one integer, such as a label: as fast as plain numpy.

    Attributes
    ----------
    cell : memoryview
        Of the same integer. A memoryview takes integers that fit, and nothing else.
    """

    __slots__ = ("cell",)
    cell: memoryview

    def __setitem__(self, key: Any, value: Any) -> None:
        if key is ...:
            try:
                self.cell[0] = value
                return
            except (AttributeError, TypeError, ValueError):  # no cell: a view of this array
                pass
        super().__setitem__(key, value)


_assign = np.ndarray.__setitem__


def check_range(values: NDArray[Any], dtype: np.dtype[Any]) -> None:
    """Raise if some of `values` cannot be an integer of `dtype`.

    Raises
    ------
    OverflowError
        For integers outside the dtype.
    ValueError
        For NaN and infinite values, and floats outside the dtype.
    """
    if values.size == 0 or values.dtype.kind == "b" or np.can_cast(values.dtype, dtype, "safe"):
        return
    info = np.iinfo(dtype)
    if values.dtype.kind in "iu":
        low, high = int(values.min()), int(values.max())
        if low < info.min or high > info.max:
            raise OverflowError(
                f"values from {low} to {high} ({values.dtype}) do not fit {dtype}, which holds "
                f"{info.min} to {info.max}."
            )
    elif values.dtype.kind == "f":
        # Python compares its floats and integers exactly; NaN compares false.
        least, most = float(values.min()), float(values.max())
        if not info.min - 1 < least <= most < info.max + 1:
            raise ValueError(
                f"values from {least} to {most} ({values.dtype}) do not fit {dtype}, which holds "
                f"{info.min} to {info.max} and has no NaN."
            )


class SlotLayout:
    """Where the fields of one mini-batch lie in a slot.

    Parameters
    ----------
    specs : mapping of str to BufferSpec
        The fields.
    rows : int
        Most samples of a mini-batch.

    Attributes
    ----------
    stride : int
        Bytes from one slot to the next.
    """

    def __init__(self, specs: Mapping[str, BufferSpec], rows: int) -> None:
        self.specs = dict(specs)
        self.rows = rows
        self._fields: list[tuple[str, BufferSpec, int]] = []
        offset = 0
        for name, spec in self.specs.items():
            self._fields.append((name, spec, offset))
            offset += align(spec.nbytes * rows)
        # Whole pages where it costs little, so that a slot can be given back to the system.
        self.stride = max(ALIGNMENT, align(offset, _PAGE) if offset >= _PAGE else offset)

    def views(self, slot: Any, count: int) -> dict[str, NDArray[Any]]:
        """Arrays of shape ``(count, *shape)`` that look at `slot`, a base array of one slot."""
        return {
            name: np.ndarray((count, *spec.shape), spec.dtype, slot, offset)
            for name, spec, offset in self._fields
        }

    def rows_at(
        self, memory: Any, slot_offset: int, start: int, count: int
    ) -> dict[str, NDArray[Any]]:
        """Arrays of rows ``start`` to ``start + count`` of the slot at `slot_offset`."""
        return {
            name: np.ndarray(
                (count, *spec.shape), spec.dtype, memory, slot_offset + offset + start * spec.nbytes
            )
            for name, spec, offset in self._fields
        }
