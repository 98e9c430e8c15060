"""A broker with everything that it talks to."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np
import zmq

from crumpets_like.broker import Broker
from crumpets_like.broker.failures import rebuild_exception
from crumpets_like.broker.processes import Wakeup
from crumpets_like.broker.protocol import (
    BatchHead,
    Done,
    Failure,
    Kind,
    Outcome,
    Ready,
    Status,
    Submit,
    WorkersUp,
)
from crumpets_like.broker.segment import NO_SLOT, Stage, StatusPage
from tests.support.loading import wait_until
from tests.support.sockets import Peer, Peers, addresses, in_thread

__all__ = ["SLOW", "Bench", "running"]

SLOW = 0.1  # seconds per sample: nothing is grouped, and no second chunk is given in advance


class Bench:
    """A broker that runs in a thread, and everything that it talks to."""

    def __init__(
        self, peers: Peers, names: list[str], nworkers: int, restarts: int = 0, **options: Any
    ) -> None:
        work, worker, results, control = names
        self.peers, self.worker_address = peers, worker
        self.results = peers.open(zmq.PULL, results, bind=True)
        self.control = peers.open(zmq.PULL, control, bind=True)
        self.broker = Broker(*names, nworkers=nworkers, restarts=restarts, **options)
        self.producer = peers.open(zmq.PUSH, work)
        self.status = StatusPage(bytearray(64 * nworkers), nworkers)
        self.status.clear()
        self.supervisor, self.broker_side = socket.socketpair()
        self.supervisor.settimeout(10)
        self.workers: list[Peer] = []
        self.pids: dict[int, int] = {}
        self.fresh_pids = itertools.count(1000)

    def start_workers(self, count: int) -> None:
        """Workers that say that they are ready, one after the other."""
        self.workers = [self.start_worker(worker_id) for worker_id in range(count)]
        if count:
            assert self.control.receive() == (WorkersUp(count), [])

    def start_worker(self, worker_id: int, name: bytes = b"") -> Peer:
        """A worker that says that it is ready."""
        name = name or b"%d" % worker_id
        peer = self.peers.open(zmq.DEALER, self.worker_address, name=name)
        self.pids[worker_id] = next(self.fresh_pids)
        peer.send(Ready(worker_id, self.pids[worker_id]))
        assert wait_until(lambda: self.broker._identities.get(worker_id) == name)
        return peer

    def submit(
        self, *rows: int, pass_id: int = 1, epoch: int = 0, kind: Kind = Kind.INDICES
    ) -> None:
        """Request mini-batches of so many rows; indices count from 100."""
        heads: list[BatchHead] = []
        position = 0
        for number, count in enumerate(rows):
            heads.append(BatchHead(number, NO_SLOT, count, position))
            position += count
        if kind is Kind.INDICES:
            frames = [np.arange(100, 100 + position).tobytes()]
        else:
            frames = [b"sample"] * position
        self.producer.send(Submit(pass_id, epoch, kind, heads), *frames)

    def work(
        self, worker: Peer, frames: Sequence[bytes] = (b"result",), seconds: float = SLOW
    ) -> tuple[Any, Done]:
        """Let a worker finish the chunk that it has got; returns that, and the answer."""
        chunk, (indices,) = worker.receive()
        samples = sum(part.size for part in chunk.parts)
        first = int(np.frombuffer(indices, np.int64)[0])
        answer = Done(chunk.chunk_id, seconds * samples, [Outcome(0, len(frames), first, 0)])
        worker.send(answer, *frames)
        return chunk, answer

    def receive_until(self, worker: Peer, position: int) -> tuple[Any, list[bytes]]:
        """Let a worker finish chunks until it gets the one with a sample; returns that one."""
        while True:
            chunk, frames = worker.receive()
            (part,) = chunk.parts
            if part.position <= position < part.position + part.size:
                return chunk, frames
            worker.send(Done(chunk.chunk_id, SLOW, [Outcome(0, 1, 0, 0)]), b"result")

    def ended(
        self,
        worker_id: int,
        position: int = -1,
        code: int = -9,
        stack: str = "",
        stage: Stage = Stage.SAMPLE,
    ) -> None:
        """A worker is gone, says the supervisor; it worked on the sample at `position`."""
        self.status.set_position(worker_id, position)
        self.status.stage_cell(worker_id)[0] = stage
        pid = self.pids.get(worker_id, -1)
        self.supervisor.sendall(msgpack.packb([worker_id, pid, pid, code, stack]))

    def requested(self) -> Any:
        """What the supervisor is asked for: action and worker."""
        return msgpack.unpackb(self.supervisor.recv(100))

    def restart_requested(self) -> int:
        """The worker that the supervisor is asked to start again."""
        action, worker_id = self.requested()
        assert action == "start"
        return int(worker_id)

    def failed(self) -> tuple[Any, list[bytes]]:
        """Items and frames of the results, of which one has failed."""
        message, frames = self.results.receive()
        assert Status.FAILED in [item.status for item in message.items]
        return message.items, frames

    def died(self) -> BaseException:
        """The error that the training process is told."""
        while not isinstance((received := self.control.receive())[0], Failure):
            assert isinstance(received[0], WorkersUp)
        (frame,) = received[1]
        return rebuild_exception(frame)


@contextmanager
def running(nworkers: int = 1, ready: int | None = None, **options: Any) -> Iterator[Bench]:
    """A broker for `nworkers` workers, of which `ready` are there."""
    wakeup = Wakeup()
    try:
        with addresses("work", "worker", "consume", "control") as names, Peers() as peers:
            bench = Bench(peers, names, nworkers, **options)
            with bench.supervisor, bench.broker_side:
                run = lambda: bench.broker.run(  # noqa: E731
                    [wakeup.fileno()], bench.broker_side, bench.status
                )
                with in_thread(run, wakeup.set):
                    bench.start_workers(nworkers if ready is None else ready)
                    yield bench
    finally:
        wakeup.close()
