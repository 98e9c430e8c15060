"""From a finished mini-batch as it came to the dict that the caller gets."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .encoding import decode, different_keys, join
from .failures import add_note, rebuild_exception, unpack_errors
from .protocol import Segment
from .ring import BufferRing
from .segment import NO_SLOT

__all__ = ["RawBatch", "assemble"]

logger = logging.getLogger(__name__)


class RawBatch(NamedTuple):
    """A finished mini-batch as it came: its place, and frames that are not decoded."""

    slot: int
    rows: int
    status: int
    segments: list[Segment]
    frames: list[bytes]

    @property
    def skipped(self) -> int:
        """Rows that hold no sample."""
        return sum(segment.skipped for segment in self.segments) if self.frames else 0


def assemble(raw: RawBatch, ring: BufferRing | None) -> dict[str, Any] | None:
    """Make arrays and lists of a mini-batch; None if all of its samples were skipped.

    Rows of skipped samples are closed up.

    Raises
    ------
    ValueError
        If its parts have different keys.
    """
    base = ring.lease(raw.slot) if ring is not None and raw.slot != NO_SLOT else None
    layout = ring.layout if ring is not None else None
    if base is not None and layout is not None and not raw.frames:
        arrays: dict[str, Any] = layout.views(base, raw.rows)
        return arrays
    segments, columns, skipped = [], [], []
    first = 0
    for segment in raw.segments:
        frames = raw.frames[first : first + segment.frames]
        first += segment.frames
        if segment.skipped:
            skipped += [(segment.start + row, why) for row, why in unpack_errors(frames.pop())]
        if segment.skipped < segment.size:
            segments.append(segment)
            columns.append(_decode(frames, base, segment))
    if skipped:
        _report(skipped, ring)
    if not segments:
        return None
    if layout is None:
        _check_keys(columns, segments)
        joined = columns[0] if segments[0].size == raw.rows else join(columns)
        if ring is not None:
            size = sum(value.nbytes for value in joined.values() if isinstance(value, np.ndarray))
            ring.largest_free_form = max(ring.largest_free_form, size)
        return joined
    fields: dict[str, Any] = {}
    if base is not None:
        fields = layout.views(base, raw.rows)
        if skipped:
            fields = _close_up(fields, raw.rows, [row for row, _ in skipped])
    return fields | _join_lists(columns, segments)


def _decode(
    frames: list[bytes], base: NDArray[np.uint8] | None, segment: Segment
) -> dict[str, Any]:
    try:
        return decode(frames, base)
    except Exception as error:
        index = f", the first one with index {segment.first_index}," * (segment.first_index >= 0)
        add_note(
            error,
            f"What {segment.size} sample(s){index} gave was pickled by the worker, but cannot be "
            "unpickled in the training process.",
        )
        raise


def _close_up(
    fields: dict[str, NDArray[Any]], rows: int, skipped: list[int]
) -> dict[str, NDArray[Any]]:
    """The fields without some rows, still in their slot."""
    left = np.delete(np.arange(rows), skipped)
    first = skipped[0]  # rows before it stay where they are
    for array in fields.values():
        array[first : len(left)] = array[left[first:]]
    return {name: array[: len(left)] for name, array in fields.items()}


def _report(skipped: list[tuple[int, bytes]], ring: BufferRing | None) -> None:
    """Log each skipped sample; the first one of a loader so that it is seen."""
    if ring is not None and not ring.skips_reported:
        ring.skips_reported = True
        logger.warning(
            "samples are skipped (on_error); each is logged at level INFO, statistics() counts them"
        )
    for _, described in skipped:
        error = rebuild_exception(described)
        text = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
        logger.info("skipped a sample: %s", text)


def _check_keys(columns: list[dict[str, Any]], segments: list[Segment]) -> None:
    """Raise ValueError if free-form columns do not have the same keys."""
    for column, segment in zip(columns, segments, strict=True):
        if column.keys() != columns[0].keys():
            name, first = f"sample {segment.start}", f"sample {segments[0].start}"
            raise ValueError(different_keys(column, name, columns[0], first))


def _join_lists(columns: list[dict[str, Any]], segments: list[Segment]) -> dict[str, Any]:
    """Join the lists (and, without slots, the arrays) of a mini-batch's chunks."""
    if len(columns) == 1:
        return columns[0]
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for column in columns for key in column):
        for column, segment in zip(columns, segments, strict=True):
            if key not in column:
                index = segment.first_index
                name = f"with index {index}" if index >= 0 else f"{segment.start} of a mini-batch"
                raise ValueError(
                    f"batch[{key!r}] has no value for the sample {name}: prepare must append "
                    "exactly one value per sample to each list."
                )
        pieces = [column[key] for column in columns]
        if isinstance(pieces[0], np.ndarray):
            joined[key] = np.concatenate(pieces)
        else:
            joined[key] = [value for piece in pieces for value in piece]
    return joined
