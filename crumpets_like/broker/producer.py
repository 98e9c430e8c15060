"""The sending end in the training process: it says which mini-batches are wanted.

Mini-batches are requested ahead, at most `window` at a time. Each request carries the slot that
will hold the result, so a request is never without a buffer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from itertools import islice
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from ..arguments import check_count
from ..epochs import EpochPlan
from ..passes import Mark
from .pickling import dump_for_workers
from .processes import THREAD_NAME
from .protocol import BatchHead, Cancel, Kind, NewDataset, Stop, Submit, Waiting, pack
from .ring import BufferRing
from .snapshot import Place
from .sockets import LINGER, open_socket
from .stream import Stream

__all__ = ["Pass", "Producer", "Window"]

_REFILL = 4  # something happens when this part of the window is free: few, not tiny messages


class Window:
    """What one caller may have requested ahead; passes that follow each other share it.

    Parameters
    ----------
    size : int
        Mini-batches requested ahead.
    eager : bool
        Whether each mini-batch that is received is replaced at once. Else several are requested
        in one message once a quarter of the window is free.

    Attributes
    ----------
    granted : int
        Slots in use for mini-batches that the caller has not received.
    slots : deque of int
        Those of them for which nothing was requested yet.
    """

    def __init__(self, size: int, eager: bool = False) -> None:
        self.size = check_count("window", size)
        self.granted = 0
        self.slots: deque[int] = deque()
        self._eager = eager

    def worth_it(self, slots: int) -> bool:
        """Whether so many slots are worth a message."""
        return slots > 0 and (self._eager or slots * _REFILL >= self.size)


class Pass:
    """One pass over the data on its way: what was requested of its plan.

    Attributes
    ----------
    id : int
        Its number among the passes of the engine.
    window : Window
        Whose slots it takes.
    plan : EpochPlan
        The epoch's batches.
    stream : Stream
        Where its mini-batches arrive.
    counts : deque of (int, int, Mark)
        Mini-batches and samples of each batch that was read from the plan and not delivered yet,
        and where the plan goes on behind it.
    delivered : int
        Samples of the batches that were delivered.
    mark : Mark
        Where the plan goes on behind them.
    exhausted : bool
        Whether all of the plan is requested.
    cancelled, interrupted : bool
        Whether it was dropped; whether another thread wants it to be left.
    requested, retrieved : int
        Mini-batches.
    awaited_came : bool
        Whether the mini-batch that was asked for last has come: then an error was its own.
    partial : list
        Mini-batches of a batch that is not complete yet.
    thread : threading.Thread or None
        Which reads the plan, if it gives samples of an iterable.
    successor : Pass or None
        What is requested once this pass is requested to its end.
    """

    def __init__(self, pass_id: int, plan: EpochPlan, stream: Stream, window: Window) -> None:
        self.id = pass_id
        self.window = window
        self.plan = plan
        self.stream = stream
        self.counts: deque[tuple[int, int, Mark]] = deque()
        self.delivered = 0
        self.mark = plan.mark
        self.exhausted = False
        self.cancelled = False
        self.interrupted = False
        self.requested = 0
        self.retrieved = 0
        self.awaited_came = False
        self.successor: Pass | None = None
        self.partial: list[Any] = []
        self.thread: threading.Thread | None = None
        self._rest: deque[Any] = deque()  # mini-batches of a batch that have no slot yet
        self._position = plan.first_position

    def read(self, mini_batch_size: int) -> bool:
        """Read one batch of the plan if none is left; False at the end of the pass."""
        if self._rest:
            return True
        if self.exhausted:
            return False
        try:
            batch = next(self.plan)
        except StopIteration:
            self._end(None)
            return False
        except Exception as error:  # noqa: BLE001  raised to the caller when its turn comes
            self._end(error)
            return False
        cuts = [batch[i : i + mini_batch_size] for i in range(0, len(batch), mini_batch_size)]
        self.counts.append((len(cuts), len(batch), self.plan.mark))
        self._rest.extend(cuts)
        return True

    def encode_next(self) -> NDArray[np.int64] | list[bytes] | None:
        """What travels of the next mini-batch that was read: indices, or a pickle of each key.

        None if that fails: the pass ends with the error.
        """
        keys = self._rest[0]
        if isinstance(keys, np.ndarray):
            return keys
        try:
            return [dump_for_workers(key) for key in keys]
        except Exception as error:  # noqa: BLE001  raised to the caller in its turn
            what = "sample of the iterable" if self.plan.kind == "samples" else "key"
            error.add_note(f"A {what} could not be pickled for the workers.")
            self.fail(error)
            return None

    def next_mini_batch(self, slot: int) -> BatchHead:
        """Number the next mini-batch that was read, which goes to `slot`."""
        rows = len(self._rest.popleft())
        head = BatchHead(self.requested, slot, rows, self._position, self.plan.worker)
        self.requested += 1
        self._position += rows
        return head

    def join(self, timeout: float | None) -> bool:
        """Wait until nothing of a cancelled pass is read any more; False after `timeout`."""
        if self.thread is None:
            return True
        self.thread.join(timeout)
        return not self.thread.is_alive()

    def fail(self, error: BaseException) -> None:
        """End the pass with an error, behind the mini-batches that were requested."""
        self._rest.clear()
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.exhausted = True
        self.stream.end(self.requested, error)


class Producer:
    """Numbers the mini-batches and sends their indices or samples to the broker.

    Indices are read and sent in the caller's thread (foreign samplers draw from global
    generators); an iterable of samples is read in a thread of its own, so that reading
    overlaps with the caller's work.

    Parameters
    ----------
    address : str
        Where the broker takes work; it need not be bound yet.
    context : zmq.Context
        Context of this process's sockets.
    ring : BufferRing
        Gives the slots.
    mini_batch_size : int
        Most samples of a mini-batch.
    window : int
        Mini-batches requested ahead, where a pass has no window of its own.
    token : bytes
        The loader's secret.

    Raises
    ------
    TypeError, ValueError
        If the address is no address, or a number is no positive integer.
    """

    def __init__(
        self,
        address: str,
        context: zmq.Context[Any],
        ring: BufferRing,
        mini_batch_size: int,
        window: int,
        *,
        token: bytes = b"",
    ) -> None:
        self._ring = ring
        self._token = token
        self._mini_batch_size = check_count("mini_batch_size", mini_batch_size)
        self.window = Window(window)
        self.seconds_reading = 0.0  # of samplers and iterables
        self._windows = [self.window]
        self._ids = itertools.count(1)  # whose next() threads may call at once
        self._changed = threading.Condition()  # guards slots and socket: two threads use them
        self._socket = open_socket(context, zmq.PUSH, "address", address, linger=LINGER)

    @property
    def granted(self) -> int:
        """Slots that are in use for mini-batches that no caller has received."""
        return sum(window.granted for window in self._windows)

    @property
    def waiting(self) -> int:
        """Slots for which nothing was requested yet."""
        return sum(len(window.slots) for window in self._windows)

    def open_window(self, size: int) -> Window:
        """A window of its own for a caller beside others: it replaces at once what it receives."""
        window = Window(size, eager=True)
        self._windows.append(window)
        return window

    def close_window(self, window: Window) -> None:
        """Give back the slots of a window whose passes are cancelled."""
        with self._changed:
            self._windows.remove(window)
            slots, window.slots = window.slots, deque()
        for slot in slots:
            self._ring.give_back(slot)

    def new_id(self) -> int:
        """A number for a new pass."""
        return next(self._ids)

    def open(self, new: Pass) -> None:
        """Begin a pass."""
        if new.plan.kind == "samples":
            new.thread = threading.Thread(
                target=self._pump, args=(new,), name=f"{THREAD_NAME}producer", daemon=True
            )
            new.thread.start()

    def grant(self, this: Pass, slot: int) -> None:
        """Allow one more request, into `slot`."""
        this.window.granted += 1
        self._give(this.window, [slot])

    def _give(self, window: Window, slots: list[int]) -> None:
        with self._changed:
            window.slots += slots
            self._changed.notify_all()

    def refill(self, this: Pass) -> None:
        """Allow requests up to the window, as far as there are slots; several at once."""
        window = this.window
        missing = window.size - window.granted
        if window.granted and not window.worth_it(missing):
            return
        slots = list(islice(iter(self._ring.take, None), max(0, missing)))
        if slots:
            window.granted += len(slots)
            self._give(window, slots)

    def retrieved(self, this: Pass) -> None:
        """The caller has received a mini-batch."""
        this.retrieved += 1
        this.window.granted -= 1

    def fill(self, this: Pass) -> None:
        """Request index mini-batches of a pass (then of its successor) into the waiting slots."""
        while this.exhausted and this.successor is not None:
            this = this.successor
        if this.exhausted or this.cancelled or this.thread is not None:
            return
        window = this.window
        waiting = len(window.slots)
        if not waiting or (waiting < window.granted and not window.worth_it(waiting)):
            return
        heads: list[BatchHead] = []
        keys: list[Any] = []
        try:
            for _ in range(waiting):
                if not self._read(this) or (cut := this.encode_next()) is None:
                    break
                if keys and type(cut) is not type(keys[0]):
                    self._send(this, heads, keys)
                    heads, keys = [], []
                heads.append(this.next_mini_batch(window.slots.popleft()))
                keys.append(cut)
        finally:  # Ctrl-C may end the reading: what has a number must be requested
            if heads:
                self._send(this, heads, keys)

    def _read(self, this: Pass) -> bool:
        started = time.perf_counter()
        try:
            return this.read(self._mini_batch_size)
        finally:
            self.seconds_reading += time.perf_counter() - started

    def _send(self, this: Pass, heads: list[BatchHead], keys: list[Any]) -> None:
        frames: list[Any]
        if isinstance(keys[0], np.ndarray):
            kind = Kind.INDICES
            frames = [np.concatenate(keys) if len(keys) > 1 else np.ascontiguousarray(keys[0])]
        else:
            kind = Kind.SAMPLES if this.plan.kind == "samples" else Kind.KEYS
            frames = [key for cut in keys for key in cut]
        message = pack(Submit(this.id, this.plan.epoch, kind, heads), self._token)
        with self._changed:
            self._socket.send_multipart([message, *frames])

    def _pump(self, this: Pass) -> None:
        """Read an iterable of samples and send them: body of the producing thread."""
        while (slot := self._wait_for_slot(this)) is not None:
            try:
                more = self._read(this)
            except BaseException as error:  # noqa: BLE001  raised to the caller in its turn
                this.fail(error)
                more = False
            if not more or not self._request_samples(this, slot):
                self._give(this.window, [slot])
                return

    def _wait_for_slot(self, this: Pass) -> int | None:
        """A slot to read for; None once the pass is cancelled."""
        with self._changed:
            while not this.window.slots and not this.cancelled:
                self._changed.wait()
            return None if this.cancelled else this.window.slots.popleft()

    def _request_samples(self, this: Pass, slot: int) -> bool:
        """Send the next mini-batch of samples; False if the pass has ended meanwhile."""
        samples = this.encode_next()
        with self._changed:
            if samples is None or this.cancelled:
                return False
            self._send(this, [this.next_mini_batch(slot)], [samples])
        return True

    def cancel(self, this: Pass) -> None:
        """Drop what is left of a pass; its slots come back through the consumer."""
        with self._changed:
            cancelled, this.cancelled = this.cancelled, True
            self._changed.notify_all()  # each time: Ctrl-C may have come before the first one
            if cancelled:
                return
            under_way = this.requested - this.retrieved
            this.window.granted -= under_way
            if under_way or this.plan.worker >= 0:  # of streams the broker knows their workers
                self._socket.send(pack(Cancel(this.id), self._token))

    def tell_waiting(self, this: Pass, overdue: int, seconds: float) -> None:
        """Tell the broker that the caller waits long, or too long."""
        message = Waiting(this.id, this.stream.awaited, overdue, float(seconds))
        with self._changed:
            self._socket.send(pack(message, self._token))

    def send_dataset(self, place: Place) -> None:
        """Tell the workers where the dataset lies from now on."""
        with self._changed:
            self._socket.send_multipart([pack(NewDataset(), self._token), place.pack()])

    def stop(self) -> None:
        """Tell the broker to end, and close the socket; passes must have been cancelled."""
        with self._changed:
            self._socket.send(pack(Stop(), self._token))
            self._socket.close()
