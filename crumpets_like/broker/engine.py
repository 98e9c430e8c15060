"""What runs behind a loader: passes over the data, several at once.

:class:`Engine` drives worker processes or threads; :class:`LocalEngine` in ``local.py`` does the
same in the caller's thread. Both carry several passes at once.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from ..epochs import EpochPlan
from ..errors import LoaderClosed, LoaderError, LoaderTimeout
from .assembly import RawBatch
from .contract import EngineFacts, leave_at_exit
from .failures import copy_exception
from .options import MOST_AHEAD, TINY_RING, EngineOptions
from .parts import Parts
from .producer import Pass
from .snapshot import Snapshot, reachable
from .stream import CLOSED, EMPTY, END

__all__ = ["Engine"]

T = TypeVar("T")

_QUICK_RING = 1 << 29  # bytes: so much may be requested ahead if mini-batches are quick, ...
_QUICK_BUFFERS = 6  # ... up to so many for each worker: then none of them waits for the caller
_FIRST = 24  # mini-batches that tell whether they are: memory in use does not grow later
_SECONDS_AHEAD = 0.04  # per worker: two groups of CHUNK_SECONDS with it, as much ready
_VERDICT_SECONDS = 0.9  # for the broker to name who does not get on


class Engine:
    """Broker, workers, ring, producer and consumer of one loader.

    Parameters
    ----------
    options : EngineOptions
        With at least one worker.

    Raises
    ------
    MemoryError
        If the ring does not fit the available memory.
    Exception
        If the template or the dataset cannot be pickled: the text names the attribute.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._stopped = False
        self._owner = os.getpid()
        self._pace = 0.0  # that the window is made for
        self._retrieved = 0  # mini-batches
        self._quick = False
        self._parts = Parts()
        self._passes = self._parts.passes
        self._abandoned: deque[Pass] = deque()
        self._snapshots: list[Snapshot] = []  # of the dataset, that workers may have to read
        self._finalizer = weakref.finalize(self, self._parts.stop)
        self._finalizer.atexit = False  # parts do that, before their folders are removed
        try:
            self._parts.start(options)
        except BaseException:
            self._finalizer()
            raise

    # -- passes --------------------------------------------------------------------------

    def open(self, plan: EpochPlan, after: Pass | None = None, window: int | None = None) -> Pass:
        """Begin a pass; its first mini-batches are requested at once as far as the window allows.

        Parameters
        ----------
        plan : EpochPlan
            Its batches.
        after : Pass, optional
            A pass behind which it is requested, in what that leaves of the window.
        window : int, optional
            Mini-batches to request ahead beside other passes. Default: the engine's window, which
            serves one pass after the other; for one beside it, as many as that has at least.
        """
        self._check_open()
        if not self._passes:
            del self._snapshots[:-1]
        producer = self._parts.producer
        pass_id = producer.new_id()
        stream = self._parts.consumer.open(pass_id, self._options.in_order)
        if after is not None:
            own = after.window
        elif window is None and all(
            other.window is not producer.window for other in self._passes.values()
        ):
            own = producer.window
        else:
            own = producer.open_window(window or self._options.prefetch)
        this = self._passes[pass_id] = Pass(pass_id, plan, stream, own)
        producer.open(this)
        if after is not None:
            after.successor = this
        self.request(after or this)
        return this

    def request(self, this: Pass) -> None:
        """Request what may be requested ahead."""
        producer, pace = self._parts.producer, self._parts.consumer.seconds_per_sample
        if self._options.adaptive and pace != self._pace:
            self._pace = pace
            producer.window.size = self._window(pace * self._options.mini_batch_size)
        producer.refill(this)
        producer.fill(this)

    def _window(self, seconds: float) -> int:
        """Mini-batches to request ahead: more if they are quick, many more while tiny as well."""
        options, ring = self._options, self._parts.ring
        size = max(ring.largest_free_form, 1) if ring.free_form else ring.geometry.stride
        wanted = int(options.nworkers * _SECONDS_AHEAD / seconds)
        if self._retrieved < _FIRST:
            self._quick |= wanted > options.prefetch
        most = min(_QUICK_BUFFERS * options.nworkers, _QUICK_RING // size) if self._quick else 0
        most = min(MOST_AHEAD, max(most, min(wanted, TINY_RING // size)), ring.limit)
        return max(options.prefetch, most)

    def next_batch(self, this: Pass) -> list[Any] | None:
        """The next batch of a pass, a list of mini-batches; None at its end.

        Raises
        ------
        BufferExhausted
            If the caller holds all buffers.
        LoaderTimeout, WorkerDied, Exception
            As :meth:`Consumer.retrieve`.
        """
        self._check_open()
        try:
            return self._next_batch(this)
        except BaseException:
            self._check_exit()
            raise

    def _next_batch(self, this: Pass) -> list[Any] | None:
        consumer, producer = self._parts.consumer, self._parts.producer
        while True:
            self.request(this)
            if this.window.granted == 0 and not (this.exhausted or this.interrupted):
                self._wait_for_slot(this)
                continue
            before = consumer.skipped
            mini_batch = self._retrieve(this)
            if mini_batch is END:
                return None
            self._retrieved += 1
            producer.retrieved(this)
            this.delivered -= consumer.skipped - before
            this.partial.append(mini_batch)
            mini_batches, samples, mark = this.counts[0]
            if len(this.partial) == mini_batches:
                this.counts.popleft()
                this.delivered += samples
                this.mark = mark
                batch = [mini_batch for mini_batch in this.partial if mini_batch is not EMPTY]
                this.partial = []
                if batch:
                    return batch

    def _retrieve(self, this: Pass) -> Any:
        """The next mini-batch, EMPTY or END."""
        this.awaited_came = False
        raw = self._receive(this)
        this.awaited_came = isinstance(raw, RawBatch)
        return self._parts.consumer.finish(raw)

    def pass_over(self, this: Pass) -> bool:
        """Go on behind a batch, of one mini-batch, that has raised an error of its own.

        False if the error was not that.
        """
        if not this.awaited_came:
            return False
        self._parts.producer.retrieved(this)
        _, samples, this.mark = this.counts.popleft()
        this.delivered += samples
        return True

    def _receive(self, this: Pass) -> Any:
        """What comes next."""
        consumer = self._parts.consumer
        return self._wait(this, lambda seconds: consumer.retrieve_data(this.stream, seconds))

    def _wait(self, this: Pass, wait: Callable[[float | None], T]) -> T:
        """What `wait` returns; the broker hears of it when the caller waits long for it."""
        consumer, timeout = self._parts.consumer, self._options.timeout
        if timeout is None:
            return wait(None)
        if self._options.start_method == "thread":  # nobody can end one that hangs
            try:
                return wait(timeout)
            except LoaderTimeout:
                raise self._late(this) from None
        since, look, seconds = consumer.changed_at, 0, timeout / 2
        while True:
            try:
                return wait(seconds)
            except LoaderTimeout:
                if consumer.changed_at != since:  # a worker was replaced: its work began anew then
                    since, look = consumer.changed_at, 0
                    seconds = max(0.0, since + timeout / 2 - time.monotonic())
                    continue
                if look == 2:
                    raise self._late(this) from None
                self._parts.producer.tell_waiting(this, look, timeout)
                look += 1
                seconds = timeout / 2 if look == 1 else _VERDICT_SECONDS

    def _late(self, this: Pass) -> LoaderTimeout:
        cause = ""
        if self._options.dataset is None and this.requested == this.stream.received:
            cause = (
                "All samples that the iterable has given are done: it hangs, or is slow. Raise "
                "timeout= (None: no limit) if its next one may take that long."
            )
        return LoaderTimeout(self._options.timeout or 0.0, cause=cause)

    def knows(self, error: BaseException) -> bool:
        """Whether an error was raised where everything was in order, not by a signal handler."""
        consumer = self._parts.consumer
        known, consumer.raised = consumer.raised, 0
        return isinstance(error, LoaderError) or id(error) == known

    def _wait_for_slot(self, this: Pass) -> None:
        ring, consumer = self._parts.ring, self._parts.consumer
        slot = ring.take_or_collect()
        if slot is not None:
            self._parts.producer.grant(this, slot)
        elif ring.held + self._parts.producer.granted >= ring.limit:
            raise ring.exhausted(made=sum(one is not EMPTY for one in this.partial))
        elif consumer.failure is not None:
            raise copy_exception(consumer.failure)
        else:  # slots of a pass that was left early have not come back
            self._wait(this, self._wait_for_return)

    def _wait_for_return(self, seconds: float | None) -> None:
        if not self._parts.ring.wait_for_return(seconds):
            raise LoaderTimeout(seconds or 0.0)

    def interrupt(self, this: Pass) -> None:
        """End the wait of another thread that is in `next_batch`."""
        if os.getpid() != self._owner:
            raise LoaderClosed(self._foreign())
        this.interrupted = True
        this.stream.put(CLOSED)
        self._parts.ring.wake()

    def close_pass(self, this: Pass) -> None:
        """Drop what is left of a pass."""
        # The sockets belong to the process that forked this one; or they are gone at its exit.
        if os.getpid() != self._owner or self._parts.stopped:
            return
        if self._passes.pop(this.id, None) is not None and not self._stopped:
            producer = self._parts.producer
            producer.cancel(this)
            self._parts.consumer.close(this.id)
            used = [producer.window, *(other.window for other in self._passes.values())]
            if all(this.window is not window for window in used):
                producer.close_window(this.window)

    def abandon(self, this: Pass) -> None:
        """Drop what is left of a pass, later: for finalizers, which run anywhere."""
        self._abandoned.append(this)

    def update_dataset(self) -> bool:
        """Let workers read the dataset as it is now; False if they must be started anew for that.

        Raises
        ------
        Exception
            If it cannot be pickled: the text names the attribute.
        """
        self._check_open()
        if self._options.start_method == "thread":  # which has the caller's own
            return True
        if not reachable():
            return False
        contents = {"dataset": self._options.dataset}
        latest = self._snapshots[-1] if self._snapshots else None
        snapshot = Snapshot(contents) if latest is None else latest.renewed(contents)
        if snapshot is not latest:
            self._snapshots.append(snapshot)
            self._parts.producer.send_dataset(snapshot.place)
        return True

    # -- state ---------------------------------------------------------------------------

    def facts(self) -> EngineFacts:
        """State of the buffers and of the workers."""
        self._check_exit()
        ring, consumer, producer = self._parts.ring, self._parts.consumer, self._parts.producer
        live = self._passes.values()
        ready = sum(this.stream.received - this.retrieved for this in live)
        return EngineFacts(
            free=ring.idle + producer.waiting,
            filling=sum(this.requested - this.stream.received for this in live),
            ready=ready,
            held=ring.held,
            busy_seconds=tuple(
                ring.status.busy_seconds(worker_id) for worker_id in range(self._options.nworkers)
            ),
            chunk_samples=consumer.chunk_samples,
            up_since=consumer.up_since,
            seconds_reading=producer.seconds_reading,
            reads_ahead=self._options.dataset is None,
            works_ahead=True,
            skipped=consumer.skipped,
        )

    def _check_open(self) -> None:
        if self._stopped:
            raise LoaderClosed("The loader was stopped; start() it again before it is iterated.")
        if os.getpid() != self._owner:
            raise LoaderClosed(self._foreign())
        self._check_exit()
        while self._abandoned:
            self.close_pass(self._abandoned.popleft())

    def _check_exit(self) -> None:
        """Raise if the exit of the interpreter has ended everything."""
        if self._parts.stopped and not self._stopped:
            leave_at_exit()

    def _foreign(self) -> str:
        return (
            f"The loader belongs to process {self._owner}, of which this one was forked: make one "
            "of its own here."
        )

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._stopped

    @property
    def usable(self) -> bool:
        """Whether passes can be opened: neither stopped, nor failed, nor another process's."""
        failed = self._stopped or self._parts.consumer.failure is not None
        return not failed and os.getpid() == self._owner

    def stop(self) -> None:
        """End everything; mini-batches that the caller holds stay valid."""
        if self._stopped or os.getpid() != self._owner:
            return
        for this in list(self._passes.values()):
            self.close_pass(this)
        self._stopped = True
        self._finalizer()
        self._snapshots.clear()
