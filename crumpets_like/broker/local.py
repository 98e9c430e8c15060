"""The engine without workers: samples run in the caller's thread, for debuggers.

Nothing is requested ahead. The dataset is the caller's own object, the worker a copy of the
template, and results are the same as with any number of workers.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import Any

import numpy as np

from ..epochs import EpochPlan
from ..errors import LoaderClosed, WorkerError
from ..seeding import preserve_globals
from .assembly import RawBatch, assemble
from .contract import EngineFacts, leave_at_exit
from .options import EngineOptions, ring_for
from .payload import copy_template
from .protocol import Kind, Part, Segment, Status
from .ring import BufferRing
from .runner import Runner

__all__ = ["LocalEngine", "LocalPass"]


class LocalPass:
    """One pass over the data in the caller's thread."""

    def __init__(self, plan: EpochPlan) -> None:
        self.plan = plan
        self.rest: list[Any] = []  # mini-batches of the batch that is being made
        self.mini_batches = 0  # of that batch
        self.partial: list[Any] = []  # those that are made
        self.position = plan.first_position
        self.mark = plan.mark
        self.delivered = 0
        self.skipped = 0
        self.exhausted = False  # never true: nothing is requested ahead

    def join(self, timeout: float | None) -> bool:
        """As :meth:`Pass.join`: it is read in the caller's thread only."""
        return True


class LocalEngine:
    """Runs one worker in the caller's thread.

    Parameters
    ----------
    options : EngineOptions
        With ``nworkers=0``.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._stopped = False
        worker = copy_template(options.worker_template)
        self.ring: BufferRing = ring_for(options)
        try:
            self._runner = Runner(
                worker,
                options.dataset,
                self.ring.mapping,
                self.ring.geometry,
                options.mini_batch_size,
                worker_id=0,
                seed=options.seed,
                seed_globals=options.seed_globals,
                on_error=options.on_error,
                guard=preserve_globals if options.seed_globals else contextlib.nullcontext,
            )
            self._runner.setup()
        except BaseException:
            self.ring.close()
            raise
        self._up_since = time.perf_counter()
        self._seconds_reading = 0.0
        self._skipped = 0
        self._finalizer = weakref.finalize(self, _stop, self._runner, self.ring, os.getpid())

    def open(self, plan: EpochPlan, after: LocalPass | None = None) -> LocalPass:
        """Begin a pass."""
        self._check_open()
        return LocalPass(plan)

    def knows(self, error: BaseException) -> bool:
        """As :meth:`Engine.knows`: here all that runs is the caller's own."""
        return True

    def update_dataset(self) -> bool:
        """As :meth:`Engine.update_dataset`: here it is the caller's own object."""
        return True

    def interrupt(self, this: LocalPass) -> None:
        """As :meth:`Engine.interrupt`: here it is a sample that ends by itself."""

    def close_pass(self, this: LocalPass) -> None:
        """Drop what is left of a pass."""
        this.rest.clear()

    def next_batch(self, this: LocalPass) -> list[Any] | None:
        """The next batch of a pass, a list of mini-batches; None at its end.

        Raises
        ------
        BufferExhausted
            If the caller holds all buffers.
        Exception
            What the samples raise.
        """
        self._check_open()
        try:
            return self._next_batch(this)
        except BaseException:  # perhaps since the memory was let go of meanwhile
            self._check_exit()
            raise

    def _next_batch(self, this: LocalPass) -> list[Any] | None:
        while this.rest or this.partial or self._read(this):
            while this.rest:
                slot = self.ring.take_or_collect()
                if slot is None:
                    raise self.ring.exhausted(made=len(this.partial))
                mini_batch = self._run(this, slot, this.rest.pop(0))
                if mini_batch is not None:
                    this.partial.append(mini_batch)
            this.delivered = this.position - this.plan.first_position - this.skipped
            this.mark = this.plan.mark
            if this.partial:
                made, this.partial = this.partial, []
                return made
        return None

    def _read(self, this: LocalPass) -> bool:
        """Read one batch of the plan; False at its end."""
        started = time.perf_counter()
        try:
            batch = next(this.plan, None)
        finally:
            self._seconds_reading += time.perf_counter() - started
        if batch is None:
            return False
        size = self._options.mini_batch_size
        this.rest = [batch[start : start + size] for start in range(0, len(batch), size)]
        this.mini_batches = len(this.rest)
        return True

    def _run(self, this: LocalPass, slot: int, keys: Any) -> dict[str, Any] | None:
        if isinstance(keys, np.ndarray):
            kind = Kind.INDICES
        else:
            kind = Kind.SAMPLES if this.plan.kind == "samples" else Kind.KEYS
        rows = len(keys)
        part = Part(slot, rows, 0, rows, this.position)
        this.position += rows
        try:
            frames, skipped = self._runner.fill_part(part, this.plan.epoch, kind, keys)
        except StopIteration as error:  # it must not look like the end of the epoch
            self.ring.give_back(slot)
            raise WorkerError("StopIteration", str(error), "", self._runner.where) from error
        except BaseException:
            self.ring.give_back(slot)
            raise
        self._skipped += skipped
        this.skipped += skipped
        segment = Segment(0, rows, len(frames), -1, skipped)
        data: list[Any] = list(frames)
        return assemble(RawBatch(slot, rows, Status.DONE, [segment], data), self.ring)

    def facts(self) -> EngineFacts:
        """State of the buffers and of the worker."""
        self._check_open()
        return EngineFacts(
            free=self.ring.idle,
            filling=0,
            ready=0,
            held=self.ring.held,
            busy_seconds=(self.ring.status.busy_seconds(0),),
            chunk_samples=self._options.mini_batch_size,
            up_since=self._up_since,
            seconds_reading=self._seconds_reading,
            reads_ahead=False,
            works_ahead=False,
            skipped=self._skipped,
        )

    def _check_open(self) -> None:
        if self._stopped:
            raise LoaderClosed("The loader was stopped; start() it again before it is iterated.")
        self._check_exit()

    def _check_exit(self) -> None:
        """Raise if the exit of the interpreter has ended everything."""
        if not (self._stopped or self._finalizer.alive):
            leave_at_exit()

    def stop(self) -> None:
        """Run the worker's teardown and let go of the ring."""
        if not self._stopped:
            self._stopped = True
            self._finalizer()
            del self._runner  # and with it the memory


def _stop(runner: Runner, ring: BufferRing, owner: int) -> None:
    if os.getpid() == owner:
        try:
            runner.teardown()
        finally:
            ring.close()
