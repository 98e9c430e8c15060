import logging

import numpy as np
import pytest
import zmq

from crumpets_like.broker import Broker
from crumpets_like.broker.failures import describe_failure, rebuild_exception
from crumpets_like.broker.processes import Wakeup
from crumpets_like.broker.protocol import (
    BatchHead,
    Cancel,
    Chunk,
    Done,
    Failure,
    Item,
    Kind,
    NewDataset,
    Outcome,
    Part,
    Ready,
    Results,
    Segment,
    Status,
    Stop,
    Submit,
    WorkersUp,
)
from crumpets_like.broker.segment import NO_SLOT
from tests.support.loading import wait_until
from tests.support.server import running
from tests.support.sockets import GARBAGE, addresses


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

    def test_a_new_dataset_reaches_all_of_them_in_its_turn(self):
        with running(nworkers=2, ready=0) as bench:
            first = bench.start_worker(0)
            bench.submit(1)
            bench.work(first)
            bench.producer.send(NewDataset(), b"there")
            bench.submit(1, pass_id=2)
            assert first.receive() == (NewDataset(), [b"there"])
            bench.work(first)
            late = bench.start_worker(1)
            assert late.receive() == (NewDataset(), [b"there"])

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
