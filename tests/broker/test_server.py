import itertools
import logging
import select
import socket
from contextlib import contextmanager

import msgpack
import numpy as np
import pytest
import zmq

from crumpets_like import LoaderTimeout, WorkerDied
from crumpets_like.broker import Broker
from crumpets_like.broker.failures import describe_failure, rebuild_exception, unpack_errors
from crumpets_like.broker.processes import Wakeup
from crumpets_like.broker.protocol import (
    BatchHead,
    Cancel,
    Chunk,
    Done,
    Failure,
    Item,
    Kind,
    Outcome,
    Part,
    Ready,
    Results,
    Segment,
    Status,
    Stop,
    Submit,
    Waiting,
    WorkersUp,
)
from crumpets_like.broker.segment import NO_SLOT, StatusPage
from crumpets_like.errors import Whereabouts
from tests.support.loading import wait_until
from tests.support.sockets import GARBAGE, Peers, addresses, in_thread

SLOW = 0.1  # seconds per sample: nothing is grouped, and no second chunk is given in advance


class Bench:
    """A broker that runs in a thread, and everything that it talks to."""

    def __init__(self, peers, names, nworkers, restarts=0, **options):
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
        self.workers = []
        self.pids = {}
        self.fresh_pids = itertools.count(1000)

    def start_workers(self, count):
        """Workers that say that they are ready, one after the other."""
        self.workers = [self.start_worker(worker_id) for worker_id in range(count)]
        if count:
            assert self.control.receive() == (WorkersUp(count), [])

    def start_worker(self, worker_id, name=b""):
        name = name or b"%d" % worker_id
        peer = self.peers.open(zmq.DEALER, self.worker_address, name=name)
        self.pids[worker_id] = next(self.fresh_pids)
        peer.send(Ready(worker_id, self.pids[worker_id]))
        assert wait_until(lambda: self.broker._identities.get(worker_id) == name)
        return peer

    def submit(self, *rows, pass_id=1, epoch=0, kind=Kind.INDICES):
        heads, position = [], 0
        for number, count in enumerate(rows):
            heads.append(BatchHead(number, NO_SLOT, count, position))
            position += count
        if kind is Kind.INDICES:
            frames = [np.arange(100, 100 + position).tobytes()]
        else:
            frames = [b"sample"] * position
        self.producer.send(Submit(pass_id, epoch, kind, heads), *frames)

    def work(self, worker, frames=(b"result",), seconds=SLOW):
        """Let a worker finish the chunk that it has got; returns that, and the answer."""
        chunk, (indices,) = worker.receive()
        samples = sum(part.size for part in chunk.parts)
        first = int(np.frombuffer(indices, np.int64)[0])
        answer = Done(chunk.chunk_id, seconds * samples, [Outcome(0, len(frames), first, 0)])
        worker.send(answer, *frames)
        return chunk, answer

    def receive_until(self, worker, position):
        """Let a worker finish chunks until it gets the one with a sample; returns that one."""
        while True:
            chunk, frames = worker.receive()
            (part,) = chunk.parts
            if part.position <= position < part.position + part.size:
                return chunk, frames
            worker.send(Done(chunk.chunk_id, SLOW, [Outcome(0, 1, 0, 0)]), b"result")

    def ended(self, worker_id, position=-1, code=-9, stack=""):
        """A worker is gone, says the supervisor; it worked on the sample at `position`."""
        self.status.set_position(worker_id, position)
        pid = self.pids.get(worker_id, -1)
        self.supervisor.sendall(msgpack.packb([worker_id, pid, code, stack]))

    def requested(self):
        """What the supervisor is asked for: action and worker."""
        return msgpack.unpackb(self.supervisor.recv(100))

    def restart_requested(self):
        action, worker_id = self.requested()
        assert action == "start"
        return worker_id

    def died(self):
        message, (frame,) = self.control.receive()
        assert isinstance(message, Failure)
        return rebuild_exception(frame)


@contextmanager
def running(nworkers=1, ready=None, **options):
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


