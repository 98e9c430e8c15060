"""Passes over a sampler: what is noted of them, and how one is read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crumpets_like.course import Course
from crumpets_like.origin import Origin


class Shuffled:
    """Lists of one number each, in a new order, and how often one was read."""

    def __init__(self) -> None:
        self.read = 0

    def __iter__(self) -> Iterator[list[int]]:
        for number in np.random.permutation(8).tolist():
            self.read += 1
            yield [number]


def course(sampler: Any) -> Course:
    return Course("sampler", sampler, None, Origin("numpy", {}))


def open_pass(one: Course, sampler: Any) -> Any:
    """A reader of the newest pass."""
    record = one.begin("i")
    one.newest = record
    return one.reader(record, iter(sampler))


def again(place: dict[str, Any]) -> tuple[Any, bool]:
    """A reader of a pass that is opened again, in another course, and whether any is left."""
    np.random.random(5)
    one = course(Shuffled())
    reader = one.reader(*one.reopen(place, "i"))
    return reader, one.skip(reader, place["received"])


def test_what_is_received_counts_not_what_is_read() -> None:
    sampler = Shuffled()
    one = course(sampler)
    reader = open_pass(one, sampler)
    keys = [next(reader) for _ in range(6)]
    for received in range(4):
        reader_again, more = again(one.place())
        assert more
        assert [next(reader_again) for _ in range(6 - received)] == keys[received:]
        reader.record.receive()


def test_one_batch_is_read_beyond_what_is_skipped() -> None:
    sampler = Shuffled()
    one = course(sampler)
    reader = open_pass(one, sampler)
    next(reader)
    reader.record.receive()
    reader_again, _ = again(one.place())
    assert reader_again._course._sampler.read == 2
    assert reader_again.count == 1


def test_nothing_left() -> None:
    sampler = Shuffled()
    one = course(sampler)
    reader = open_pass(one, sampler)
    list(reader)
    for _ in range(8):
        reader.record.receive()
    assert again(one.place())[1] is False


def test_the_generator_is_where_it_was() -> None:
    """For others, too: it goes on from where it stood when the state was taken."""
    sampler = Shuffled()
    one = course(sampler)
    reader = open_pass(one, sampler)
    next(reader)
    np.random.random(3)
    place = one.place()
    following = np.random.random()
    again(place)
    assert np.random.random() == following


def test_only_what_was_drawn_from_is_kept() -> None:
    numbers = [[1], [2]]
    one = course(numbers)
    reader = open_pass(one, numbers)
    assert list(one.place()["generators"]) == ["numpy"]  # it may be drawn from
    next(reader)
    assert one.place()["generators"] == {}  # it was not


def test_passes_are_numbered() -> None:
    one = course([[1], [2]])
    assert [one.begin("i").epoch for _ in range(3)] == [0, 1, 2]
    record, _ = one.reopen({**one.place(), "epoch": 7}, "i")
    assert (record.epoch, one.epoch) == (7, 8)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"base_seed": "1"}, TypeError),
        ({"generators": {"generator 0": ["eJwDAAAAAAE="]}}, ValueError),
    ],
)
def test_what_is_refused(changes: dict[str, Any], kind: Any) -> None:
    one = course([[1]])
    with pytest.raises(kind):
        one.check({**one.place(), **changes})
