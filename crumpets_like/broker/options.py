"""What a front end asks of its engine, and the ring that this needs."""

from __future__ import annotations

from typing import Any

from ..arguments import OnError
from .addresses import check_folders
from .buffers import SlotLayout
from .ring import BufferRing
from .worker import BufferWorker, Worker, overrides

__all__ = ["MOST_AHEAD", "START_METHODS", "TINY_RING", "EngineOptions", "ring_for"]

START_METHODS = ("forkserver", "spawn", "fork", "thread")
TINY_RING = 1 << 24  # bytes: while slots are tiny, so much may be requested ahead, ...
MOST_AHEAD = 256  # ... but no more mini-batches
_SPARE = 2  # slots of a ring that does not grow, from which mini-batches are being copied


class EngineOptions:
    """What a front end asks of its engine.

    Parameters
    ----------
    worker_template : Worker
        Copied for each worker.
    dataset : object or None
        What indices refer to; None where samples travel.
    mini_batch_size : int
        Most samples of a mini-batch.
    nworkers : int
        Workers; 0: the caller's thread does the work.
    shared_memory : bool or int
        True: a ring of at least 2·nworkers buffers; n: of n buffers; False or 0: arrays travel
        in messages.
    prefetch : int or None
        Most mini-batches requested ahead; None: as many as there are buffers.
    in_order : bool
        Deliver mini-batches in order.
    timeout : float or None
        Most seconds the caller waits for a mini-batch.
    start_method : str
        One of :data:`START_METHODS`.
    max_buffers : int or None
        Most buffers, those that the caller holds included.
    seed : int
        Of the samples' generators.
    seed_globals : bool
        Seed the global generators for each sample, too.
    on_error : "raise", "skip" or callable
        What becomes of samples that raise an exception, or end their workers.
    restarts : int or None
        Most replacements of workers in a pass; None: 2·nworkers.
    worker_threads : int
        Threads of a numerical library in each worker.

    Attributes
    ----------
    grows : bool
        Whether a slot that the caller holds is replaced by another one. Callers who get copies
        hold none.

    Raises
    ------
    OSError
        If there is no folder for the sockets.
    """

    def __init__(
        self,
        worker_template: Worker,
        dataset: Any,
        mini_batch_size: int,
        nworkers: int,
        *,
        shared_memory: bool | int = True,
        prefetch: int | None = None,
        in_order: bool = True,
        timeout: float | None = None,
        start_method: str = "forkserver",
        max_buffers: int | None = None,
        seed: int = 0,
        seed_globals: bool = False,
        on_error: OnError = "raise",
        restarts: int | None = None,
        worker_threads: int = 1,
    ) -> None:
        if nworkers:
            check_folders()
        self.worker_template = worker_template
        self.dataset = dataset
        self.mini_batch_size = mini_batch_size
        self.nworkers = nworkers
        self.adaptive = shared_memory is True and prefetch is None
        usual = max(2, 2 * nworkers)
        if shared_memory is True:
            self.buffers = min(usual, max_buffers or usual)
        else:
            self.buffers = int(shared_memory)
        if self.buffers:
            self.prefetch = min(prefetch or self.buffers, self.buffers)
        else:
            self.prefetch = prefetch or usual
        self.in_order = in_order
        self.timeout = timeout
        self.start_method = start_method
        self.max_buffers = max_buffers
        self.seed = seed
        self.seed_globals = seed_globals
        self.on_error = on_error
        self.restarts = 2 * nworkers if restarts is None else restarts
        self.worker_threads = worker_threads
        self.grows = True

    @property
    def one_epoch(self) -> bool:
        """Whether work of two epochs must not be under way at once.

        Threads share the dataset, and with it the epoch that it was told.
        """
        return self.start_method == "thread" and hasattr(self.dataset, "set_epoch")

    @property
    def splittable(self) -> bool:
        """Whether several workers may make one mini-batch."""
        template = self.worker_template
        return isinstance(template, BufferWorker) or not overrides(template, "collate")


def ring_for(options: EngineOptions) -> BufferRing:
    """Make the ring that some options ask for."""
    template = options.worker_template
    layout = None
    if isinstance(template, BufferWorker):
        layout = SlotLayout(template.buffer_specs, options.mini_batch_size)
    if options.grows or layout is None or not options.buffers:
        return BufferRing(layout, options.buffers, options.nworkers, options.max_buffers)
    buffers = options.buffers
    if options.adaptive:
        buffers = max(buffers + _SPARE, min(MOST_AHEAD, TINY_RING // layout.stride))
        buffers = min(buffers, options.max_buffers or buffers)
    return BufferRing(layout, buffers, options.nworkers, buffers)
