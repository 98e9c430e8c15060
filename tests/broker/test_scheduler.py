import itertools

import numpy as np
import pytest

from crumpets_like.broker.failures import unpack_errors
from crumpets_like.broker.protocol import BatchHead, Kind, Outcome, Status, Submit
from crumpets_like.broker.scheduler import CHUNK_SECONDS, Scheduler

FREE = -1  # no slot


class Broker:
    """A scheduler and what it has said so far."""

    def __init__(self, nworkers=2, splittable=True, one_epoch=False):
        self.scheduler = Scheduler(nworkers, splittable, one_epoch)
        self.numbers = itertools.count()
        for worker in range(nworkers):
            self.scheduler.add_worker(worker)

    def submit(self, *rows, pass_id=1, epoch=0, kind=Kind.INDICES):
        """Submit mini-batches of so many rows each; indices count from 100 times their number."""
        heads, indices, position = [], [], 0
        for count in rows:
            number = next(self.numbers)
            heads.append(BatchHead(number, FREE, count, position))
            indices += range(100 * number, 100 * number + count)
            position += count
        if kind == Kind.INDICES:
            frames = [np.array(indices, np.int64).tobytes()]
        else:
            frames = [b"%d" % index for index in indices]
        self.scheduler.submit(Submit(pass_id, epoch, kind, heads), frames)

    def give(self):
        return list(self.scheduler.assignments())

    def answer(self, assignment, seconds=0.1, status=Status.DONE):
        outcomes = [Outcome(status, 1, piece.start, 0) for piece in assignment.pieces]
        frames = [b"%d %d" % (piece.batch.number, piece.start) for piece in assignment.pieces]
        return self.scheduler.done(assignment.chunk_id, seconds, outcomes, frames)

    def finished(self):
        return [batch.item() for batch in self.scheduler.finished()]

    def learn(self, seconds_per_sample):
        """Let the scheduler measure one mini-batch, alone."""
        self.submit(1, pass_id=0)
        (assignment,) = self.give()
        assert self.answer(assignment, seconds_per_sample)
        assert len(self.finished()) == 1


def spans(assignment):
    return [(piece.batch.number, piece.start, piece.size) for piece in assignment.pieces]


def indices(assignment):
    return [index for frame in assignment.frames for index in np.frombuffer(frame, np.int64)]


