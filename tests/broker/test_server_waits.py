"""What the broker makes of workers that do not get on while the caller waits."""

import select
from contextlib import contextmanager

import pytest

from crumpets_like import LoaderTimeout, WorkerDied
from crumpets_like.broker.failures import rebuild_exception, unpack_errors
from crumpets_like.broker.protocol import (
    Cancel,
    Status,
    Waiting,
)
from crumpets_like.broker.segment import Stage
from crumpets_like.errors import Whereabouts
from tests.support.loading import wait_until
from tests.support.server import running


class TestCallerWaits:
    """A worker that has not got on since half of the caller's timeout is ended."""

    @contextmanager
    def stuck(self, *positions, rows=(1,), **options):
        """Workers that have a sample each, and are at some position."""
        with running(nworkers=len(positions), restarts=9, **options) as bench:
            bench.submit(*rows)
            chunk_of = bench.broker._scheduler.chunk_of
            for worker_id, position in enumerate(positions):
                if position >= 0:
                    bench.workers[worker_id].receive()
                assert wait_until(lambda worker=worker_id: chunk_of(worker) is not None)
                bench.status.set_position(worker_id, position)
            yield bench

    def wait(self, bench, *overdue, pass_id=1, number=0, seconds=8.0):
        for value in overdue:
            seen = bench.broker._looks
            bench.producer.send(Waiting(pass_id, number, value, seconds))
            assert wait_until(lambda seen=seen: bench.broker._looks is not seen)

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

    def test_one_that_does_not_even_begin(self):
        """It may be stopped, or hang in start_epoch."""
        with self.stuck(-1) as bench:
            self.wait(bench, 0, 1)
            assert bench.requested() == ["end", 0]
            bench.ended(0, stack="in start_epoch")
            assert bench.restart_requested() == 0
            _, (frame,) = bench.failed()
            error = rebuild_exception(frame)
            assert isinstance(error, LoaderTimeout)
            assert (error.worker_id, error.index, error.epoch, error.batch) == (0, None, 0, 0)
            assert "in start_epoch" in str(error)

    def test_not_one_that_has_got_another_chunk(self):
        with self.stuck(-1, rows=(1, 1)) as bench:
            self.wait(bench, 0)
            bench.work(bench.workers[0])
            bench.results.receive()
            self.wait(bench, 1, number=1)
            assert self.nobody_is_ended(bench)

    def test_several_samples_at_once_do_not_tell_whose_fault_it_is(self):
        with running(restarts=9) as bench:
            bench.submit(3)
            bench.status.set_position(0, 0)
            bench.workers[0].receive()
            self.wait(bench, 0, 1)
            bench.requested()
            bench.ended(0, position=0, stage=Stage.SAMPLES)
            bench.restart_requested()
            _, (frame,) = bench.failed()
            error = rebuild_exception(frame)
            assert (error.worker_id, error.index, error.batch) == (0, None, 0)
            assert error.indices == (100, 101, 102)
            assert "one of 3 samples at once, with the indices 100, 101, 102 (epoch 0" in str(error)

    @pytest.mark.parametrize("position", [0, 2])
    def test_they_are_tried_one_by_one_and_the_next_death_tells(self, position):
        with running(nworkers=1, restarts=9) as bench:
            bench.submit(3)
            bench.workers[0].receive()
            bench.ended(0, position=0, stage=Stage.SAMPLES)
            bench.restart_requested()
            chunk, _ = bench.receive_until(bench.start_worker(0, name=b"new"), position)
            assert [part.size for part in chunk.parts] == [1]
            bench.ended(0, position=position)
            _, (frame,) = bench.failed()
            died = rebuild_exception(frame)
            assert isinstance(died, WorkerDied)
            assert died.index == 100 + position
            assert "has ended 2 workers" in str(died)

    def test_where_they_may_be_skipped_they_are_tried_one_by_one(self):
        with running(restarts=9, on_error_raises=False) as bench:
            bench.submit(3)
            bench.status.set_position(0, 0)
            bench.workers[0].receive()
            self.wait(bench, 0, 1)
            bench.requested()
            bench.ended(0, position=0, stage=Stage.SAMPLES)
            bench.restart_requested()
            chunk, _ = bench.start_worker(0, name=b"new").receive()
            assert [part.size for part in chunk.parts] == [1]

    @pytest.mark.parametrize(
        ("number", "pass_id", "workers"), [(0, 1, [0]), (1, 1, [1]), (-1, 1, [0]), (0, 2, [])]
    )  # nothing of pass 2 was requested
    def test_only_those_that_are_on_the_mini_batch(self, number, pass_id, workers):
        with self.stuck(0, 1, rows=(1, 1)) as bench:
            self.wait(bench, 0, 1, number=number, pass_id=pass_id)
            for worker in workers:
                assert bench.requested() == ["end", worker]
            assert self.nobody_is_ended(bench)

    def test_if_nobody_has_the_mini_batch_those_that_have_another_one(self):
        with self.stuck(0, 1, rows=(1, 1)) as bench:
            bench.producer.send(Cancel(1))
            bench.submit(1, pass_id=2)
            self.wait(bench, 0)
            bench.status.set_position(1, 0)
            self.wait(bench, 1, pass_id=2)
            assert bench.requested() == ["end", 0]
            assert self.nobody_is_ended(bench)
            bench.ended(0, position=0)
            assert bench.restart_requested() == 0
            bench.work(bench.start_worker(0, name=b"new"))

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