class TestWork:
    def test_the_way_of_a_mini_batch(self):
        with running() as bench:
            bench.submit(3, pass_id=7, epoch=2)
            chunk, (indices,) = bench.workers[0].receive()
            assert chunk == Chunk(1, 2, Kind.INDICES, 0, [Part(NO_SLOT, 3, 0, 3, 0)])
            assert np.frombuffer(indices, np.int64).tolist() == [100, 101, 102]
            bench.workers[0].send(Done(1, 0.75, [Outcome(0, 2, 100, 0)]), b"a", b"b")
            message, frames = bench.results.receive()
            item = Item(7, 0, NO_SLOT, 3, Status.DONE, [Segment(0, 3, 2, 100, 0)])
            assert message == Results(0.25, 3, [item])
            assert frames == [b"a", b"b"]

    def test_samples_pass_through_untouched(self):
        with running() as bench:
            head = BatchHead(0, 5, 2, 40)
            bench.producer.send(Submit(1, 0, Kind.SAMPLES, [head]), b"sample", b"\x80 no pickle")
            chunk, frames = bench.workers[0].receive()
            assert chunk == Chunk(1, 0, Kind.SAMPLES, 0, [Part(5, 2, 0, 2, 40)])
            assert frames == [b"sample", b"\x80 no pickle"]

    def test_rows_of_several_workers_are_put_together(self):
        with running(nworkers=2) as bench:
            bench.submit(4)
            bench.work(bench.workers[1], [b"second"])
            assert bench.results.silent()
            bench.work(bench.workers[0], [b"first"])
            message, frames = bench.results.receive()
            assert message.items[0].segments == [
                Segment(0, 2, 1, 100, 0),
                Segment(2, 2, 1, 102, 0),
            ]
            assert frames == [b"first", b"second"]

    def test_workers_that_come_late_get_work(self):
        with running(ready=0) as bench:
            bench.submit(1)
            bench.work(bench.start_worker(0))
            bench.results.receive()

    def test_a_failed_sample(self):
        with running() as bench:
            bench.submit(1)
            chunk, _ = bench.workers[0].receive()
            bench.workers[0].send(
                Done(chunk.chunk_id, 0.1, [Outcome(1, 1, 100, 0)]), b"the exception"
            )
            message, frames = bench.results.receive()
            assert message.items == [Item(1, 0, NO_SLOT, 1, Status.FAILED, [])]
            assert frames == [b"the exception"]

    def test_cancel(self):
        with running() as bench:
            bench.submit(1, 1)
            chunk, _ = bench.workers[0].receive()
            bench.producer.send(Cancel(1))
            message, _ = bench.results.receive()
            assert message.items == [Item(1, 1, NO_SLOT, 1, Status.CANCELLED, [])]
            bench.workers[0].send(Done(chunk.chunk_id, 0.1, [Outcome(0, 1, 100, 0)]), b"late")
            message, frames = bench.results.receive()
            assert message.items == [Item(1, 0, NO_SLOT, 1, Status.CANCELLED, [])]
            assert frames == []

    def test_options_reach_the_scheduler(self):
        with running(nworkers=2, splittable=False, one_epoch=True) as bench:
            bench.submit(4)
            bench.submit(2, pass_id=2, epoch=1)
            chunk, _ = bench.work(bench.workers[0])
            assert chunk.parts == [Part(NO_SLOT, 4, 0, 4, 0)]
            bench.results.receive()
            # The first worker, which was busy, has asked last.
            chunk, _ = bench.work(bench.workers[1])
            assert chunk.epoch == 1


class TestStrayMessages:
    def test_doubled_and_unknown_answers_are_ignored(self, caplog):
        with running() as bench, caplog.at_level(logging.INFO):
            bench.submit(1)
            _, answer = bench.work(bench.workers[0])
            bench.workers[0].send(answer, b"again")
            bench.workers[0].send(Done(99, 0.1, [Outcome(0, 0, 0, 0)]))
            message, frames = bench.results.receive()
            assert (len(message.items), frames) == (1, [b"result"])
            assert wait_until(lambda: caplog.text.count("came too late") == 2)
            assert bench.results.silent()
            bench.submit(1, pass_id=2)
            bench.work(bench.workers[0])
            bench.results.receive()

    def test_a_late_answer_of_a_dead_worker_is_ignored(self):
        with running(nworkers=2, restarts=9) as bench:
            bench.submit(2)
            chunk, _ = bench.workers[0].receive()
            bench.work(bench.workers[1])
            bench.ended(0, position=0)
            assert bench.restart_requested() == 0
            again, _ = bench.workers[1].receive()
            assert again.parts == chunk.parts
            assert again.chunk_id != chunk.chunk_id
            bench.workers[0].send(Done(chunk.chunk_id, 0.1, [Outcome(0, 1, 100, 0)]), b"late")
            bench.workers[1].send(Done(again.chunk_id, 0.1, [Outcome(0, 1, 100, 0)]), b"good")
            message, frames = bench.results.receive()
            assert message.items[0].status == Status.DONE
            assert frames == [b"good", b"result"]
            assert bench.results.silent()

    @pytest.mark.parametrize("number", range(len(GARBAGE)))
    @pytest.mark.parametrize("to", ["work", "worker"])
    def test_garbage_is_dropped_and_logged_and_the_run_goes_on(self, caplog, to, number):
        with running() as bench, caplog.at_level(logging.WARNING):
            if to == "work":
                bench.producer.send_raw(GARBAGE[number])
            else:
                stranger = bench.peers.open(zmq.DEALER, bench.worker_address)
                stranger.send_raw(GARBAGE[number])
            assert wait_until(lambda: "dropped a message" in caplog.text)
            bench.submit(1)
            bench.work(bench.workers[0])
            bench.results.receive()

    def test_garbage_from_a_worker_in_the_middle_of_its_work(self, caplog):
        with running() as bench, caplog.at_level(logging.WARNING):
            bench.submit(1)
            for frames in GARBAGE:
                bench.workers[0].send_raw(frames)
            bench.work(bench.workers[0])
            message, _ = bench.results.receive()
            assert message.items[0].status == Status.DONE
        assert caplog.text.count("dropped a message") == len(GARBAGE)