class TestCutting:
    def test_first_mini_batch_is_made_by_all_workers(self):
        broker = Broker(nworkers=3)
        broker.submit(8, 8)
        assert [spans(given) for given in broker.give()] == [[(0, 0, 3)], [(0, 3, 3)], [(0, 6, 2)]]

    def test_first_mini_batch_of_a_later_pass_is_made_by_all_workers(self):
        broker = Broker(nworkers=2)
        broker.learn(CHUNK_SECONDS / 2)
        broker.numbers = itertools.count()
        broker.submit(*[16] * 8, pass_id=2)
        first = [span for given in broker.give() for span in spans(given) if span[0] == 0]
        assert first == [(0, 0, 8), (0, 8, 4), (0, 12, 2), (0, 14, 2)]

    def test_a_few_samples_for_many_workers(self):
        broker = Broker(nworkers=8)
        broker.submit(2, 1)
        assert [spans(given) for given in broker.give()] == [[(0, 0, 1)], [(0, 1, 1)], [(1, 0, 1)]]

    def test_slow_samples_spread_over_all_workers(self):
        broker = Broker(nworkers=4)
        broker.learn(10 * CHUNK_SECONDS)
        broker.submit(4, 4)
        assert [spans(given) for given in broker.give()] == [[(1, row, 1)] for row in range(4)]

    @pytest.mark.parametrize(
        ("nworkers", "batches", "rows"),
        [
            (4, 1, 16),  # one mini-batch for four workers: not shorter than CHUNK_SECONDS
            (1, 1, 32),  # two chunks for each worker
            (1, 8, 128),  # plenty: not longer than eight times that
        ],
    )
    def test_chunks_are_longer_while_there_is_plenty_of_work(self, nworkers, batches, rows):
        broker = Broker(nworkers=nworkers)
        broker.learn(CHUNK_SECONDS / 16)
        broker.submit(*[256] * batches if rows == 128 else [64])
        assert spans(broker.give()[0]) == [(1, 0, rows)]

    def test_fast_mini_batches_are_grouped(self):
        broker = Broker(nworkers=2)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(*[10] * 16)
        chunks = [spans(given) for given in broker.give()]
        assert chunks[0] == [(number, 0, 10) for number in range(1, 5)]
        # A quarter each of what is known of: nobody gets it all, two chunks in hand.
        assert len(chunks) == 4
        assert [span for chunk in chunks for span in chunk] == [(n, 0, 10) for n in range(1, 17)]

    def test_a_group_ends_at_the_wanted_time(self):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 10)
        broker.submit(*[10] * 32)  # eight times CHUNK_SECONDS: 80 samples
        assert max(len(given.pieces) for given in broker.give()) == 8

    @pytest.mark.parametrize("other", [{"epoch": 1}, {"kind": Kind.SAMPLES}])
    def test_a_group_has_one_epoch_and_one_kind(self, other):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(1, 1)
        broker.submit(1, 1, **{"pass_id": 2, **other})
        assert [len(given.pieces) for given in broker.give()] == [2, 2]

    def test_several_passes_may_share_a_group(self):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(1, 1, pass_id=1)
        broker.submit(1, 1, pass_id=2)
        (first, second) = broker.give()
        assert [piece.batch.pass_id for piece in first.pieces + second.pieces] == [1, 1, 2, 2]

    def test_what_must_not_be_split_is_not(self):
        broker = Broker(nworkers=2, splittable=False)
        broker.submit(8, 8)
        assert [spans(given) for given in broker.give()] == [[(0, 0, 8)], [(1, 0, 8)]]
        broker = Broker(nworkers=2, splittable=False)
        broker.learn(10 * CHUNK_SECONDS)
        broker.submit(8, 8)
        assert [spans(given) for given in broker.give()] == [[(1, 0, 8)], [(2, 0, 8)]]

    def test_indices_are_cut_with_their_rows(self):
        broker = Broker(nworkers=2)
        broker.submit(5, 2)
        first, second = broker.give()
        assert indices(first) == [0, 1, 2]
        assert indices(second) == [3, 4]
        assert second.parts == [(FREE, 5, 3, 2, 3)]
        broker.answer(first, seconds=0.001)
        (third,) = broker.give()
        assert indices(third) == [100, 101]
        assert third.parts == [(FREE, 2, 0, 2, 5)]

    def test_indices_of_a_group_are_one_frame(self):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(*[2] * 4)
        first = broker.give()[0]
        assert len(first.frames) == 1
        assert indices(first) == [100, 101, 200, 201]

    def test_samples_have_a_frame_each(self):
        broker = Broker(nworkers=2)
        broker.submit(3, kind=Kind.SAMPLES)
        assert [given.frames for given in broker.give()] == [[b"0", b"1"], [b"2"]]


