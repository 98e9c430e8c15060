"""The receiving end in the training process: results in, ordered mini-batches out."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import zmq

from ..arguments import check_count
from ..errors import LoaderClosed, LoaderError, LoaderTimeout
from .assembly import RawBatch, assemble
from .failures import copy_exception, rebuild_exception
from .logs import handle_record
from .processes import THREAD_NAME, Wakeup
from .protocol import Failure, Item, Record, Results, Status, WorkersUp, unpack
from .ring import BufferRing
from .sockets import end_context, open_socket
from .stream import CLOSED, EMPTY, END, NUDGE, Stream

__all__ = ["Consumer"]

logger = logging.getLogger(__name__)


class Consumer:
    """Receives finished mini-batches, restores their order, makes arrays of them.

    Parameters
    ----------
    result_address : str
        Stream of results.
    control_address : str
        Stream of exceptions from other processes.
    recv_timeout : int
        Most milliseconds of one wait of the receiving thread.
    bind : bool
        Bind the addresses; False: connect to them.
    token : bytes
        The loader's secret; messages without it are dropped.

    Raises
    ------
    TypeError, ValueError
        If an address is no address, or `recv_timeout` no positive integer.
    OSError
        If an address cannot be bound.
    """

    def __init__(
        self,
        result_address: str,
        control_address: str,
        recv_timeout: int = 1000,
        bind: bool = True,
        *,
        token: bytes = b"",
    ) -> None:
        self._stopping = True  # nothing to stop yet
        self._recv_timeout = check_count("recv_timeout", recv_timeout)
        self._token = token
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self._failure: BaseException | None = None
        self._ring: BufferRing | None = None
        self._default = Stream()
        self._streams: dict[int, Stream] = {0: self._default}
        self._watched: dict[int, Callable[[], BaseException]] = {}
        self.up_since: float | None = None  # when all workers were ready, by time.perf_counter
        self.workers = 0  # that are ready; 0 also until all of them were once
        self.changed_at = 0.0  # when that number changed last, by time.monotonic
        self.seconds_per_sample = 0.0
        self.chunk_samples = 0
        self.raised = 0  # id() of what the caller got last: itself it would keep their frames
        self.skipped = 0  # samples of the mini-batches that were retrieved
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            open_pull = partial(open_socket, self._context, zmq.PULL, bind=bind)
            self._results = open_pull("result_address", result_address)
            self._control = open_pull("control_address", control_address)
            self._wakeup = Wakeup()
        except BaseException:
            end_context(self._context, 0)
            raise
        self._stopping = False

    @property
    def context(self) -> zmq.Context[Any]:
        """Context of this process's sockets; :meth:`stop` ends it."""
        return self._context

    def set_buffer_manager(self, ring: BufferRing) -> None:
        """Set the ring whose slots the results lie in."""
        self._ring = ring

    def watch(self, descriptor: int, why: Callable[[], BaseException]) -> None:
        """Fail with ``why()`` when `descriptor` becomes readable. Before :meth:`start`."""
        self._watched[descriptor] = why

    # -- passes --------------------------------------------------------------------------

    def open(self, pass_id: int, in_order: bool) -> Stream:
        """Begin to collect the mini-batches of a pass."""
        stream = self._streams[pass_id] = Stream(in_order)
        if self._failure is not None:
            stream.put(self._failure)
        return stream

    def close(self, pass_id: int) -> None:
        """Forget a pass: its slots, late ones included, go back to the ring."""
        stream = self._streams.pop(pass_id, None)
        if stream is not None:
            self._give_back(stream)

    def _give_back(self, stream: Stream) -> None:
        for batch in stream.drain():
            if self._ring is not None:
                self._ring.give_back(batch.slot)
        stream.put(CLOSED)  # for whoever waits in another thread

    # -- the receiving thread ------------------------------------------------------------

    def start(self) -> None:
        """Start the receiving thread."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_receive,
                args=(weakref.ref(self),),
                name=f"{THREAD_NAME}consumer",
                daemon=True,
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread and close the sockets; retrieving raises LoaderClosed from now on."""
        if self._stopping:
            return
        self._stopping = True
        self._wakeup.set()
        # It is the receiving thread itself that may drop an abandoned consumer last.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._results.close()
        self._control.close()
        end_context(self._context, 0)
        self._wakeup.close()
        for stream in list(self._streams.values()):
            stream.put(CLOSED)

    def __del__(self) -> None:
        if not getattr(self, "_stopping", True) and os.getpid() == self._owner:
            self.stop()

    def _accept_results(self) -> None:
        while True:
            try:
                head, *frames = self._results.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = unpack(head, frames, token=self._token)
                if not isinstance(message, Results):
                    raise ValueError(f"a {type(message).__name__} on the stream of results")
            except ValueError as error:
                logger.warning("dropped a message: %s", error)
                continue
            self.seconds_per_sample = message.seconds_per_sample
            self.chunk_samples = message.chunk_samples
            first = 0
            for item in message.items:
                stop = first + item.frames
                self._deliver(item, frames[first:stop])
                first = stop

    def _deliver(self, item: Item, frames: list[bytes]) -> None:
        stream = self._streams.get(item.pass_id)
        if stream is not None and item.status != Status.CANCELLED:
            raw = RawBatch(item.slot, item.rows, item.status, item.segments, frames)
            stream.add(item.number, raw)
            if item.pass_id not in self._streams:  # closed in this very moment
                self._give_back(stream)
        elif self._ring is not None:
            self._ring.give_back(item.slot)

    def _accept_control(self) -> None:
        while True:
            try:
                head, *frames = self._control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = unpack(head, frames, token=self._token)
            except ValueError as error:
                logger.warning("dropped a message: %s", error)
                continue
            if isinstance(message, WorkersUp):
                self.set_workers(message.nworkers)
            elif isinstance(message, Failure):
                self.fail(rebuild_exception(frames[0]))
            elif isinstance(message, Record):
                handle_record(frames[0])
            else:
                logger.warning("dropped a %s on the control stream", type(message).__name__)

    def set_workers(self, count: int) -> None:
        """So many workers are ready; while there are none, waiting does not count."""
        self.up_since = self.up_since or time.perf_counter()
        self.workers = count
        self.changed_at = time.monotonic()
        for stream in list(self._streams.values()):
            stream.put(NUDGE)

    def fail(self, error: BaseException) -> None:
        """End every pass with `error`, behind the mini-batches that are ready."""
        if self._failure is not None:
            return
        self._failure = error
        for stream in list(self._streams.values()):
            stream.put(error)
        if self._ring is not None:
            self._ring.wake()

    @property
    def failure(self) -> BaseException | None:
        """The error that ended everything, if any."""
        return self._failure

    # -- for the caller ------------------------------------------------------------------

    def raise_known(self, error: BaseException) -> NoReturn:
        """Raise an error that leaves everything in order, other than a signal handler's."""
        self.raised = id(error)
        try:
            raise error
        finally:
            del error  # or it and this frame, its caller's frames too, would keep each other

    def retrieve_data(self, stream: Stream | None = None, timeout: float | None = None) -> Any:
        """Next mini-batch of a pass as it came.

        Parameters
        ----------
        stream : Stream, optional
            The pass; default: pass 0.
        timeout : float, optional
            Most seconds to wait while there are workers; None: no limit.

        Returns
        -------
        RawBatch, None or END
            None after :meth:`stop`; END at the end of the pass.

        Raises
        ------
        LoaderTimeout
            If nothing came in time.
        Exception
            What the control stream brought.
        """
        stream = stream or self._default
        while True:
            try:
                item = stream.get(timeout if self.workers else None)
            except queue.Empty:
                raise LoaderTimeout(timeout or 0.0) from None
            if item is NUDGE:
                continue
            if self._stopping:  # what is still there belongs to a ring that is gone
                item = CLOSED
            if item is CLOSED or isinstance(item, BaseException) or item is END:
                stream.put(item)  # whoever asks again gets the same answer
            if item is CLOSED:
                return None
            if isinstance(item, BaseException):
                self.raise_known(copy_exception(item) if item is self._failure else item)
            return item

    def retrieve(self, stream: Stream | None = None, timeout: float | None = None) -> Any:
        """Next mini-batch of a pass: a dict of arrays and lists, EMPTY or END.

        Raises
        ------
        LoaderClosed
            After :meth:`stop`.
        Exception
            As :meth:`retrieve_data`, or the exception that the mini-batch's samples raised.
        """
        return self.finish(self.retrieve_data(stream, timeout))

    def finish(self, raw: Any) -> Any:
        """What :meth:`retrieve` returns or raises, from what :meth:`retrieve_data` returned."""
        if raw is None:
            raise LoaderClosed(
                "The loader was stopped, or iterated anew, while a mini-batch was awaited."
            )
        if raw is END:
            return END
        if raw.status == Status.FAILED:
            if self._ring is not None:
                self._ring.give_back(raw.slot)
            self.raise_known(rebuild_exception(raw.frames[0]))
        self.skipped += raw.skipped
        try:
            mini_batch = assemble(raw, self._ring)
        except Exception as error:  # noqa: BLE001  what unpickling raises
            self.raise_known(error)
        return EMPTY if mini_batch is None else mini_batch


