"""The broker process: sockets around the scheduler.

It never runs user code and never unpickles anything: payloads pass through as bytes.
"""

from __future__ import annotations

import logging
import mmap
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgpack
import zmq

from ..arguments import check_count
from ..errors import LoaderError, LoaderTimeout, Whereabouts, WorkerDied
from .addresses import remove_directory
from .failures import describe_failure
from .logs import forwarded_records, to_control
from .processes import death_descriptor, name_process
from .protocol import (
    Cancel,
    Chunk,
    Done,
    Failure,
    Message,
    NewDataset,
    Ready,
    Results,
    Stop,
    Submit,
    Waiting,
    WorkersUp,
    pack,
    unpack,
)
from .scheduler import Piece, Scheduler
from .segment import Stage, StatusPage
from .settings import Settings
from .sockets import LINGER, end_context, open_socket

__all__ = ["Broker", "broker_process"]

logger = logging.getLogger(__name__)

_KILLS = 2  # a sample that ends so many workers is the culprit, ...
_RESTARTS_PER_KILL = 40  # ... or more, where so many deaths are expected that it may be chance


class Broker:
    """Gives work to workers and passes finished mini-batches on.

    Parameters
    ----------
    work_address, worker_address : str
        Bound here: the producer and the workers connect.
    result_address, control_address : str
        Bound by the consumer.
    nworkers : int
        Workers that will connect.
    splittable : bool
        Whether several workers may make one mini-batch.
    one_epoch : bool
        Whether work of an epoch waits until nothing of another one is under way.
    restarts : int
        Most replacements of workers that died, in each pass.
    on_error_raises : bool
        Whether a sample that ends its workers is an error; else workers are told to do without it.
    token : bytes
        The loader's secret; messages without it are dropped.

    Raises
    ------
    TypeError, ValueError
        If an address is no address, or a number is no integer or too small.
    OSError
        If an address cannot be bound.
    """

    def __init__(
        self,
        work_address: str,
        worker_address: str,
        result_address: str,
        control_address: str,
        *,
        nworkers: int,
        splittable: bool = True,
        one_epoch: bool = False,
        restarts: int = 0,
        on_error_raises: bool = True,
        token: bytes = b"",
    ) -> None:
        self._nworkers = check_count("nworkers", nworkers)
        self._restarts = check_count("restarts", restarts, least=0)
        self._restarts_left: dict[int, int] = {}  # of each pass that has lost workers
        self._most_kills = max(_KILLS, self._restarts // _RESTARTS_PER_KILL)
        self._on_error_raises = on_error_raises
        self._token = token
        self._latest_pass = 0
        self._scheduler = Scheduler(self._nworkers, splittable, one_epoch)
        self._identities: dict[int, bytes] = {}
        self._kills: dict[tuple[int, Stage, int], int] = {}  # of what was worked on in which pass
        self._ended: dict[int, int] = {}  # which start of each worker was the last to end
        # Positions and chunks of the workers that have some, when the caller began to wait long.
        self._looks: dict[int, tuple[int, int]] = {}
        # Workers that are ended for it: the timeout, and the position they stood at.
        self._overdue: dict[int, tuple[float, int]] = {}
        self._up = False  # whether all workers were ready once
        self._supervisor: socket.socket | None = None
        self._status: StatusPage | None = None
        self._dataset: list[bytes] = []  # the message for workers that start later
        self._context: zmq.Context[Any] = zmq.Context()
        open_ = partial(open_socket, self._context, linger=LINGER)
        try:
            self._work = open_(zmq.PULL, "work_address", work_address, bind=True)
            self._workers = open_(zmq.ROUTER, "worker_address", worker_address, bind=True)
            self._workers.router_mandatory = True
            self._results = open_(zmq.PUSH, "result_address", result_address)
            self.control = open_(zmq.PUSH, "control_address", control_address)
            self.send_record = to_control(self.control, token)
        except BaseException:
            end_context(self._context, 0)
            raise

    def run(
        self,
        deaths: list[int],
        supervisor: socket.socket | None = None,
        status: StatusPage | None = None,
    ) -> None:
        """Serve until told to stop or one of `deaths`, death descriptors, is readable.

        Parameters
        ----------
        deaths : list of int
            Death descriptors of the processes without which the broker has no purpose.
        supervisor : socket, optional
            Brings the exits of workers, and takes requests to replace them.
        status : StatusPage, optional
            Tells what a dead worker was working on.
        """
        self._supervisor, self._status = supervisor, status
        poller = zmq.Poller()
        for source in [self._work, self._workers, *deaths, *([supervisor] if supervisor else [])]:
            poller.register(source, zmq.POLLIN)
        exits = msgpack.Unpacker()
        try:
            while True:
                ready = dict(poller.poll())
                if any(descriptor in ready for descriptor in deaths):
                    return
                if self._work in ready and not self._receive_work():
                    return
                if self._workers in ready:
                    self._receive_answers()
                if supervisor is not None and supervisor.fileno() in ready:
                    data = supervisor.recv(1 << 16)
                    if not data:
                        return
                    exits.feed(data)
                    for message in exits:
                        if isinstance(message, bytes):  # what importing modules has logged
                            with suppress(zmq.Again):
                                self.send_record(message)
                            continue
                        worker_id, pid, start, code, dump = message
                        self._ended[worker_id] = start  # its last words may still come
                        self._worker_ended(worker_id, pid, code, dump)
                self._send_results()
                self._give_work()
        except Exception as error:
            error.add_note("In the loader's broker process: this is a bug of crumpets_like.")
            self.control.send_multipart([pack(Failure(-1), self._token), describe_failure(error)])
            raise
        finally:
            self._stop_workers()
            end_context(self._context)

    # -- messages ------------------------------------------------------------------------

    def _receive_work(self) -> bool:
        """Take in what the producer wants; False when it wants an end."""
        while True:
            try:
                head, *frames = self._work.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            message = self._decode(head, frames)
            if isinstance(message, Submit):
                self._latest_pass = max(self._latest_pass, message.pass_id)
                self._scheduler.submit(message, frames)
            elif isinstance(message, Cancel):
                self._scheduler.cancel(message.pass_id)
            elif isinstance(message, NewDataset):
                self._dataset = [head, *frames]
                for worker_id in self._identities:
                    self._send_dataset(worker_id)
            elif isinstance(message, Waiting):
                self._caller_waits(message)
            elif isinstance(message, Stop):
                return False

    def _receive_answers(self) -> None:
        for _ in range(2 * self._nworkers):  # then others get their turn
            try:
                identity, head, *frames = self._workers.recv_multipart(zmq.NOBLOCK)
            except (zmq.Again, ValueError):
                return
            message = self._decode(head, frames)
            if isinstance(message, Done):
                if not self._scheduler.done(*message, frames):
                    logger.info("an answer to chunk %d came too late", message.chunk_id)
            elif isinstance(message, Ready):
                if message.start > self._ended.get(message.worker_id, -1):
                    self._identities[message.worker_id] = identity
                    if self._dataset:
                        self._send_dataset(message.worker_id)
                    self._scheduler.add_worker(message.worker_id)
                    self._up = self._up or len(self._identities) == self._nworkers
                    self._tell_ready()
            elif isinstance(message, Failure):
                self.control.send_multipart([head, *frames])

    def _tell_ready(self) -> None:
        """Tell the training process how many workers there are, once all were there."""
        if self._up:
            self.control.send(pack(WorkersUp(len(self._identities)), self._token))

    def _send_dataset(self, worker_id: int) -> None:
        try:
            self._workers.send_multipart([self._identities[worker_id], *self._dataset])
        except zmq.ZMQError as error:  # it is gone; whoever replaces it gets the message, too
            logger.info("worker %d cannot be reached: %s", worker_id, error)

    def _decode(self, head: bytes, frames: list[bytes]) -> Message | None:
        try:
            return unpack(head, frames, token=self._token)
        except ValueError as error:
            logger.warning("dropped a message: %s", error)
            return None

    def _send_results(self) -> None:
        finished = self._scheduler.finished()
        if not finished:
            return
        items = []
        frames: list[Any] = []
        for batch in finished:
            item, item_frames = batch.item()
            items.append(item)
            frames += item_frames
        scheduler = self._scheduler
        head = Results(scheduler.seconds_per_sample, scheduler.chunk_samples, items)
        self._results.send_multipart([pack(head, self._token), *frames])

    def _give_work(self) -> None:
        for assignment in self._scheduler.assignments():
            batch = assignment.pieces[0].batch
            careful = int(assignment.careful)
            chunk = Chunk(assignment.chunk_id, batch.epoch, batch.kind, careful, assignment.parts)
            identity = self._identities[assignment.worker]
            try:
                self._workers.send_multipart(
                    [identity, pack(chunk, self._token), *assignment.frames]
                )
            except zmq.ZMQError as error:
                # The worker is gone; its exit is on its way, and then others get the chunk.
                logger.info("worker %d cannot be reached: %s", assignment.worker, error)

    def _stop_workers(self) -> None:
        for identity in self._identities.values():
            try:
                self._workers.send_multipart([identity, pack(Stop(), self._token)])
            except zmq.ZMQError:  # it is gone already
                pass

    # -- deaths --------------------------------------------------------------------------

    def _worker_ended(self, worker_id: int, pid: int, code: int, dump: str) -> None:
        """A worker process is gone and reaped: nobody writes its rows any more."""
        position, stage = -1, Stage.SAMPLE
        if self._status is not None:
            position, stage = self._status.position(worker_id), self._status.stage(worker_id)
            self._status.set_position(worker_id, -1)
        ready = self._identities.pop(worker_id, None) is not None
        self._tell_ready()
        timeout, stuck_at = self._overdue.pop(worker_id, (None, -1))
        pieces = self._scheduler.remove_worker(worker_id)
        suspect = next((piece for piece in pieces if piece.holds(position)), None)
        if suspect is None and timeout is not None and stuck_at < 0 and pieces:
            suspect = pieces[0]  # it has not even begun
        where = _whereabouts(worker_id, pid, suspect, position, stage)
        pass_id = pieces[0].batch.pass_id if pieces else self._latest_pass
        logger.warning("worker %d (pid %d) ended with code %d", worker_id, pid, code)
        if suspect:
            instead = self._suspect(suspect, position, stage, where, code, dump, timeout)
            at = pieces.index(suspect)
            pieces[at : at + 1] = instead
        if self._scheduler.has_streams(worker_id):
            why = "It cannot be replaced in a stream, of which it alone knows how far it has come."
            ended = describe_failure(WorkerDied(where, code, why, dump))
            self._scheduler.end_streams(worker_id, [ended])
        left = self._restarts_left.get(pass_id, self._restarts)
        self._restarts_left[pass_id] = max(0, left - 1)
        if left == 0:
            why = (
                f"No worker is replaced any more: {self._restarts} were, the limit of an epoch "
                "(raise restarts= to allow more)."
            )
            if not ready:
                why = f"It was not ready yet: it unpickled the dataset, or ran setup(). {why}"
            died = describe_failure(WorkerDied(where, code, why, dump))
            if not pieces:  # it cannot even start, or ended between epochs: nothing else would fail
                self.control.send_multipart([pack(Failure(worker_id), self._token), died])
                return
            self._scheduler.end_pass(pass_id, [died])
        self._scheduler.give_again(pieces)
        self._ask_supervisor("start", worker_id)

    def _suspect(
        self,
        suspect: Piece,
        position: int,
        stage: Stage,
        where: Whereabouts,
        code: int,
        dump: str,
        timeout: float | None,
    ) -> list[Piece]:
        """What to give out instead of rows of which something has ended a worker."""
        pass_id = suspect.batch.pass_id
        place = (pass_id, stage, -1 if stage is Stage.START_EPOCH else position)
        kills = self._kills[place] = self._kills.get(place, 0) + 1
        if stage is Stage.SAMPLES:  # each of those at once may be the one, of which they are tried
            first = suspect.batch.position + suspect.start
            for other in range(position, first + suspect.size):
                sample = (pass_id, Stage.SAMPLE, other)
                self._kills[sample] = self._kills.get(sample, 0) + 1
        error: LoaderError
        if timeout is not None and (self._on_error_raises or stage is not Stage.SAMPLES):
            error = LoaderTimeout(timeout, where, dump)
        elif timeout is None and kills >= self._most_kills:
            error = WorkerDied(where, code, f"The same has ended {kills} workers.", dump)
        elif stage is Stage.START_EPOCH:
            return [suspect]
        else:
            # Rows that are read, prepared or joined at once do not tell whose fault it is.
            return self._scheduler.singly(suspect)
        del self._kills[place]
        described = describe_failure(error)
        if stage is Stage.START_EPOCH:  # so it would be for all that it has
            self._scheduler.end_pass(pass_id, [described])
            return [suspect]
        if self._on_error_raises or stage is not Stage.SAMPLE:
            self._scheduler.fail_lost([suspect], [described])
            return []
        if not suspect.holds(position):
            return [suspect]
        # That is left to `on_error`, so it costs no restarts.
        self._restarts_left[pass_id] = self._restarts_left.get(pass_id, self._restarts) + kills
        return [suspect._replace(lost=(*suspect.lost, (position, described)), careful=True)]

    def _caller_waits(self, message: Waiting) -> None:
        """End the workers that have not got on since half of the caller's timeout."""
        status = self._status
        if status is None:  # nobody tells where they are
            return
        before = self._looks
        self._looks = {
            worker: (status.position(worker), chunk)
            for worker in self._identities
            if (chunk := self._scheduler.chunk_of(worker)) is not None
        }
        if not message.overdue:
            return
        stuck = [
            worker
            for worker in sorted(self._scheduler.blocking(message.pass_id, message.number))
            if worker in self._looks
            and self._looks[worker] == before.get(worker)
            and worker not in self._overdue
        ]
        for worker in stuck:
            self._overdue[worker] = (message.seconds, self._looks[worker][0])
            logger.warning(
                "worker %d is replaced: it has not got on for half of the %g seconds that the "
                "caller has waited (timeout=)",
                worker,
                message.seconds,
            )
        self._ask_supervisor("end", *stuck)  # at once, so that they are ended together

    def _ask_supervisor(self, action: str, *workers: int) -> None:
        if self._supervisor is not None:
            requests = [msgpack.packb([action, worker]) for worker in workers]
            self._supervisor.sendall(b"".join(requests))


def _whereabouts(
    worker_id: int, pid: int, piece: Piece | None, position: int, stage: Stage
) -> Whereabouts:
    """Where a worker was that has ended."""
    if piece is None:
        return Whereabouts(worker_id, pid)
    where = Whereabouts(worker_id, pid, epoch=piece.batch.epoch, batch=piece.batch.number)
    if not piece.holds(position):
        return where
    if stage is Stage.START_EPOCH:  # whichever mini-batch comes first
        return replace(where, during="start_epoch", batch=None)
    if stage is Stage.COLLATE:
        return replace(where, during="collate, or pickling its result")
    first = position - piece.batch.position - piece.start
    indices, keys = piece.indices[first:], piece.keys[first:]
    if stage is Stage.SAMPLES:
        return replace(where, indices=indices, keys=keys)
    return replace(where, index=next(iter(indices), None), keys=keys[:1])


def broker_process(settings: Settings, supervisor_pid: int, channel: socket.socket) -> None:
    """Body of the broker process, a child of the supervisor."""
    name_process("crumpets-broker")
    memory = mmap.mmap(settings.ring, settings.geometry.size)
    try:
        trainer = death_descriptor(settings.trainer)
        broker = Broker(
            settings.work_address,
            settings.worker_address,
            settings.result_address,
            settings.control_address,
            nworkers=settings.nworkers,
            splittable=settings.splittable,
            one_epoch=settings.one_epoch,
            restarts=settings.restarts,
            on_error_raises=settings.on_error_raises,
            token=settings.token,
        )
        channel.sendall(msgpack.packb(True))  # bound: workers may connect
        status = StatusPage(memory, max(1, settings.nworkers))
        with forwarded_records(broker.send_record, "crumpets-broker", settings.levels):
            broker.run([trainer, death_descriptor(supervisor_pid)], channel, status)
    finally:
        remove_directory(settings.uid)
