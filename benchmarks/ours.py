"""Our own loader as a contender."""

from __future__ import annotations

from collections.abc import Iterable

from crumpets_like import TurboDataLoader

from .case import Case


class Ours:
    """`TurboDataLoader` with a worker that copies samples into their rows.

    Parameters
    ----------
    case : Case
        What to load.
    contender : str
        ``"ours"``, or ``"ours-"`` followed by a start method.
    """

    def __init__(self, case: Case, contender: str) -> None:
        self.loader = TurboDataLoader(
            case.make_dataset(contender),
            case.batch_size,
            case.make_worker(),
            case.workers,
            shuffle=case.shuffle,
            seed=case.seed,
            start_method=contender.partition("-")[2] or None,
        )

    def start(self) -> None:
        self.loader.start()

    def batches(self) -> Iterable[object]:
        return self.loader

    def stop(self) -> None:
        self.loader.stop()
