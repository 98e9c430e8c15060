import pytest

from crumpets_like.broker.assembly import RawBatch
from crumpets_like.broker.stream import END, NUDGE, Stream

BATCHES = [RawBatch(number, 1, 0, [], []) for number in range(4)]


class TestStream:
    def get_all(self, stream, count):
        return [stream.get(0) for _ in range(count)]

    @pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
    def test_in_order(self, order):
        stream = Stream()
        for number in order:
            stream.add(number, BATCHES[number])
        stream.end(4)
        assert self.get_all(stream, 5) == [*BATCHES, END]
        assert stream._ready.qsize() == 0

    def test_as_they_come(self):
        stream = Stream(in_order=False)
        stream.end(4)
        for number in (2, 0, 3, 1):
            stream.add(number, BATCHES[number])
        assert self.get_all(stream, 5) == [*(BATCHES[n] for n in (2, 0, 3, 1)), END]

    def test_an_error_comes_behind_what_was_requested(self):
        stream, error = Stream(), ValueError()
        stream.add(1, BATCHES[1])
        stream.end(2, error)
        assert stream._ready.qsize() == 0
        stream.add(0, BATCHES[0])
        assert self.get_all(stream, 3) == [*BATCHES[:2], error]

    def test_the_one_that_is_awaited(self):
        stream = Stream()
        assert stream.awaited == 0
        stream.add(1, BATCHES[1])
        assert stream.awaited == 0
        stream.add(0, BATCHES[0])
        assert stream.awaited == 2
        assert Stream(in_order=False).awaited == -1

    def test_an_empty_pass(self):
        stream = Stream()
        stream.end(0)
        assert stream.get(0) is END

    def test_drain_takes_ready_and_early_ones(self):
        stream = Stream()
        for number in (0, 2, 3):
            stream.add(number, BATCHES[number])
        assert sorted(batch.slot for batch in stream.drain()) == [0, 2, 3]
        assert stream.drain() == []
        assert stream.received == 3

    def test_what_is_ready_is_taken_without_waiting(self):
        stream = Stream()
        assert stream.get_ready() is None
        for number in (0, 2):
            stream.add(number, BATCHES[number])
            stream.put(NUDGE)
        assert stream.get_ready() is BATCHES[0]
        assert stream.get_ready() is None
        assert stream._ready.qsize() == 0  # there is no mark left, either
        stream.end(3)
        stream.add(1, BATCHES[1])
        assert [stream.get_ready() for _ in range(2)] == BATCHES[1:3]

    def test_the_end_is_left_for_who_waits(self):
        stream, error = Stream(), ValueError()
        stream.end(0, error)
        assert stream.get_ready() is None
        assert stream.get_ready() is None
        assert stream.get(0) is error
