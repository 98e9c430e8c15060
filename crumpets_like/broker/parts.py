"""What an engine consists of: processes, threads, sockets and memory, started and ended as one."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from .addresses import make_addresses, remove_directory, remove_ipc_handles, sweep
from .consumer import Consumer
from .interrupts import interrupts_deferred
from .launch import SupervisorHandle
from .limits import check_descriptors
from .logs import levels
from .options import EngineOptions, ring_for
from .payload import Payload, copy_template
from .processes import THREAD_NAME
from .producer import Pass, Producer
from .ring import BufferRing
from .settings import Settings

if TYPE_CHECKING:
    from .threads import WorkerThreads

__all__ = ["Parts"]

_STOP_SECONDS = 1.5  # then by force
_live: dict[int, Parts] = {}  # what is to be stopped at the interpreter's exit


def _stop_all() -> None:
    with interrupts_deferred(at_exit=True):
        for parts in list(_live.values()):
            parts.stop()


class Parts:
    """All that has to be ended when nobody needs an engine any more, which this knows nothing of.

    Attributes
    ----------
    passes : dict of int to Pass
        The passes that are under way.
    stopped : bool
        Whether :meth:`stop` was called.
    """

    ring: BufferRing
    consumer: Consumer
    producer: Producer
    _supervisor: SupervisorHandle

    def __init__(self) -> None:
        self.uid = f"{os.getpid():x}-{os.urandom(4).hex()}"
        self.passes: dict[int, Pass] = {}
        self.stopped = False
        self._owner = os.getpid()
        self._threads: WorkerThreads | None = None
        self._addresses: list[str] = []

    def start(self, options: EngineOptions) -> None:
        """Start everything; if that fails, what was started is for :meth:`stop`.

        At the exit of the interpreter what was not stopped is stopped.
        """
        in_threads = options.start_method == "thread"
        with interrupts_deferred():
            check_descriptors(options.nworkers)
            # First of all: it takes longest, and "fork" must come before our threads and sockets.
            self._supervisor = SupervisorHandle(
                options.start_method, self.uid, options.worker_threads
            )
            sweep()
            if not in_threads:
                importlib.import_module("cloudpickle")  # for the payload, where signals do not wait
        contents = {
            "worker_template": options.worker_template,
            "dataset": options.dataset,
            "on_error": options.on_error,
        }
        payload = Payload({} if in_threads else contents)
        try:
            with interrupts_deferred():
                settings = self._open(options, payload)
                self._supervisor.configure(settings, self.ring.descriptor, payload.descriptor)
                if in_threads:
                    self._start_threads(options, settings)
        finally:
            payload.close()
        self.ring.touch()

    def _open(self, options: EngineOptions, payload: Payload) -> Settings:
        """Make the ring and this process's ends of the sockets."""
        ring = self.ring = ring_for(options)
        kinds = (("work", 1), ("worker", 1), ("consume", 1), ("control", 1))
        addresses = [of_kind[0] for of_kind in make_addresses(self.uid, "loader", kinds)]
        self._addresses = addresses
        if not _live:  # behind what removes their folders, so that it runs before that
            atexit.unregister(_stop_all)
            atexit.register(_stop_all)
        _live[id(self)] = self
        work, worker, consume, control = addresses
        token = os.urandom(16)
        consumer = self.consumer = Consumer(consume, control, token=token)
        consumer.set_buffer_manager(ring)
        consumer.watch(self._supervisor.death, self._supervisor.why_ended)
        self.producer = Producer(
            work, consumer.context, ring, options.mini_batch_size, options.prefetch, token=token
        )
        consumer.start()
        # What seeds itself at its import must not be imported by a sample.
        seeded = ["torch"] if options.seed_globals and "torch" in sys.modules else []
        return Settings(
            start_method=options.start_method,
            nworkers=options.nworkers,
            rows=options.mini_batch_size,
            splittable=options.splittable,
            one_epoch=options.one_epoch,
            seed=f"{options.seed:x}",
            seed_globals=options.seed_globals,
            stride=ring.geometry.stride,
            slots=ring.geometry.slots,
            work_address=work,
            worker_address=worker,
            result_address=consume,
            control_address=control,
            uid=self.uid,
            token=token,
            restarts=options.restarts,
            on_error_raises=options.on_error == "raise",
            worker_threads=options.worker_threads,
            payload_size=payload.size,
            trainer=os.getpid(),
            modules=payload.modules + seeded,
            folders=payload.folders,
            arguments=[
                argument for argument in getattr(sys, "argv", ()) if isinstance(argument, str)
            ],
            levels=levels(),
            shared=payload.descriptors,
        )

    def _start_threads(self, options: EngineOptions, settings: Settings) -> None:
        from .runner import Runner  # elsewhere the workers' processes import them
        from .threads import WorkerThreads

        threads = self._threads = WorkerThreads()
        for worker_id in range(settings.nworkers):
            runner = Runner(
                copy_template(options.worker_template),
                options.dataset,
                self.ring.mapping,
                settings.geometry,
                settings.rows,
                worker_id=worker_id,
                seed=options.seed,
                seed_globals=False,
                on_error=options.on_error,
            )
            threads.start(runner, settings, worker_id)

    def stop(self) -> None:
        """End all that was started, once.

        The garbage collector may ask for it in one of the engine's own threads, which can neither
        wait for itself nor for a lock that it holds: then another thread does it.
        """
        _live.pop(id(self), None)
        if self.stopped or os.getpid() != self._owner:  # a forked child of the user has nothing
            return
        self.stopped = True
        if threading.current_thread().name.startswith(THREAD_NAME):
            threading.Thread(target=self._end).start()
            return
        with interrupts_deferred():
            self._end()

    def _end(self) -> None:
        """In the order in which they depend on each other; what was not started is not there."""
        deadline = time.monotonic() + _STOP_SECONDS
        if hasattr(self, "producer"):
            for this in self.passes.values():
                self.producer.cancel(this)
        if self._threads is not None:  # before the broker, which takes their last answers
            self._threads.stop(_STOP_SECONDS)
        if hasattr(self, "producer"):
            self.producer.stop()
        if hasattr(self, "_supervisor"):
            self._supervisor.end(max(0.1, deadline - time.monotonic()))
        if hasattr(self, "consumer"):  # until now it has received what workers log at their end
            self.consumer.stop()
        if hasattr(self, "_supervisor"):
            self._supervisor.close()
        if hasattr(self, "ring"):
            self.ring.close()
        remove_ipc_handles(self._addresses)
        remove_directory(self.uid)