class TestCredit:
    def test_nothing_for_nobody(self):
        broker = Broker(nworkers=0)
        broker.submit(4)
        assert broker.give() == []

    def test_one_chunk_each_before_anything_is_measured_and_for_slow_work(self):
        broker = Broker(nworkers=2)
        broker.submit(*[2] * 8)
        assert [given.worker for given in broker.give()] == [0, 1]
        broker = Broker(nworkers=2)
        broker.learn(10 * CHUNK_SECONDS)
        broker.submit(*[2] * 8)
        assert sorted(given.worker for given in broker.give()) == [0, 1]

    def test_a_second_chunk_in_advance_for_short_work(self):
        broker = Broker(nworkers=2)
        broker.learn(CHUNK_SECONDS)
        broker.submit(*[2] * 8)
        workers = [given.worker for given in broker.give()]
        assert sorted(workers[:2]) == [0, 1], "idle workers first"
        assert sorted(workers[2:]) == [0, 1]

    def test_whoever_has_asked_longest_is_first(self):
        broker = Broker(nworkers=3)
        broker.submit(3)
        given = broker.give()
        for assignment in reversed(given):
            broker.answer(assignment)
        broker.submit(2, 2, 2)
        assert [assignment.worker for assignment in broker.give()] == [2, 1, 0]

    def test_pace_is_a_moving_average(self):
        broker = Broker(nworkers=1)
        assert broker.scheduler.seconds_per_sample == 0
        broker.learn(0.5)
        assert broker.scheduler.seconds_per_sample == 0.5
        for _ in range(100):
            broker.learn(0.1)
        assert broker.scheduler.seconds_per_sample == pytest.approx(0.1, rel=0.01)
        assert broker.scheduler.chunk_samples == 1


class TestOneEpoch:
    def test_another_epoch_waits_until_nothing_is_under_way(self):
        broker = Broker(nworkers=2, one_epoch=True)
        broker.submit(1)
        broker.submit(1, pass_id=2, epoch=1)
        (first,) = broker.give()
        assert broker.give() == []
        broker.answer(first)
        (second,) = broker.give()
        assert second.pieces[0].batch.epoch == 1

    def test_otherwise_epochs_overlap(self):
        broker = Broker(nworkers=2)
        broker.submit(1)
        broker.submit(1, pass_id=2, epoch=1)
        assert [given.pieces[0].batch.epoch for given in broker.give()] == [0, 1]


class TestResults:
    def test_segments_are_in_order_of_their_rows(self):
        broker = Broker(nworkers=2)
        broker.submit(4)
        first, second = broker.give()
        assert broker.answer(second)
        assert broker.finished() == []
        assert broker.answer(first)
        ((item, frames),) = broker.finished()
        assert item == (1, 0, FREE, 4, Status.DONE, [(0, 2, 1, 0, 0), (2, 2, 1, 2, 0)])
        assert frames == [b"0 0", b"0 2"]
        assert broker.finished() == []

    def test_an_answer_counts_once(self):
        broker = Broker(nworkers=1)
        broker.submit(1, 1)
        (given,) = broker.give()
        assert broker.answer(given)
        assert not broker.answer(given)
        assert len(broker.finished()) == 1

    def test_unknown_chunk(self):
        assert not Broker().scheduler.done(99, 0.1, [Outcome(Status.DONE, 0, -1, 0)], [])

    def test_the_first_failing_rows_are_the_error(self):
        for order in itertools.permutations(range(3)):
            broker = Broker(nworkers=3)
            broker.submit(3)
            given = broker.give()
            for which in order:
                broker.answer(given[which], status=Status.FAILED if which else Status.DONE)
            ((item, frames),) = broker.finished()
            assert item.status == Status.FAILED
            assert item.segments == []
            assert frames == [b"0 1"]

    def test_rows_behind_a_failure_are_not_given_out(self):
        broker = Broker(nworkers=2)
        broker.learn(10 * CHUNK_SECONDS)
        broker.submit(8, 1)
        first, second = broker.give()
        broker.answer(first, status=Status.FAILED)
        broker.answer(second)
        ((item, _),) = broker.finished()
        assert item.status == Status.FAILED
        assert [spans(given) for given in broker.give()] == [[(2, 0, 1)]]

    def test_other_mini_batches_of_a_failing_chunk_are_fine(self):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(*[1] * 4)
        first = broker.give()[0]
        outcomes = [Outcome(Status.FAILED, 1, 7, 0), Outcome(Status.DONE, 2, 8, 0)]
        broker.scheduler.done(first.chunk_id, 0.1, outcomes, [b"error", b"a", b"b"])
        assert [(item.status, frames) for item, frames in broker.finished()] == [
            (Status.FAILED, [b"error"]),
            (Status.DONE, [b"a", b"b"]),
        ]

    def test_skipped_rows_are_told(self):
        broker = Broker(nworkers=2)
        broker.submit(4)
        for given, skipped in zip(broker.give(), (2, 1), strict=True):
            outcome = Outcome(Status.DONE, 1, 7, skipped)
            assert broker.scheduler.done(given.chunk_id, 0.1, [outcome], [b"why"])
        ((item, frames),) = broker.finished()
        assert item.status == Status.DONE
        assert [segment.skipped for segment in item.segments] == [2, 1]
        assert frames == [b"why"] * 2