class TestEnd:
    def test_stop(self):
        with running(nworkers=2) as bench:
            bench.producer.send(Stop())
            assert [worker.receive()[0] for worker in bench.workers] == [Stop(), Stop()]

    def test_a_process_that_is_needed_ends(self):
        with running() as bench:
            worker = bench.workers[0]
            bench.supervisor.close()
            assert worker.receive()[0] == Stop()

    def test_a_death_descriptor(self):
        wakeup = Wakeup()
        with addresses("work", "worker", "consume", "control") as names:
            wakeup.set()
            Broker(*names, nworkers=1).run([wakeup.fileno()])  # returns
        wakeup.close()


class TestWorkers:
    def test_up_once_all_of_them_are_ready(self):
        with running(nworkers=2, ready=0) as bench:
            bench.start_worker(1)
            assert bench.control.silent()
            bench.start_worker(0)
            assert bench.control.receive()[0] == WorkersUp(2)

    def test_a_replacement_is_not_one_more(self):
        with running(nworkers=2, ready=0, restarts=1) as bench:
            bench.start_worker(0)
            bench.submit(1)
            bench.ended(0)
            assert bench.restart_requested() == 0
            bench.start_worker(0, name=b"new")
            assert bench.control.silent(), "worker 1 is not up yet"
            bench.start_worker(1)
            assert bench.control.receive()[0] == WorkersUp(2)

    def test_one_that_is_gone_before_it_is_heard(self):
        with running(nworkers=1, restarts=1) as bench:
            bench.ended(0)
            assert bench.restart_requested() == 0
            bench.workers[0].send(Ready(0, bench.pids[0]))
            bench.submit(1)
            assert bench.workers[0].silent()
            bench.work(bench.start_worker(0, name=b"new"))
            bench.results.receive()

    def test_an_error_in_setup_is_passed_on(self):
        with running(ready=0) as bench:
            peer = bench.peers.open(zmq.DEALER, bench.worker_address)
            peer.send(Failure(0), describe_failure(KeyError("in setup")))
            message, (frame,) = bench.control.receive()
            assert message == Failure(0)
            assert isinstance(rebuild_exception(frame), KeyError)

    def test_one_that_cannot_be_reached(self, caplog):
        """It has gone, but its exit is not known yet: others get its chunk when it is."""
        with running(nworkers=2, restarts=1) as bench, caplog.at_level(logging.INFO):
            bench.broker._identities[0] = b"gone"
            bench.submit(1, 1)
            assert wait_until(lambda: "worker 0 cannot be reached" in caplog.text)
            bench.work(bench.workers[1])
            bench.results.receive()
            bench.ended(0)
            assert bench.restart_requested() == 0
            bench.work(bench.workers[1])
            message, _ = bench.results.receive()
            assert message.items[0].number == 0


