"""Random schedules of work, deaths, failures and cancels, in which nothing may get lost."""

import itertools

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from crumpets_like.broker.protocol import BatchHead, Kind, Outcome, Status, Submit
from crumpets_like.broker.scheduler import Scheduler

PACES = st.sampled_from([0.0001, 0.001, 0.01, 0.1])


class RandomSchedules(RuleBasedStateMachine):
    """Whatever happens, in whatever order: each mini-batch is finished once, with all its rows."""

    NWORKERS = 3

    def __init__(self):
        super().__init__()
        self.scheduler = Scheduler(self.NWORKERS, self.SPLITTABLE, self.ONE_EPOCH)
        self.alive = set()
        self.numbers = itertools.count()
        self.submitted = {}  # number -> (pass, rows, indices)
        self.order = []  # rows that were given for the first time
        self.given_rows = set()
        self.in_hand = {}  # chunk id -> assignment
        self.gone = []  # assignments that were answered, or whose worker is dead
        self.done_rows = {}  # number -> rows
        self.errors = {}  # number -> {row: frame} of failures that were reported
        self.cancelled = set()
        self.finished = {}

    # -- what may happen -----------------------------------------------------------------

    @rule(worker=st.integers(0, NWORKERS - 1))
    def worker_asks(self, worker):
        if worker not in self.alive:
            self.alive.add(worker)
            self.scheduler.add_worker(worker)

    @rule(
        pass_id=st.integers(1, 3),
        kind=st.sampled_from(Kind),
        rows=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    )
    def submit(self, pass_id, kind, rows):
        if pass_id in self.cancelled:
            return
        heads, keys, position = [], [], 0
        for count in rows:
            number = next(self.numbers)
            mine = [1000 * number + row for row in range(count)]
            self.submitted[number] = (pass_id, count, mine)
            heads.append(BatchHead(number, number, count, position))
            keys += mine
            position += count
        frames = [b"%d" % key for key in keys]
        if kind == Kind.INDICES:
            frames = [np.array(keys, np.int64).tobytes()]
        self.scheduler.submit(Submit(pass_id, pass_id // 2, kind, heads), frames)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), pace=PACES)
    def answer(self, data, pace):
        chunk = data.draw(st.sampled_from(sorted(self.in_hand)))
        self.answer_chunk(chunk, pace, lambda: data.draw(st.integers(0, 9)) == 0)

    def answer_chunk(self, chunk, pace, fails):
        assignment = self.in_hand.pop(chunk)
        self.gone.append(assignment)
        outcomes, frames, samples = [], [], 0
        for batch, start, size, *_ in assignment.pieces:
            samples += size
            if fails():
                frame = b"error %d" % start
                outcomes.append(Outcome(Status.FAILED, 1, -1, 0))
                self.errors.setdefault(batch.number, {})[start] = frame
                frames.append(frame)
            else:
                rows = range(start, start + size)
                outcomes.append(Outcome(Status.DONE, size, batch.number, start % (size + 1)))
                frames += [b"%d %d" % (batch.number, row) for row in rows]
                done = self.done_rows.setdefault(batch.number, set())
                assert done.isdisjoint(rows), "made twice"
                done.update(rows)
        assert self.scheduler.done(chunk, samples * pace, outcomes, frames)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def late_answer(self, data):
        assignment = data.draw(st.sampled_from(self.gone))
        outcomes = [Outcome(Status.DONE, 0, -1, 0)] * len(assignment.pieces)
        assert not self.scheduler.done(assignment.chunk_id, 0.1, outcomes, [])

    @precondition(lambda self: self.alive and not self.ONE_EPOCH)
    @rule(data=st.data())
    def worker_dies(self, data):
        worker = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(worker)
        had = [given for given in self.in_hand.values() if given.worker == worker]
        pieces = self.scheduler.remove_worker(worker)
        assert pieces == [piece for given in had for piece in given.pieces]
        for given in had:
            self.gone.append(self.in_hand.pop(given.chunk_id))
        if pieces and data.draw(st.booleans()):
            culprit = pieces.pop(data.draw(st.integers(0, len(pieces) - 1)))
            self.errors.setdefault(culprit.batch.number, {})[culprit.start] = b"died"
            self.scheduler.fail_lost([culprit], [b"died"])
        self.scheduler.give_again(pieces)

    @rule(pass_id=st.integers(1, 3))
    def cancel(self, pass_id):
        # Two of the three, so that something is always left to finish.
        if pass_id != 2:
            self.cancelled.add(pass_id)
            self.scheduler.cancel(pass_id)

    # -- what must be true ---------------------------------------------------------------

    @invariant()
    def work_is_given_and_results_are_right(self):
        for assignment in self.scheduler.assignments():
            self.check_assignment(assignment)
        for batch in self.scheduler.finished():
            self.check_item(*batch.item())
        assert self.order == sorted(self.order)
        if not self.ONE_EPOCH:
            self.check_that_no_worker_is_idle_while_there_is_work()

    def check_assignment(self, assignment):
        assert assignment.worker in self.alive
        assert assignment.chunk_id not in self.in_hand
        assert all(assignment.chunk_id != given.chunk_id for given in self.gone)
        in_hand = {
            (piece.batch.number, row)
            for given in self.in_hand.values()
            for piece in given.pieces
            for row in range(piece.start, piece.start + piece.size)
        }
        keys = []
        for piece, part in zip(assignment.pieces, assignment.parts, strict=True):
            batch, start, size, *_ = piece
            pass_id, count, indices = self.submitted[batch.number]
            assert part == (batch.number, count, start, size, batch.position + start)
            assert size > 0
            assert start + size <= count
            assert self.SPLITTABLE or size == count
            assert pass_id not in self.cancelled
            keys += indices[start : start + size]
            for row in range(start, start + size):
                assert (batch.number, row) not in in_hand, "in two hands"
                assert row not in self.done_rows.get(batch.number, ()), "made twice"
                if (batch.number, row) not in self.given_rows:
                    self.given_rows.add((batch.number, row))
                    self.order.append((batch.number, row))
        assert len({(p.batch.epoch, p.batch.kind) for p in assignment.pieces}) == 1
        if assignment.pieces[0].batch.kind == Kind.INDICES:
            assert np.frombuffer(assignment.frames[0], np.int64).tolist() == keys
        else:
            assert assignment.frames == [b"%d" % key for key in keys]
        self.in_hand[assignment.chunk_id] = assignment
        assert sum(g.worker == assignment.worker for g in self.in_hand.values()) <= 2
        if self.ONE_EPOCH:
            assert len({g.pieces[0].batch.epoch for g in self.in_hand.values()}) == 1

    def check_item(self, item, frames):
        assert item.number not in self.finished, "finished twice"
        self.finished[item.number] = item.status
        pass_id, rows, _ = self.submitted[item.number]
        assert (item.pass_id, item.slot, item.rows) == (pass_id, item.number, rows)
        for given in self.in_hand.values():
            assert all(p.batch.number != item.number for p in given.pieces), "still written to"
        if pass_id in self.cancelled:
            assert item.status == Status.CANCELLED
        if item.status == Status.DONE:
            assert item.number not in self.errors
            covered = [r for s in item.segments for r in range(s.start, s.start + s.size)]
            assert covered == list(range(rows))
            assert frames == [b"%d %d" % (item.number, row) for row in range(rows)]
            assert all(s.first_index == item.number for s in item.segments)
            assert all(s.skipped == s.start % (s.size + 1) for s in item.segments)
        elif item.status == Status.FAILED:
            errors = self.errors[item.number]
            assert frames == [errors[min(errors)]]
        else:
            assert pass_id in self.cancelled
            assert frames == []
            assert item.segments == []

    def check_that_no_worker_is_idle_while_there_is_work(self):
        busy = {given.worker for given in self.in_hand.values()}
        if self.alive - busy:
            in_hand = {p.batch.number for given in self.in_hand.values() for p in given.pieces}
            assert self.submitted.keys() - self.finished.keys() == in_hand

    def teardown(self):
        for worker in range(self.NWORKERS):
            self.worker_asks(worker)
        self.work_is_given_and_results_are_right()
        while self.in_hand:
            self.answer_chunk(min(self.in_hand), 0.01, lambda: False)
            self.work_is_given_and_results_are_right()
        assert self.finished.keys() == self.submitted.keys()


def schedules(splittable, one_epoch):
    class Machine(RandomSchedules):
        SPLITTABLE, ONE_EPOCH = splittable, one_epoch

    Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    return Machine.TestCase


TestRandomSchedules = schedules(splittable=True, one_epoch=False)
TestRandomSchedulesOfWholeMiniBatches = schedules(splittable=False, one_epoch=False)
TestRandomSchedulesOneEpochAtATime = schedules(splittable=True, one_epoch=True)
