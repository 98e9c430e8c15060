"""The rows that `prepare` and `prepare_batch` write to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from numpy.typing import NDArray

from .buffers import IntegerRows, IntegerScalar, SlotLayout

__all__ = ["RowBuffers", "RowWriter"]

_SMALL_ROW = 2048  # bytes: a copy costs less than making views of the row
_MOST_SCRATCH = 4096  # rows with views of their own


class RowBuffers(dict[str, NDArray[Any]]):
    """Named rows to write to; the rows themselves cannot be exchanged."""

    def __setitem__(self, key: str, value: Any) -> None:
        if value is not self.get(key):  # as it is after buffers["x"] /= 2
            raise TypeError(
                f"buffers[{key!r}] = ... would put another array in the dict and leave the "
                f"mini-batch as it is: write into it with buffers[{key!r}][...] = value."
            )

    def __missing__(self, key: str) -> NoReturn:
        known = ", ".join(map(repr, self)) or "none"
        raise KeyError(f"there is no buffer {key!r}, the buffers are: {known}; see add_buffer")


class _Rows(Sequence[RowBuffers]):
    """Rows that are made when they are asked for."""

    def __init__(self, size: int, make: Callable[[int], RowBuffers]) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[RowBuffers]:
        return map(self._make, range(self._size))

    def __getitem__(self, row: Any) -> Any:
        return self._make(row)


class RowWriter:
    """Gives rows of a slot to write to, one by one or all at once.

    Small rows are written to scratch memory whose views are made once (making two views and a
    dict costs more than many a `prepare`), and copied to the slot all together.

    Parameters
    ----------
    layout : SlotLayout
        The fields.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self._layout = layout
        self._small = sum(spec.nbytes for spec in layout.specs.values()) <= _SMALL_ROW
        self._scratch: dict[str, NDArray[Any]] = {}
        self._scratch_rows: list[RowBuffers] = []

    def all_rows(self, memory: Any, slot_offset: int, start: int, size: int) -> RowBuffers:
        """Arrays of shape ``(size, *shape)``, holding their fill values."""
        arrays = self._layout.rows_at(memory, slot_offset, start, size)
        self._fill(arrays)
        return RowBuffers(_checked(arrays))

    def single_rows(self, arrays: RowBuffers, size: int) -> Sequence[RowBuffers]:
        """The rows of :meth:`all_rows` one by one, each an array of one row."""
        return _Rows(
            size,
            lambda row: RowBuffers({name: array[row : row + 1] for name, array in arrays.items()}),
        )

    def reset(self, rows: RowBuffers) -> None:
        """Give rows their fill values again."""
        self._fill(rows)

    def each_row(
        self, memory: Any, slot_offset: int, start: int, size: int
    ) -> tuple[Sequence[RowBuffers], Callable[[], None]]:
        """Rows one by one, and what to call when all of them are written."""
        arrays = self._layout.rows_at(memory, slot_offset, start, size)
        if not self._small or size > _MOST_SCRATCH:
            self._fill(arrays)
            fields = list(_checked(arrays).items())
            rows = _Rows(size, lambda row: RowBuffers({n: a[row, ...] for n, a in fields}))
            return rows, _nothing
        if size > len(self._scratch_rows) or not self._scratch:
            self._make_scratch(min(2 * size, self._layout.rows, _MOST_SCRATCH))
        scratch = {name: array[:size] for name, array in self._scratch.items()}
        self._fill(scratch)

        def copy() -> None:
            for name, array in arrays.items():
                array[...] = scratch[name]

        return self._scratch_rows, copy

    def _make_scratch(self, rows: int) -> None:
        layout = SlotLayout(self._layout.specs, rows)
        self._scratch = layout.rows_at(bytearray(layout.stride), 0, 0, rows)
        fields = list(_checked(self._scratch).items())
        self._scratch_rows = [
            RowBuffers({n: a[row, ...] for n, a in fields}) for row in range(rows)
        ]
        for name, array in self._scratch.items():
            if array.ndim == 1 and array.dtype.kind in "iu" and array.dtype.isnative:
                for row, buffers in enumerate(self._scratch_rows):
                    scalar = array[row, ...].view(IntegerScalar)
                    scalar.cell = array[row : row + 1].data
                    dict.__setitem__(buffers, name, scalar)

    def _fill(self, arrays: dict[str, NDArray[Any]]) -> None:
        for name, spec in self._layout.specs.items():
            spec.fill(arrays[name])


def _checked(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Views that refuse integers which do not fit."""
    return {
        name: array.view(IntegerRows) if array.dtype.kind in "iu" else array
        for name, array in arrays.items()
    }


def _nothing() -> None:
    """Rows of a slot are written in place."""
