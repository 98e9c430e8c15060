"""What becomes of samples that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any, TypeAlias

from ..arguments import OnError
from ..errors import LoaderTimeout, WorkerDied
from .failures import describe_failure
from .standing import Standing

__all__ = ["Pending", "Settling"]

# Samples that are waiting: their positions, what they are called in their source, their rows.
Pending: TypeAlias = Iterable[tuple[int, Any, Any]]

_SKIP = object()


class Settling:
    """Asks `on_error` about samples that fail, and goes on behind them.

    Parameters
    ----------
    on_error : "raise", "skip" or callable
        See :class:`TurboDataLoader`.
    standing : Standing
        Tells which sample it is.

    Attributes
    ----------
    raises : bool
        Whether any error ends the part.
    skipped : dict of int to bytes
        Rows of the part that hold no sample, and why: described exceptions.
    """

    def __init__(self, on_error: OnError, standing: Standing) -> None:
        self._on_error = on_error
        self._standing = standing
        self.raises = on_error == "raise"
        self.skipped: dict[int, bytes] = {}

    def begin(self) -> dict[int, bytes]:
        """A new part; returns its `skipped`, empty yet."""
        self.skipped = {}
        return self.skipped

    def each(
        self,
        source: Any,
        names: Sequence[Any],
        rows: Sequence[Any],
        work: Callable[[Any, Pending], None],
        undo: Callable[[int, Any], None] | None = None,
    ) -> None:
        """Give all samples, ``source[name]``, to `work`, each with its row.

        ``work(source, pending)`` is called again for the samples behind one that has failed, and
        for one in place of it. ``undo(done, row)`` takes back what that one has left behind, where
        `done` others before it have not failed.
        """
        first = self._standing.first
        positions = iter(range(first, first + len(names)))
        pending = zip(positions, names, rows, strict=False)
        while True:
            try:
                work(source, pending)
                return
            except Exception as error:  # noqa: BLE001  on_error decides
                row = len(names) - length_hint(positions) - 1
                done = row - len(self.skipped)
                sample = self._settle(error, row)
            if undo is not None:
                undo(done, rows[row])
            if sample is not _SKIP:
                work([sample], [(first + row, 0, rows[row])])

    def _settle(self, error: Exception, row: int) -> Any:
        """What `on_error` says: a sample in place of the one of `row`, or SKIP; else raises."""
        try:
            answer: Any = self._on_error
            if self.raises:
                raise error
            if callable(answer):
                answer = answer(self._standing.index, error)
                if answer is None:
                    raise error
            if not (isinstance(answer, str) and answer == "skip"):
                self._standing.draw_anew()
                return answer
            note = (
                "" if isinstance(error, WorkerDied | LoaderTimeout) else self._standing.note(error)
            )
            self.skipped[row] = describe_failure(error, note)
            return _SKIP
        finally:
            del error  # or it and this frame, its caller's frames too, would keep each other