class TestDeaths:
    def test_a_sample_that_ends_two_workers_is_the_culprit(self):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(4, 1)
            worker = bench.workers[0]
            for attempt in range(2):
                chunk, _ = bench.receive_until(worker, 2)
                first, size = [(0, 4), (2, 1)][attempt]  # the second time one by one
                assert chunk.parts == [Part(NO_SLOT, 4, first, size, first)]
                bench.ended(0, position=2)
                assert bench.restart_requested() == 0
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            message, (frame,) = bench.results.receive()
            assert message.items[0].status == Status.FAILED
            died = rebuild_exception(frame)
            assert isinstance(died, WorkerDied)
            assert (died.worker_id, died.pid, died.index) == (0, 1001, 102)
            assert died.signal_name == "SIGKILL"
            assert "ended 2 workers" in str(died)
            assert bench.status.position(0) == -1
            chunk, _ = bench.work(worker)
            assert chunk.parts == [Part(NO_SLOT, 1, 0, 1, 4)]
            message, _ = bench.results.receive()
            assert message.items[0].status == Status.DONE

    def test_among_several_mini_batches_it_is_the_one_with_the_sample(self):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(1, pass_id=9)
            bench.work(bench.workers[0], seconds=1e-6)
            bench.results.receive()
            bench.submit(*[1] * 8)
            assert len(bench.workers[0].receive()[0].parts) == 4
            bench.ended(0, position=3)
            bench.restart_requested()
            worker = bench.start_worker(0, name=b"second")
            for number in range(2):  # rows of the dead are given again piece by piece
                bench.work(worker, seconds=1e-6)
                message, _ = bench.results.receive()
                assert message.items[0].number == number
            parts = [worker.receive()[0].parts for _ in range(2)]
            assert [part[0].position for part in parts] == [2, 3]
            bench.ended(0, position=3)  # its last answer has got lost with it
            message, _ = bench.results.receive()
            assert [(item.number, item.status) for item in message.items] == [(3, Status.FAILED)]
            bench.restart_requested()
            worker, done = bench.start_worker(0, name=b"third"), []
            while len(done) < 5:
                chunk, _ = worker.receive()
                outcomes = [Outcome(0, 0, 0, 0)] * len(chunk.parts)
                worker.send(Done(chunk.chunk_id, 1e-6, outcomes))
                done += [item.number for item in bench.results.receive()[0].items]
            assert sorted(done) == [2, 4, 5, 6, 7]

    def test_others_may_still_write_to_the_mini_batch_that_fails(self):
        with running(nworkers=2, restarts=9) as bench:
            bench.submit(2)
            worker, other = bench.workers
            for attempt in range(2):
                worker.receive()
                bench.ended(0, position=0)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            assert bench.results.silent()
            bench.work(other)
            message, _ = bench.results.receive()
            assert message.items[0].status == Status.FAILED

    def test_different_samples_are_no_culprits(self):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(4)
            worker = bench.workers[0]
            for attempt in range(4):
                bench.receive_until(worker, attempt)
                bench.ended(0, position=attempt)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            chunk, _ = bench.receive_until(worker, 3)
            worker.send(Done(chunk.chunk_id, SLOW, [Outcome(0, 1, 0, 0)]), b"result")
            message, _ = bench.results.receive()
            assert message.items[0].status == Status.DONE

    def test_a_sample_without_an_index(self):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(2, kind=Kind.SAMPLES)
            worker = bench.workers[0]
            for attempt in range(2):
                bench.receive_until(worker, 1)
                bench.ended(0, position=1)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            message, (frame,) = bench.results.receive()
            assert message.items[0].status == Status.FAILED
            assert rebuild_exception(frame).index is None

    def test_one_that_did_nothing_is_replaced(self):
        with running(nworkers=1, restarts=1) as bench:
            bench.ended(0)
            assert bench.restart_requested() == 0
            bench.submit(1)
            bench.work(bench.start_worker(0, name=b"new"))
            bench.results.receive()

    @pytest.mark.parametrize(("position", "index"), [(-1, None), (0, 100)])
    def test_the_last_restart_is_used_up(self, position, index):
        with running(nworkers=1, restarts=0) as bench:
            bench.submit(1)
            bench.workers[0].receive()
            bench.ended(0, position=position, code=3)
            died = bench.died()
            assert isinstance(died, WorkerDied)
            assert (died.worker_id, died.exit_code, died.signal_name) == (0, 3, None)
            assert died.index == index
            assert "0 were, the limit of an epoch" in str(died)

    def test_exits_may_come_in_pieces(self):
        with running(nworkers=2, restarts=2) as bench:
            data = msgpack.packb([0, 1000, -9, ""]) + msgpack.packb([1, 1001, -9, ""])
            for byte in data:
                bench.supervisor.sendall(bytes([byte]))
            requests = msgpack.Unpacker()
            got = []
            while len(got) < 2:
                requests.feed(bench.supervisor.recv(100))
                got += requests
            assert got == [["start", 0], ["start", 1]]

    def test_each_pass_has_its_own_restarts(self):
        with running(nworkers=1, restarts=1) as bench:
            worker = bench.workers[0]
            for pass_id in (1, 2):
                bench.submit(1, pass_id=pass_id)
                worker.receive()
                bench.ended(0)
                assert bench.restart_requested() == 0
                worker = bench.start_worker(0, name=b"pass %d" % pass_id)
                bench.work(worker)
                bench.results.receive()
            bench.submit(1, pass_id=1)  # more of a pass is no new one
            worker.receive()
            bench.ended(0)
            assert "1 were, the limit of an epoch" in str(bench.died())

    def test_the_stack_is_in_the_error(self):
        with running(nworkers=1, restarts=0) as bench:
            bench.submit(1)
            bench.workers[0].receive()
            bench.ended(0, position=0, code=-11, stack="File mine\n")
            died = bench.died()
            assert (died.stack, died.epoch, died.batch) == ("File mine\n", 0, 0)
            assert "The worker's stack:\nFile mine" in str(died)

    def test_without_the_sample(self):
        """It is left to `on_error` of the worker that gets the rows next."""
        with running(nworkers=1, restarts=9, on_error_raises=False) as bench:
            bench.submit(4, epoch=3)
            worker = bench.workers[0]
            for attempt in range(2):
                bench.receive_until(worker, 2)
                bench.ended(0, position=2)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            chunk, (index, lost) = bench.receive_until(worker, 2)
            assert chunk[1:] == (3, Kind.INDICES, 1, [Part(NO_SLOT, 4, 2, 1, 2)])
            assert np.frombuffer(index, np.int64).tolist() == [102]
            ((position, described),) = unpack_errors(lost)
            died = rebuild_exception(described)
            assert isinstance(died, WorkerDied)
            assert (position, died.index, died.epoch, died.batch) == (2, 102, 3, 0)
            worker.send(Done(chunk.chunk_id, SLOW, [Outcome(0, 1, 102, 1)]), b"skipped")
            message, frames = bench.results.receive()
            assert message.items[0].segments[2] == Segment(2, 1, 1, 102, 1)
            assert frames == [b"result", b"result", b"skipped", b"result"]

    def test_whole_mini_batches_stay_whole(self):
        with running(nworkers=1, restarts=9, on_error_raises=False, splittable=False) as bench:
            bench.submit(4)
            worker = bench.workers[0]
            for attempt, position in enumerate((2, 2, 0, 0)):
                worker.receive()
                bench.ended(0, position=position)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            chunk, (_, lost) = worker.receive()
            assert chunk.parts == [Part(NO_SLOT, 4, 0, 4, 0)]
            assert sorted(position for position, _ in unpack_errors(lost)) == [0, 2]