def _receive(reference: weakref.ref[Consumer]) -> None:
    """Body of the receiving thread: whatever ends it is the caller's to know."""
    try:
        _receive_until_stopped(reference)
    except BaseException as error:  # noqa: BLE001  who waits would never hear of it otherwise
        consumer = reference()
        if consumer is not None:
            failure = LoaderError(f"The loader's receiving thread has failed: {error!r}.")
            failure.__cause__ = error
            consumer.fail(failure)


def _receive_until_stopped(reference: weakref.ref[Consumer]) -> None:
    """One wait for results, control, wake-ups and deaths."""
    consumer = reference()
    if consumer is None:
        return
    poller = zmq.Poller()
    for source in (consumer._results, consumer._control, consumer._wakeup, *consumer._watched):
        poller.register(source, zmq.POLLIN)
    results, control = consumer._results, consumer._control
    recv_timeout = consumer._recv_timeout
    while True:
        del consumer  # so that an abandoned one can be collected during the wait
        if results.closed:  # it was, by this very line
            return
        ready = dict(poller.poll(recv_timeout))
        consumer = reference()
        if consumer is None or consumer._stopping:
            return
        if control in ready:
            consumer._accept_control()
        if results in ready:
            consumer._accept_results()
        for descriptor in ready.keys() & consumer._watched.keys():
            poller.unregister(descriptor)
            consumer._accept_results()
            consumer._accept_control()
            consumer.fail(consumer._watched[descriptor]())
