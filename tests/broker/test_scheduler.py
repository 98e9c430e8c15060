"""Every row is given out, every mini-batch is finished once, whatever workers do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.broker.protocol import BatchHead, Kind, Status, Submit
from crumpets_like.broker.scheduler import Assignment, MiniBatch, Scheduler


def submit(scheduler: Scheduler, sizes: list[int], pass_id: int = 1, first: int = 0) -> None:
    heads, position = [], 0
    for number, rows in enumerate(sizes):
        heads.append(BatchHead(first + number, number, rows, position))
        position += rows
    frames = [np.arange(position, dtype=np.int64).tobytes()]
    scheduler.submit(Submit(pass_id, 0, Kind.INDICES, heads), frames)


def answer(
    scheduler: Scheduler, assignment: Assignment, seconds: float, status: Status = Status.DONE
) -> bool:
    outcomes = [(int(status), 1, 0) for _ in assignment.pieces]
    frames: list[Any] = [b"answer"] * len(outcomes)
    return scheduler.done(assignment.chunk_id, seconds, outcomes, frames)


def indices(assignment: Assignment) -> list[int]:
    return np.frombuffer(assignment.frames[0], np.int64).tolist()


def started(nworkers: int, *, splittable: bool = True) -> Scheduler:
    scheduler = Scheduler(nworkers, splittable)
    for worker in range(nworkers):
        scheduler.add_worker(worker)
    return scheduler


def warm(scheduler: Scheduler, seconds_per_sample: float) -> None:
    """Make the scheduler know how long a sample takes."""
    submit(scheduler, [8], pass_id=99)
    while assignments := list(scheduler.assignments()):
        for assignment in assignments:
            rows = sum(piece.size for piece in assignment.pieces)
            answer(scheduler, assignment, seconds_per_sample * rows)
    scheduler.finished()


def test_the_first_mini_batch_is_spread_over_all_workers() -> None:
    scheduler = started(4)
    submit(scheduler, [8, 8, 8])
    assignments = list(scheduler.assignments())
    assert [indices(a) for a in assignments] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [a.worker for a in assignments] == [0, 1, 2, 3]


def test_slow_mini_batches_are_cut() -> None:
    scheduler = started(4)
    warm(scheduler, 0.005)
    submit(scheduler, [8, 8])
    assert {len(indices(a)) for a in scheduler.assignments()} == {2}  # 10 ms


def test_quick_mini_batches_are_grouped() -> None:
    scheduler = started(2)
    warm(scheduler, 1e-6)
    submit(scheduler, [8] * 64)
    sizes = [len(a.pieces) for a in scheduler.assignments()]
    assert len(sizes) == 4  # two for each worker
    assert all(size == 16 for size in sizes)


def test_a_mini_batch_that_cannot_be_split_goes_to_one_worker() -> None:
    scheduler = started(4, splittable=False)
    submit(scheduler, [8, 8])
    assert [len(indices(a)) for a in scheduler.assignments()] == [8, 8]


def test_late_and_doubled_answers_are_ignored() -> None:
    scheduler = started(1)
    submit(scheduler, [4])
    (old,) = scheduler.assignments()
    scheduler.give_again(scheduler.remove_worker(0))
    assert not answer(scheduler, old, 0.1)
    scheduler.add_worker(1)
    (new,) = scheduler.assignments()
    assert indices(new) == indices(old)
    assert answer(scheduler, new, 0.1)
    assert not answer(scheduler, new, 0.1)
    assert [batch.number for batch in scheduler.finished()] == [0]


def test_cancelled_mini_batches_come_back_once() -> None:
    scheduler = started(2)
    submit(scheduler, [4, 4, 4])
    under_way = list(scheduler.assignments())
    scheduler.cancel(1)
    finished = [batch.number for batch in scheduler.finished()]
    for assignment in under_way:
        answer(scheduler, assignment, 0.1)
    finished += [batch.number for batch in scheduler.finished()]
    assert sorted(finished) == [0, 1, 2]
    assert list(scheduler.assignments()) == []


def test_the_first_failing_rows_are_reported() -> None:
    scheduler = started(2)
    submit(scheduler, [4])
    first, second = scheduler.assignments()
    answer(scheduler, second, 0.1, Status.FAILED)
    assert scheduler.finished() == []  # the other worker still writes
    answer(scheduler, first, 0.1, Status.FAILED)
    (batch,) = scheduler.finished()
    assert batch.failure is not None
    assert batch.failure[0] == 0
    item, frames = batch.item()
    assert (item.status, frames) == (Status.FAILED, [b"answer"])


@given(
    nworkers=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    splittable=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_course_of_events(nworkers: int, sizes: list[int], splittable: bool, seed: int) -> None:
    chance = random.Random(seed)
    scheduler = started(nworkers, splittable=splittable)
    submit(scheduler, sizes)
    cancelled = False
    under_way: list[Assignment] = []
    finished: list[MiniBatch] = []
    new_worker = nworkers
    while True:
        under_way += scheduler.assignments()
        finished += scheduler.finished()
        if len(finished) == len(sizes):
            break
        event = chance.randrange(20)
        assignment = under_way.pop(chance.randrange(len(under_way)))
        if event < 3:  # its worker dies, with everything it had; another takes its place
            lost = scheduler.remove_worker(assignment.worker)
            under_way = [a for a in under_way if a.worker != assignment.worker]
            scheduler.give_again(lost)
            scheduler.add_worker(new_worker)
            new_worker += 1
            assert not answer(scheduler, assignment, 0.1)
        elif event == 3 and not cancelled:
            cancelled = True
            scheduler.cancel(1)
            under_way.append(assignment)
        else:
            status = Status.FAILED if event == 4 else Status.DONE
            assert answer(scheduler, assignment, 10 ** chance.uniform(-7, 0), status)
    assert sorted(batch.number for batch in finished) == list(range(len(sizes)))
    for batch in finished:
        item, _ = batch.item()
        if item.status == Status.DONE:
            covered = [part.start + row for part in item.segments for row in range(part.size)]
            assert covered == list(range(sizes[batch.number]))