class TestCallerWaits:
    """A worker that has not got on since half of the caller's timeout is ended."""

    @contextmanager
    def stuck(self, *positions, rows=(1,), **options):
        """Workers that have a sample each, and are at some position."""
        with running(nworkers=len(positions), restarts=9, **options) as bench:
            bench.submit(*rows)
            for worker_id, position in enumerate(positions):
                if position >= 0:
                    bench.workers[worker_id].receive()
                bench.status.set_position(worker_id, position)
            yield bench

    def wait(self, bench, *overdue, pass_id=1, number=0, seconds=8.0):
        for value in overdue:
            seen = bench.broker._positions
            bench.producer.send(Waiting(pass_id, number, value, seconds))
            assert wait_until(lambda seen=seen: bench.broker._positions is not seen)

    def nobody_is_ended(self, bench):
        return not select.select([bench.supervisor], [], [], 0.05)[0]

    def test_it_is_told_to_end_once(self):
        with self.stuck(0) as bench:
            self.wait(bench, 0)
            assert self.nobody_is_ended(bench)
            self.wait(bench, 1)
            assert bench.requested() == ["end", 0]
            self.wait(bench, 0, 1, 1)
            assert self.nobody_is_ended(bench)

    @pytest.mark.parametrize("overdue", [(0, 0), (1,)])
    def test_not_before_both_halves_are_over(self, overdue):
        with self.stuck(0) as bench:
            self.wait(bench, *overdue)
            assert self.nobody_is_ended(bench)

    def test_not_one_that_has_got_on(self):
        with self.stuck(0, rows=(2,)) as bench:
            self.wait(bench, 0)
            bench.status.set_position(0, 1)
            self.wait(bench, 1)
            assert self.nobody_is_ended(bench)

    def test_not_one_that_does_nothing(self):
        with self.stuck(-1) as bench:
            self.wait(bench, 0, 1)
            assert self.nobody_is_ended(bench)

    @pytest.mark.parametrize(
        ("number", "pass_id", "workers"), [(0, 1, [0]), (1, 1, [1]), (-1, 1, [0]), (0, 2, [])]
    )
    def test_only_those_that_are_on_the_mini_batch(self, number, pass_id, workers):
        with self.stuck(0, 1, rows=(1, 1)) as bench:
            self.wait(bench, 0, 1, number=number, pass_id=pass_id)
            for worker in workers:
                assert bench.requested() == ["end", worker]
            assert self.nobody_is_ended(bench)

    def test_the_error_names_everything(self):
        with self.stuck(2, rows=(4,)) as bench:
            self.wait(bench, 0, 1, seconds=8.0)
            assert bench.requested() == ["end", 0]
            bench.ended(0, position=2, stack="File mine")
            message, (frame,) = bench.results.receive()
            assert message.items[0].status == Status.FAILED
            error = rebuild_exception(frame)
            assert isinstance(error, LoaderTimeout)
            assert (error.seconds, error.stack) == (8.0, "File mine")
            assert error.where == Whereabouts(0, 1000, index=102, epoch=0, batch=0)
            assert bench.restart_requested() == 0

    def test_or_it_is_left_to_on_error(self):
        with self.stuck(2, rows=(4,), on_error_raises=False) as bench:
            self.wait(bench, 0, 1)
            assert bench.requested() == ["end", 0]
            bench.ended(0, position=2)
            assert bench.restart_requested() == 0
            chunk, (_, lost) = bench.start_worker(0, name=b"new").receive()
            assert chunk.lost == 1
            ((position, error),) = unpack_errors(lost)
            assert position == 2
            assert isinstance(rebuild_exception(error), LoaderTimeout)

    def test_its_successor_begins_anew(self):
        with self.stuck(0, rows=(1, 1)) as bench:
            self.wait(bench, 0, 1)
            bench.requested()
            bench.ended(0, position=0)
            bench.restart_requested()
            bench.results.receive()
            bench.start_worker(0, name=b"new").receive()
            bench.status.set_position(0, 1)
            self.wait(bench, 0, 1, number=1)
            assert bench.requested() == ["end", 0]

    def test_one_that_ended_between_two_samples_is_just_replaced(self):
        with self.stuck(0) as bench:
            self.wait(bench, 0, 1)
            bench.requested()
            bench.ended(0, position=-1)
            assert bench.restart_requested() == 0
            bench.work(bench.start_worker(0, name=b"new"))
            message, _ = bench.results.receive()
            assert message.items[0].status == Status.DONE


