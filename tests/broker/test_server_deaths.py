"""What the broker makes of workers that end."""

import msgpack
import numpy as np
import pytest
import zmq

from crumpets_like import LoaderTimeout, WorkerDied
from crumpets_like.broker.failures import rebuild_exception, unpack_errors
from crumpets_like.broker.protocol import (
    Done,
    Kind,
    Outcome,
    Part,
    Ready,
    Segment,
    Status,
    Waiting,
)
from crumpets_like.broker.segment import NO_SLOT, Stage
from crumpets_like.errors import Whereabouts
from tests.support.server import SLOW, running


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

    @pytest.mark.parametrize(("kind", "index"), [(Kind.SAMPLES, 1), (Kind.KEYS, None)])
    def test_samples_of_an_iterable_are_counted(self, kind, index):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(2, kind=kind)
            worker = bench.workers[0]
            for attempt in range(2):
                bench.receive_until(worker, 1)
                bench.ended(0, position=1)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            message, (frame,) = bench.results.receive()
            assert message.items[0].status == Status.FAILED
            assert rebuild_exception(frame).index == index

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
            _, (frame,) = bench.failed()
            died = rebuild_exception(frame)
            assert isinstance(died, WorkerDied)
            assert (died.worker_id, died.exit_code, died.signal_name) == (0, 3, None)
            assert died.index == index
            assert "0 were, the limit of an epoch" in str(died)
            assert bench.restart_requested() == 0, "other epochs need it"

    def test_the_last_restart_is_used_up_by_one_without_work(self):
        with running(nworkers=1, restarts=1) as bench:
            bench.ended(0)
            assert bench.restart_requested() == 0
            bench.ended(0, code=3)
            died = bench.died()
            assert isinstance(died, WorkerDied)
            assert died.where == Whereabouts(0, 1000)
            assert "1 were, the limit of an epoch" in str(died)
            assert "It was not ready yet: it unpickled the dataset, or ran setup()." in str(died)

    def test_exits_may_come_in_pieces(self):
        with running(nworkers=2, restarts=2) as bench:
            data = msgpack.packb([0, 1000, 1, -9, ""]) + msgpack.packb([1, 1001, 2, -9, ""])
            for byte in data:
                bench.supervisor.sendall(bytes([byte]))
            requests = msgpack.Unpacker()
            got = []
            while len(got) < 2:
                requests.feed(bench.supervisor.recv(100))
                got += requests
            assert got == [["start", 0], ["start", 1]]

    def test_a_process_id_may_come_again(self):
        with running(restarts=9) as bench:
            bench.ended(0)
            bench.restart_requested()
            bench.pids[0] = 5
            peer = bench.peers.open(zmq.DEALER, bench.worker_address, name=b"new")
            peer.send(Ready(0, 5000))
            bench.submit(1)
            assert peer.receive()[0].parts[0].size == 1

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
            _, (frame,) = bench.failed()
            assert "1 were, the limit of an epoch" in str(rebuild_exception(frame))

    def test_the_stack_is_in_the_error(self):
        with running(nworkers=1, restarts=0) as bench:
            bench.submit(1)
            bench.workers[0].receive()
            bench.ended(0, position=0, code=-11, stack="File mine\n")
            _, (frame,) = bench.failed()
            died = rebuild_exception(frame)
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
            bench.work(worker)
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


class TestCollate:
    """It belongs to the mini-batch, and to none of its samples."""

    @pytest.mark.parametrize("on_error_raises", [True, False])
    def test_that_ends_two_workers(self, on_error_raises):
        options = {"splittable": False, "on_error_raises": on_error_raises}
        with running(nworkers=1, restarts=9, **options) as bench:
            bench.submit(4, 4)
            worker = bench.workers[0]
            for attempt in range(2):
                worker.receive()
                bench.ended(0, position=0, stage=Stage.COLLATE)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            _, (frame,) = bench.failed()
            died = rebuild_exception(frame)
            assert (died.index, died.indices, died.epoch, died.batch) == (None, (), 0, 0)
            assert "while it worked on collate, or pickling its result (epoch 0, mini" in str(died)
            assert worker.receive()[0].parts == [Part(NO_SLOT, 4, 0, 4, 4)], "the next one goes on"

    @pytest.mark.parametrize("on_error_raises", [True, False])
    def test_that_hangs(self, on_error_raises):
        with running(restarts=9, splittable=False, on_error_raises=on_error_raises) as bench:
            bench.submit(3)
            bench.workers[0].receive()
            bench.status.set_position(0, 0)
            for overdue in (0, 1):
                bench.producer.send(Waiting(1, 0, overdue, 8.0))
            assert bench.requested() == ["end", 0]
            bench.ended(0, position=0, stage=Stage.COLLATE)
            _, (frame,) = bench.failed()
            error = rebuild_exception(frame)
            assert isinstance(error, LoaderTimeout)
            assert (error.index, error.batch) == (None, 0)
            assert "has not got on with collate" in str(error)


class TestStartOfAnEpoch:
    """What fails is all of that epoch, and nothing of another one."""

    @pytest.mark.parametrize("on_error_raises", [True, False])
    def test_that_ends_two_workers(self, on_error_raises):
        with running(nworkers=1, restarts=9, on_error_raises=on_error_raises) as bench:
            bench.submit(1, 1, pass_id=2, epoch=1)
            worker = bench.workers[0]
            for attempt in range(2):
                worker.receive()
                bench.ended(0, position=0, stage=Stage.START_EPOCH)
                bench.restart_requested()
                worker = bench.start_worker(0, name=b"attempt %d" % attempt)
            items, (frame, other) = bench.failed()
            assert sorted((item.pass_id, item.number, item.status) for item in items) == [
                (2, 0, Status.FAILED),
                (2, 1, Status.FAILED),
            ]
            died = rebuild_exception(frame)
            assert (died.index, died.epoch, died.batch) == (None, 1, None)
            assert str(died) == str(rebuild_exception(other))
            assert "on_error" not in str(died)
            assert "while it worked on start_epoch (epoch 1)" in str(died)
            bench.submit(1, pass_id=2, epoch=1)
            assert bench.failed()[0][0].pass_id == 2, "also what is asked for later"
            bench.submit(1, pass_id=3)
            bench.work(worker)
            assert bench.results.receive()[0].items[0].status == Status.DONE

    def test_the_limit_of_restarts_is_that_of_the_epoch_ahead(self):
        with running(nworkers=2, restarts=0) as bench:
            bench.submit(1)
            bench.submit(1, 1, pass_id=2, epoch=1)
            for worker in bench.workers:
                worker.receive()
            bench.ended(1, position=0, stage=Stage.START_EPOCH)
            assert [item.pass_id for item in bench.failed()[0]] == [2, 2]
            assert bench.restart_requested() == 1
            bench.workers[0].send(Done(1, SLOW, [Outcome(0, 1, 100, 0)]), b"result")
            message, _ = bench.results.receive()
            assert [(item.pass_id, item.status) for item in message.items] == [(1, Status.DONE)]
