"""Everything that runs behind a loader, started and stopped as one.

:class:`Engine` drives worker processes or threads; :class:`LocalEngine` in ``local.py`` does the
same in the caller's thread. Both carry several passes at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple

from ..arguments import OnError
from ..epochs import EpochPlan
from ..errors import BufferExhausted, LoaderClosed, LoaderError, LoaderTimeout
from .addresses import make_addresses, remove_directory, remove_ipc_handles, sweep
from .buffers import SlotLayout
from .consumer import EMPTY, END, Consumer
from .interrupts import interrupts_deferred
from .launch import SupervisorHandle
from .logs import levels
from .payload import Payload, copy_template
from .processes import BROKER_DIED, THREAD_NAME, Wakeup
from .producer import Pass, Producer
from .ring import BufferRing
from .settings import Settings
from .worker import BufferWorker, Worker, overrides

__all__ = ["START_METHODS", "Engine", "EngineFacts", "EngineOptions", "ring_for"]

START_METHODS = ("forkserver", "spawn", "fork", "thread")

_TINY_RING = 1 << 24  # bytes: while slots are tiny, so much may be requested ahead
_QUICK_RING = 1 << 29  # bytes: and so much while mini-batches are quick, ...
_QUICK_BUFFERS = 6  # ... up to so many for each worker: then none of them waits for the caller
_MOST_AHEAD = 256  # mini-batches
_SECONDS_AHEAD = 0.04  # per worker: two groups of CHUNK_SECONDS with it, as much ready
_STOP_SECONDS = 1.5  # then by force
_VERDICT_SECONDS = 0.9  # for the broker to name who does not get on


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

    @property
    def splittable(self) -> bool:
        """Whether several workers may make one mini-batch."""
        template = self.worker_template
        return isinstance(template, BufferWorker) or not overrides(template, "collate")


class EngineFacts(NamedTuple):
    """State of an engine at one moment; buffers as in :class:`crumpets_like.Statistics`."""

    free: int
    filling: int
    ready: int
    held: int
    busy_seconds: tuple[float, ...]  # of each worker
    chunk_samples: int
    up_since: float | None  # when all workers were up, by time.perf_counter; None: not yet
    seconds_reading: float  # that the sampler or iterable took
    reads_ahead: bool  # in a thread of its own, not in the caller's
    works_ahead: bool  # workers, not the caller's thread
    skipped: int  # samples


def ring_for(options: EngineOptions) -> BufferRing:
    """Make the ring that some options ask for."""
    template = options.worker_template
    layout = None
    if isinstance(template, BufferWorker):
        layout = SlotLayout(template.buffer_specs, options.mini_batch_size)
    return BufferRing(layout, options.buffers, options.nworkers, options.max_buffers)


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
        self._start()
        self._passes = self._parts.passes
        self._finalizer = weakref.finalize(self, _stop_anywhere, self._parts, self._owner)

    def _start(self) -> None:
        options = self._options
        in_threads = options.start_method == "thread"
        uid = f"{os.getpid():x}-{os.urandom(4).hex()}"
        self._parts = parts = _Parts(uid)
        payload: Payload | None = None
        try:
            # First of all: it takes longest, and "fork" must come before our threads and sockets.
            supervisor = parts.supervisor = SupervisorHandle(
                options.start_method, uid, options.worker_threads
            )
            sweep()
            contents = {
                "worker_template": options.worker_template,
                "dataset": options.dataset,
                "on_error": options.on_error,
            }
            payload = Payload({} if in_threads else contents)
            ring = parts.ring = ring_for(options)
            kinds = (("work", 1), ("worker", 1), ("consume", 1), ("control", 1))
            work, worker, consume, control = (a[0] for a in make_addresses(uid, "loader", kinds))
            token = os.urandom(16)
            consumer = parts.consumer = Consumer(consume, control, token=token)
            parts.addresses = [work, worker, consume, control]
            consumer.set_buffer_manager(ring)
            consumer.watch(supervisor.death, lambda: _why_ended(supervisor))
            # What seeds itself at its import must not be imported by a sample.
            seeded = ["torch"] if options.seed_globals and "torch" in sys.modules else []
            settings = Settings(
                start_method=options.start_method,
                nworkers=options.nworkers,
                rows=options.mini_batch_size,
                splittable=options.splittable,
                # Threads share the dataset, and with it the epoch that it was told.
                one_epoch=in_threads and hasattr(options.dataset, "set_epoch"),
                seed=f"{options.seed:x}",
                seed_globals=options.seed_globals,
                stride=ring.geometry.stride,
                slots=ring.geometry.slots,
                work_address=work,
                worker_address=worker,
                result_address=consume,
                control_address=control,
                uid=uid,
                token=token,
                restarts=options.restarts,
                on_error_raises=options.on_error == "raise",
                worker_threads=options.worker_threads,
                payload_size=payload.size,
                trainer=os.getpid(),
                modules=payload.modules + seeded,
                folders=payload.folders,
                levels=levels(),
                shared=payload.descriptors,
            )
            supervisor.configure(settings, ring.descriptor, payload.descriptor)
            parts.producer = Producer(
                work,
                consumer.context,
                ring,
                options.mini_batch_size,
                options.prefetch,
                token=token,
            )
            consumer.start()
            if in_threads:
                self._start_threads(settings)
            ring.touch()
        except BaseException:
            _stop(parts, os.getpid())
            raise
        finally:
            if payload is not None:
                payload.close()

    def _start_threads(self, settings: Settings) -> None:
        from .runner import Runner  # elsewhere the workers' processes import them
        from .worker_loop import serve

        parts = self._parts
        parts.wakeup = Wakeup()
        for worker_id in range(settings.nworkers):
            runner = Runner(
                copy_template(self._options.worker_template),
                self._options.dataset,
                parts.ring.mapping,
                settings.geometry,
                settings.rows,
                worker_id=worker_id,
                seed=self._options.seed,
                seed_globals=False,
                on_error=self._options.on_error,
            )
            thread = threading.Thread(
                target=serve,
                args=(runner, parts.consumer.context, settings, worker_id, [parts.wakeup.fileno()]),
                name=f"{THREAD_NAME}w{worker_id}",
                daemon=True,
            )
            thread.start()
            parts.threads.append(thread)

    # -- passes --------------------------------------------------------------------------

    def open(self, plan: EpochPlan, after: Pass | None = None) -> Pass:
        """Begin a pass; its first mini-batches are requested at once as far as the window allows.

        With `after` it is requested behind another pass, in what that leaves of the window.
        """
        self._check_open()
        producer = self._parts.producer
        pass_id = producer.new_id()
        stream = self._parts.consumer.open(pass_id, self._options.in_order)
        this = self._passes[pass_id] = Pass(pass_id, plan, stream)
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
            producer.window = self._window(pace * self._options.mini_batch_size)
        producer.refill()
        producer.fill(this)

    def _window(self, seconds: float) -> int:
        """Mini-batches to request ahead: more while they are quick, many more if tiny as well."""
        options, ring = self._options, self._parts.ring
        size = max(ring.largest_free_form, 1) if ring.free_form else ring.geometry.stride
        quick = min(_QUICK_BUFFERS * options.nworkers, _QUICK_RING // size)
        most = min(_MOST_AHEAD, max(_TINY_RING // size, quick), ring.limit)
        wanted = int(options.nworkers * _SECONDS_AHEAD / seconds)
        return max(options.prefetch, min(most, wanted))

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
        consumer, producer = self._parts.consumer, self._parts.producer
        while True:
            self.request(this)
            if producer.granted == 0 and not this.exhausted:
                self._wait_for_slot()
                continue
            before = consumer.skipped
            mini_batch = self._retrieve(this)
            if mini_batch is END:
                return None
            producer.retrieved(this)
            this.delivered -= consumer.skipped - before
            this.partial.append(mini_batch)
            mini_batches, samples = this.counts[0]
            if len(this.partial) == mini_batches:
                this.counts.popleft()
                this.delivered += samples
                batch = [mini_batch for mini_batch in this.partial if mini_batch is not EMPTY]
                this.partial = []
                if batch:
                    return batch

    def _retrieve(self, this: Pass) -> Any:
        """The next mini-batch; the broker hears of it when the caller waits long for it."""
        consumer, timeout = self._parts.consumer, self._options.timeout
        if timeout is None or self._options.start_method == "thread":
            return consumer.retrieve(this.stream, timeout)
        raw = None
        for seconds, overdue in ((timeout / 2, 0), (timeout / 2, 1), (_VERDICT_SECONDS, None)):
            try:
                raw = consumer.retrieve_data(this.stream, seconds)
                break
            except LoaderTimeout:
                if overdue is None:
                    raise LoaderTimeout(timeout) from None
                self._parts.producer.tell_waiting(this, overdue, timeout)
        return consumer.finish(raw)

    def knows(self, error: BaseException) -> bool:
        """Whether an error was raised where everything was in order, not by a signal handler."""
        return isinstance(error, LoaderError) or error is self._parts.consumer.raised

    def _wait_for_slot(self) -> None:
        ring, consumer = self._parts.ring, self._parts.consumer
        slot = ring.take_or_collect()
        if slot is not None:
            self._parts.producer.grant(slot)
        elif ring.held + self._parts.producer.granted >= ring.limit:
            raise BufferExhausted(ring.held, ring.limit)
        elif consumer.failure is not None:
            raise consumer.failure
        elif not ring.wait_for_return(self._options.timeout):
            # Slots of a pass that was left early have not come back.
            raise LoaderTimeout(self._options.timeout or 0.0)

    def close_pass(self, this: Pass) -> None:
        """Drop what is left of a pass."""
        if self._passes.pop(this.id, None) is not None and not self._stopped:
            self._parts.producer.cancel(this)
            self._parts.consumer.close(this.id)

    # -- state ---------------------------------------------------------------------------

    def facts(self) -> EngineFacts:
        """State of the buffers and of the workers."""
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
            what = f"The loader belongs to process {self._owner}, of which this one was forked: "
            raise LoaderClosed(what + "make one of its own here.")

    def stop(self) -> None:
        """End everything; mini-batches that the caller holds stay valid."""
        if self._stopped:
            return
        for this in list(self._passes.values()):
            self.close_pass(this)
        self._stopped = True
        self._finalizer()


class _Parts:
    """What has to be ended, in a form that does not keep the engine alive."""

    ring: BufferRing
    consumer: Consumer
    producer: Producer
    supervisor: SupervisorHandle

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.passes: dict[int, Pass] = {}
        self.threads: list[threading.Thread] = []
        self.wakeup: Wakeup | None = None
        self.addresses: list[str] = []


def _why_ended(supervisor: SupervisorHandle) -> BaseException:
    code = supervisor.reap()
    who = "broker" if code == BROKER_DIED else "supervisor"
    return LoaderError(
        f"The loader's {who} process ended unexpectedly (supervisor pid {supervisor.pid}, "
        f"exit code {code}), so no more mini-batches can come. Likely cause: it was killed, from "
        "outside or for lack of memory (see the kernel log). stop() and start() the loader to go "
        "on."
    )


def _stop_anywhere(parts: _Parts, owner: int) -> None:
    """End all parts of an engine that is stopped, or that nobody can reach any more.

    The garbage collector may find that out in one of the engine's own threads, which can neither
    wait for itself nor for a lock that it holds: then another thread does it.
    """
    if threading.current_thread().name.startswith(THREAD_NAME):
        threading.Thread(target=_stop, args=(parts, owner)).start()
    else:
        _stop(parts, owner)


def _stop(parts: _Parts, owner: int) -> None:
    """End all parts that were started, in the order in which they depend on each other."""
    if os.getpid() != owner:  # a forked child of the user: nothing here is its own
        return
    with interrupts_deferred():
        _end_parts(parts)


def _end_parts(parts: _Parts) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    if hasattr(parts, "producer"):
        for this in parts.passes.values():
            parts.producer.cancel(this)
        parts.producer.stop()
    if parts.wakeup is not None:
        parts.wakeup.set()
    for thread in parts.threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if hasattr(parts, "consumer"):
        parts.consumer.stop()
    if hasattr(parts, "supervisor"):
        parts.supervisor.stop(max(0.1, deadline - time.monotonic()))
    if hasattr(parts, "ring"):
        parts.ring.close()
    if parts.wakeup is not None and not any(thread.is_alive() for thread in parts.threads):
        parts.wakeup.close()
    remove_ipc_handles(parts.addresses)
    remove_directory(parts.uid)
