"""Orders with the semantics of gluon 1.9.1; what is said to be measured was measured there."""

import numpy as np
import pytest

from crumpets_like.gluon import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)


class TestSampler:
    def test_subclasses_say_what_it_gives(self):
        with pytest.raises(NotImplementedError, match="Sampler must define __iter__"):
            iter(Sampler())
        with pytest.raises(NotImplementedError, match="Sampler must define __len__"):
            len(Sampler())


class TestSequentialSampler:
    def test_order(self):
        assert list(SequentialSampler(4)) == [0, 1, 2, 3]
        assert list(SequentialSampler(3, 5)) == [5, 6, 7]
        assert len(SequentialSampler(3, 5)) == 3
        assert list(SequentialSampler(0)) == []

    def test_wrong_lengths(self):
        with pytest.raises(ValueError, match="length must be at least 0, got -1"):
            SequentialSampler(-1)
        with pytest.raises(TypeError, match=r"length must be an integer, got 2\.5"):
            SequentialSampler(2.5)


class TestRandomSampler:
    def test_measured_order(self):
        sampler = RandomSampler(10)
        np.random.seed(7)
        assert list(sampler) == [8, 5, 0, 2, 1, 9, 7, 3, 6, 4]
        assert len(sampler) == 10

    def test_a_new_order_each_time(self):
        sampler = RandomSampler(100)
        first, second = list(sampler), list(sampler)
        assert first != second
        assert sorted(first) == sorted(second) == list(range(100))
        assert {type(index) for index in first} == {int}

    def test_wrong_lengths(self):
        with pytest.raises(ValueError, match="length must be at least 0, got -1"):
            RandomSampler(-1)


class TestFilterSampler:
    def test_indices_of_what_passes(self):
        sampler = FilterSampler(lambda sample: sample % 3 == 0, [9, 10, 11, 12, 3])
        assert list(sampler) == [0, 3, 4]
        assert list(sampler) == [0, 3, 4]
        assert len(sampler) == 3


class TestIntervalSampler:
    @pytest.mark.parametrize(
        ("rollover", "expected"),
        [(True, [0, 3, 6, 9, 12, 1, 4, 7, 10, 2, 5, 8, 11]), (False, [0, 3, 6, 9, 12])],
    )
    def test_order(self, rollover, expected):
        sampler = IntervalSampler(13, interval=3, rollover=rollover)
        assert list(sampler) == expected
        assert len(sampler) == len(expected)

    def test_bounds_of_the_interval(self):
        assert list(IntervalSampler(3, 3, rollover=False)) == [0]
        with pytest.raises(ValueError, match="interval must be at most length, got 4 and 3"):
            IntervalSampler(3, 4)
        with pytest.raises(ValueError, match="interval must be at least 1, got 0"):
            IntervalSampler(3, 0)


class TestBatchSampler:
    def test_keep(self):
        sampler = BatchSampler(SequentialSampler(10), 4)
        assert len(sampler) == 3
        assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_discard(self):
        sampler = BatchSampler(SequentialSampler(10), 4, "discard")
        for _ in range(2):
            assert len(sampler) == 2
            assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_rollover(self):
        sampler = BatchSampler(SequentialSampler(10), 4, "rollover")
        assert len(sampler) == 2
        assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(sampler) == 3
        assert list(sampler) == [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]
        assert len(sampler) == 2
        assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_a_pass_that_is_left_early_keeps_nothing(self):
        sampler = BatchSampler(SequentialSampler(10), 4, "rollover")
        list(sampler)
        assert next(iter(sampler)) == [8, 9, 0, 1]
        assert len(sampler) == 2
        assert next(iter(sampler)) == [0, 1, 2, 3]

    def test_full_batches_only(self):
        for last_batch in ("keep", "discard", "rollover"):
            sampler = BatchSampler(SequentialSampler(8), 4, last_batch)
            for _ in range(2):
                assert len(sampler) == 2
                assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_fewer_than_one_batch(self):
        sampler = BatchSampler(SequentialSampler(3), 4, "rollover")
        assert [list(sampler) for _ in range(3)] == [[], [[0, 1, 2, 0]], [[1, 2, 0, 1]]]

    @pytest.mark.parametrize("batch_size", [0, -1, 2.5, "4", None, True])
    def test_wrong_batch_sizes(self, batch_size):
        with pytest.raises(ValueError, match=r"batch_size must be .*, got "):
            BatchSampler(SequentialSampler(10), batch_size)

    def test_wrong_last_batch(self):
        with pytest.raises(ValueError, match=r"last_batch must be .*, got 'drop'"):
            BatchSampler(SequentialSampler(10), 4, "drop")