class TestPieces:
    @pytest.mark.parametrize(
        ("kind", "indices"),
        [(Kind.INDICES, (103, 104, 105)), (Kind.SAMPLES, (6, 7, 8)), (Kind.KEYS, ())],
    )
    def test_samples_by_their_position(self, kind, indices):
        broker = Broker(nworkers=2)
        broker.submit(3, 6, kind=kind)
        _, _ = broker.give()
        broker.scheduler.add_worker(7)
        broker.scheduler.add_worker(8)
        (_, given) = broker.give()
        (piece,) = given.pieces
        assert spans(given) == [(1, 3, 3)]
        assert [p for p in range(-1, 12) if piece.holds(p)] == [6, 7, 8]
        assert piece.indices == indices


class TestBlocking:
    def test_those_that_hold_rows_of_it(self):
        broker = Broker(nworkers=4)
        broker.submit(2, 1, 1)
        given = broker.give()
        assert [spans(a)[0][0] for a in given] == [0, 0, 1, 2]
        blocking = broker.scheduler.blocking
        assert [blocking(1, number) for number in range(4)] == [{0, 1}, {2}, {3}, set()]
        assert blocking(1, -1) == {0, 1}, "of the oldest"
        broker.answer(given[0])
        assert blocking(1, -1) == {1}
        broker.answer(given[1])
        assert blocking(1, -1) == {2}
        assert blocking(1, 0) == set(), "it is finished"

    def test_if_rows_are_with_nobody_all_that_are_busy(self):
        broker = Broker(nworkers=2)
        broker.submit(1, 1)
        broker.submit(2, pass_id=2)
        broker.give()
        assert broker.scheduler.blocking(2, 2) == broker.scheduler.blocking(2, -1) == {0, 1}
        broker.scheduler.give_again(broker.scheduler.remove_worker(0))
        assert broker.scheduler.blocking(1, 0) == {1}

    def test_if_nothing_is_wanted_those_that_hold_what_nobody_wants(self):
        broker = Broker(nworkers=2)
        broker.submit(1)
        broker.submit(1, pass_id=2)
        broker.give()
        broker.scheduler.cancel(1)
        assert broker.scheduler.blocking(3, 0) == {0}

    def test_one_that_has_several_chunks_of_it(self):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS)
        broker.submit(4)
        assert [spans(given) for given in broker.give()] == [[(1, 0, 2)], [(1, 2, 2)]]
        assert broker.scheduler.blocking(1, 1) == {0}
        broker.scheduler.remove_worker(0)
        assert broker.scheduler.blocking(1, 1) == set()


class TestCancel:
    def test_each_mini_batch_comes_back_once(self):
        broker = Broker(nworkers=2)
        broker.submit(2, 1, 1)
        broker.submit(1, pass_id=2)
        given = broker.give()
        broker.scheduler.cancel(1)
        broker.scheduler.cancel(1)
        numbers = [item.number for item, _ in broker.finished()]
        assert numbers == [1, 2]  # number 0 is in the hands of workers, who write to its slot
        for assignment in given:
            broker.answer(assignment)
        ((item, frames),) = broker.finished()
        assert (item.number, item.status, item.segments, frames) == (0, Status.CANCELLED, [], [])
        assert [spans(assignment) for assignment in broker.give()] == [[(3, 0, 1)]]

    def test_unknown_pass(self):
        broker = Broker()
        broker.scheduler.cancel(5)
        assert broker.finished() == []