def test_an_error_of_the_broker_itself_is_told(monkeypatch):
    def fail(self, submit, frames):
        raise ZeroDivisionError("mine")

    monkeypatch.setattr("crumpets_like.broker.scheduler.Scheduler.submit", fail)

    def run_into_it():
        with running() as bench:
            bench.submit(1)
            message, (frame,) = bench.control.receive()
            assert message == Failure(-1)
            error = rebuild_exception(frame)
            assert isinstance(error, ZeroDivisionError)
            assert "bug of crumpets_like" in error.__notes__[0]
            assert bench.workers[0].receive()[0] == Stop()

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_into_it()


class TestArguments:
    @pytest.mark.parametrize("number", range(4))
    @pytest.mark.parametrize(("address", "error"), [("nonsense", ValueError), (5, TypeError)])
    def test_addresses(self, number, address, error):
        names = ["work_address", "worker_address", "result_address", "control_address"]
        with addresses("work", "worker", "consume", "control") as given:
            given[number] = address
            with pytest.raises(error, match=f"^{names[number]}.*{address}"):
                Broker(*given, nworkers=1)

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"nworkers": 0}, ValueError),
            ({"nworkers": 1.5}, TypeError),
            ({"nworkers": 1, "restarts": -1}, ValueError),
            ({"nworkers": 1, "restarts": "2"}, TypeError),
        ],
    )
    def test_numbers(self, options, error):
        argument = list(options)[-1]
        with pytest.raises(error, match=f"{argument} must be .*{options[argument]}"):
            Broker("ipc:///a", "ipc:///b", "ipc:///c", "ipc:///d", **options)
