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
        ``"ours"``, ``"ours-fork"`` with that start method, or what the case has a worker for.

    Attributes
    ----------
    buffers : int
        Mini-batches in shared memory, known once the loader was stopped.
    """

    def __init__(self, case: Case, contender: str) -> None:
        self.buffers = 0
        self.loader = TurboDataLoader(
            case.make_dataset(contender),
            case.batch_size,
            case.make_worker(contender),
            case.workers,
            shuffle=case.shuffle,
            seed=case.seed,
            start_method="fork" if contender == "ours-fork" else None,
        )

    def start(self) -> None:
        self.loader.start()

    def batches(self) -> Iterable[object]:
        return self.loader

    def stop(self) -> None:
        known = self.loader.statistics()
        self.buffers = (
            known.buffers_free + known.buffers_filling + known.buffers_ready + known.buffers_held
        )
        self.loader.stop()