class TestDeaths:
    def test_rows_go_to_others_first(self):
        broker = Broker(nworkers=2)
        broker.submit(2, 2)
        first, second = broker.give()
        pieces = broker.scheduler.remove_worker(first.worker)
        assert pieces == first.pieces
        broker.scheduler.give_again(pieces)
        assert broker.give() == [], "the other one is busy"
        broker.answer(second)
        (again,) = broker.give()
        assert again.worker == second.worker
        assert spans(again) == spans(first)
        assert again.chunk_id != first.chunk_id

    def test_the_oldest_rows_go_first_whoever_died_first(self):
        broker = Broker(nworkers=2)
        broker.submit(1, 1)
        broker.submit(1, pass_id=2)
        for worker in (1, 0):
            broker.give()
            broker.scheduler.give_again(broker.scheduler.remove_worker(worker))
        broker.scheduler.add_worker(0)
        for number in range(3):
            (given,) = broker.give()
            assert spans(given) == [(number, 0, 1)]
            broker.answer(given)

    def test_a_late_answer_of_a_dead_worker_is_ignored(self):
        broker = Broker(nworkers=2)
        broker.submit(2)
        first, second = broker.give()
        broker.scheduler.give_again(broker.scheduler.remove_worker(first.worker))
        assert not broker.answer(first)
        broker.answer(second)
        (again,) = broker.give()
        assert not broker.answer(first)
        assert broker.finished() == []
        assert broker.answer(again)
        assert len(broker.finished()) == 1

    def test_rows_of_a_cancelled_pass_are_dropped(self):
        broker = Broker(nworkers=1)
        broker.submit(2)
        broker.give()
        pieces = broker.scheduler.remove_worker(0)
        broker.scheduler.cancel(1)
        assert broker.finished() == []
        broker.scheduler.give_again(pieces)
        ((item, _),) = broker.finished()
        assert item.status == Status.CANCELLED

    def test_cancel_while_rows_wait_to_be_given_again(self):
        broker = Broker(nworkers=1)
        broker.submit(2)
        broker.give()
        broker.scheduler.give_again(broker.scheduler.remove_worker(0))
        broker.scheduler.cancel(1)
        ((item, _),) = broker.finished()
        assert item.status == Status.CANCELLED
        broker.scheduler.add_worker(0)
        assert broker.give() == []

    def test_rows_of_a_dead_worker_can_fail(self):
        broker = Broker(nworkers=2)
        broker.submit(2)
        first, second = broker.give()
        broker.scheduler.fail_lost(broker.scheduler.remove_worker(first.worker), [b"died"])
        assert broker.finished() == []
        broker.answer(second)
        ((item, frames),) = broker.finished()
        assert item.status == Status.FAILED
        assert frames == [b"died"]

    @pytest.mark.parametrize("kind", [Kind.INDICES, Kind.SAMPLES])
    def test_what_is_lost_travels_with_its_rows_alone(self, kind):
        broker = Broker(nworkers=1)
        broker.learn(CHUNK_SECONDS / 1000)
        broker.submit(*[2] * 4, kind=kind)
        (given, _) = broker.give()
        assert len(given.pieces) > 1
        assert not given.careful
        piece, other = broker.scheduler.remove_worker(0)[:2]
        errors = ((3, b"first"), (2, b"second"))
        broker.scheduler.give_again([piece._replace(lost=errors, careful=True), other])
        broker.scheduler.add_worker(0)
        first, second = broker.give()
        assert spans(first) == [(1, 0, 2)]
        assert first.careful
        assert first.pieces[0].lost == errors
        *samples, lost = first.frames
        assert unpack_errors(lost) == list(errors)
        assert samples == piece.batch.frames(0, 2)
        assert not second.careful
        assert len(second.frames) == len(samples)

    def test_a_worker_that_never_asked(self):
        assert Broker().scheduler.remove_worker(17) == []
