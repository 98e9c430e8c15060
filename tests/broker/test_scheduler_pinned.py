"""Mini-batches that only one worker may make: those of its stream."""

import pytest

from crumpets_like.broker.protocol import BatchHead, Kind, Outcome, Status, Submit
from crumpets_like.broker.scheduler import Scheduler

END = [b"the end"]


@pytest.fixture
def scheduler():
    scheduler = Scheduler(3, splittable=False)
    for worker in range(3):
        scheduler.add_worker(worker)
    return scheduler


def submit(scheduler, *workers, pass_id=1, first=0):
    """One mini-batch for each of `workers`."""
    numbers = range(first, first + len(workers))
    heads = [BatchHead(n, -1, 1, n, worker) for n, worker in zip(numbers, workers, strict=True)]
    scheduler.submit(Submit(pass_id, 0, Kind.KEYS, heads), [b"%d" % n for n in numbers])


def give(scheduler):
    """Numbers of the mini-batches that each worker gets now."""
    return [(a.worker, [piece.batch.number for piece in a.pieces], a) for a in assign(scheduler)]


def assign(scheduler):
    return list(scheduler.assignments())


def seen(given):
    return [(worker, *numbers) for worker, numbers, _ in given]


def answer(scheduler, given):
    for _, _, assignment in given:
        scheduler.done(assignment.chunk_id, 1.0, [Outcome(Status.DONE, 1, -1, 0)], [b"made"])


def finished(scheduler):
    return sorted((batch.number, batch.item()[0].status) for batch in scheduler.finished())


def test_each_worker_gets_its_own_in_order(scheduler):
    submit(scheduler, 2, 2, 0)
    first = give(scheduler)
    assert seen(first) == [(0, 2), (2, 0)]
    answer(scheduler, first)
    assert seen(give(scheduler)) == [(2, 1)]


def test_other_work_goes_to_the_others(scheduler):
    submit(scheduler, 0, 0)
    submit(scheduler, -1, -1, -1, pass_id=2)
    assert sorted(seen(give(scheduler))) == [(0, 0), (1, 0), (2, 1)]


def test_what_is_cancelled_is_not_given(scheduler):
    submit(scheduler, 0, 0, 1)
    scheduler.cancel(1)
    assert [number for number, _ in finished(scheduler)] == [0, 1, 2]
    assert give(scheduler) == []
    submit(scheduler, 0, pass_id=2)
    assert seen(give(scheduler)) == [(0, 0)]


def test_it_waits_for_that_worker_alone(scheduler):
    submit(scheduler, 1, 0, 1)
    give(scheduler)
    assert scheduler.blocking(1, 2) == {1}


def die(scheduler, worker):
    """The worker ends, and another one takes its place."""
    pieces = scheduler.remove_worker(worker)
    scheduler.end_streams(worker, END)
    scheduler.give_again(pieces)
    scheduler.add_worker(worker)


def test_a_stream_ends_with_its_worker(scheduler):
    submit(scheduler, 0, 0, 1)
    given = give(scheduler)
    assert seen(given) == [(0, 0), (1, 2)]
    die(scheduler, 0)
    assert finished(scheduler) == [(0, Status.FAILED), (1, Status.FAILED)]
    submit(scheduler, 0, 1, first=3)
    assert finished(scheduler) == [(3, Status.FAILED)]
    answer(scheduler, given[1:])
    assert seen(give(scheduler)) == [(1, 4)]


def test_also_between_two_of_its_mini_batches(scheduler):
    submit(scheduler, 0)
    answer(scheduler, give(scheduler))
    assert finished(scheduler) == [(0, Status.DONE)]
    die(scheduler, 0)
    submit(scheduler, 0, first=1)
    (batch,) = scheduler.finished()
    item, frames = batch.item()
    assert (item.number, item.status, frames) == (1, Status.FAILED, END)


def test_a_stream_that_has_not_begun_is_the_next_workers(scheduler):
    scheduler.remove_worker(0)
    submit(scheduler, 0)
    assert give(scheduler) == []
    scheduler.end_streams(0, END)
    scheduler.add_worker(0)
    assert seen(give(scheduler)) == [(0, 0)]


def test_another_pass_is_another_stream(scheduler):
    submit(scheduler, 0)
    give(scheduler)
    die(scheduler, 0)
    assert finished(scheduler) == [(0, Status.FAILED)]
    submit(scheduler, 0, pass_id=2)
    assert seen(give(scheduler)) == [(0, 0)]


def test_nothing_is_kept_of_a_pass_that_is_over(scheduler):
    submit(scheduler, 0, 1)
    answer(scheduler, give(scheduler))
    scheduler.cancel(1)
    assert not scheduler._streams
    assert not scheduler._pinned
