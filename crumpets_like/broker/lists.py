"""The lists of a mini-batch: one value per sample in each."""

from __future__ import annotations

from typing import Any

__all__ = ["ListCheck", "check_lengths"]


class ListCheck:
    """Checks what `prepare` has appended, sample by sample.

    Parameters
    ----------
    cell : memoryview
        Holds the position of the sample that an error will be about.
    first : int
        Position of the first sample.
    """

    def __init__(self, cell: memoryview, first: int) -> None:
        self._cell = cell
        self._first = first
        self._lists = 0  # that the first sample was appended to

    def check(self, batch: dict[str, list[Any]], row: int) -> None:
        """Look at the lists behind the sample of `row`; samples without any need no look.

        Raises
        ------
        TypeError
            If something else has been put into the place of a list.
        ValueError
            If a list has not got exactly one value for it, or for one before it.
        """
        if row == 0:
            self._lists = len(batch)
        for number, (key, values) in enumerate(batch.items()):
            if type(values) is not list:
                raise TypeError(
                    f"batch[{key!r}] was set to {values!r:.60}, of type {type(values).__name__}: "
                    f"it is the list of all samples, write batch[{key!r}].append(value)."
                )
            if number >= self._lists:
                self._cell[0] = self._first
                raise ValueError(
                    f"batch[{key!r}] has no value for this sample, but for one behind it: prepare "
                    "must append exactly one value per sample to each list."
                )
            if len(values) != row + 1:
                what = "has no value" if len(values) <= row else f"got {len(values) - row} values"
                raise ValueError(
                    f"batch[{key!r}] {what} for this sample: prepare must append exactly one value "
                    "per sample to each list."
                )

    def undo(self, batch: dict[str, list[Any]], row: int) -> None:
        """Take back what was appended for the sample of `row`."""
        if row == 0:
            self._lists = 0
        for number, key in enumerate(list(batch)):
            if number < self._lists and type(batch[key]) is list:
                del batch[key][row:]
            else:  # it is this sample's own
                del batch[key]


def check_lengths(batch: dict[str, list[Any]], rows: int) -> None:
    """ValueError if `prepare_batch` has not appended one value per sample to each list."""
    for key, values in batch.items():
        if len(values) != rows:
            raise ValueError(
                f"prepare_batch appended {len(values)} values to batch[{key!r}] for {rows} "
                "samples: one value per sample is needed."
            )
