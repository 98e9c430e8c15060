import numpy as np
import pytest

from crumpets_like.gluon import (
    ArrayDataset,
    Dataset,
    RandomSampler,
    SequentialSampler,
    SimpleDataset,
)


def samples(dataset):
    return [dataset[index] for index in range(len(dataset))]


class Calls:
    """Counts what it is called for."""

    def __init__(self, function):
        self.function = function
        self.count = 0

    def __call__(self, *arguments):
        self.count += 1
        return self.function(*arguments)


class TestDataset:
    def test_subclasses_say_what_it_holds(self):
        with pytest.raises(NotImplementedError, match="Dataset must define __getitem__"):
            Dataset()[0]
        with pytest.raises(NotImplementedError, match="Dataset must define __len__"):
            len(Dataset())


class TestSimpleDataset:
    def test_samples(self):
        assert samples(SimpleDataset([3, 4, 5])) == [3, 4, 5]
        assert samples(SimpleDataset(np.arange(3))) == [0, 1, 2]


class TestArrayDataset:
    def test_one_array_gives_its_samples(self):
        assert samples(ArrayDataset([3, 4])) == [3, 4]

    def test_several_give_tuples(self):
        dataset = ArrayDataset(np.arange(2), ["a", "b"], SimpleDataset([5, 6]))
        assert samples(dataset) == [(0, "a", 5), (1, "b", 6)]
        assert len(dataset) == 2

    def test_wrong_arrays(self):
        with pytest.raises(ValueError, match="at least one array"):
            ArrayDataset()
        with pytest.raises(ValueError, match="array 0 has 2 samples and array 2 has 3"):
            ArrayDataset([1, 2], [3, 4], [5, 6, 7])


class TestTransform:
    def test_a_sample_that_is_no_tuple(self):
        assert samples(SimpleDataset([1, 2]).transform(lambda x: 10 * x)) == [10, 20]
        assert samples(SimpleDataset([[1, 2]]).transform(lambda x: x[::-1])) == [[2, 1]]

    def test_items_of_a_tuple_are_arguments(self):
        dataset = ArrayDataset([1, 2], [3, 4]).transform(lambda x, y: x + y)
        assert samples(dataset) == [4, 6]
        assert len(dataset) == 2

    def test_the_first_item(self):
        dataset = ArrayDataset([1, 2], [3, 4], [5, 6]).transform_first(lambda x: 10 * x)
        assert samples(dataset) == [(10, 3, 5), (20, 4, 6)]
        assert samples(SimpleDataset([1, 2]).transform_first(lambda x: 10 * x)) == [10, 20]

    def test_lazy_or_at_once(self):
        calls = Calls(lambda x: -x)
        lazy = SimpleDataset([1, 2]).transform(calls)
        assert calls.count == 0
        assert samples(lazy) == samples(lazy) == [-1, -2]
        assert calls.count == 4
        eager = SimpleDataset([1, 2]).transform_first(calls, lazy=False)
        assert calls.count == 6
        assert samples(eager) == [-1, -2]
        assert calls.count == 6


class TestParts:
    def test_filter(self):
        dataset = SimpleDataset([1, 2, 3, 4]).filter(lambda x: x % 2 == 0)
        assert samples(dataset) == [2, 4]
        assert samples(dataset.filter(lambda x: x > 2)) == [4]

    def test_filter_gets_the_tuple(self):
        dataset = ArrayDataset([1, 2], [3, 4]).filter(lambda pair: pair[1] == 4)
        assert samples(dataset) == [(2, 4)]

    @pytest.mark.parametrize("length", [9, 10, 11, 2])
    def test_shards_are_the_dataset(self, length):
        dataset = SimpleDataset(list(range(length)))
        shards = [samples(dataset.shard(3, index)) for index in range(3)]
        assert [sample for shard in shards for sample in shard] == list(range(length))
        assert max(map(len, shards)) - min(map(len, shards)) <= 1

    def test_wrong_shards(self):
        dataset = SimpleDataset([1, 2])
        with pytest.raises(ValueError, match="index must be less than num_shards, got 2 and 2"):
            dataset.shard(2, 2)
        with pytest.raises(ValueError, match="index must be at least 0, got -1"):
            dataset.shard(2, -1)
        with pytest.raises(ValueError, match="num_shards must be at least 1, got 0"):
            dataset.shard(0, 0)

    @pytest.mark.parametrize(("count", "expected"), [(2, 2), (0, 0), (9, 3), (None, 3)])
    def test_take(self, count, expected):
        assert samples(SimpleDataset([5, 6, 7]).take(count)) == [5, 6, 7][:expected]

    def test_sample(self):
        dataset = SimpleDataset(list("abcdef"))
        assert samples(dataset.sample(SequentialSampler(2, 3))) == ["d", "e"]
        drawn = dataset.sample(RandomSampler(6))
        assert samples(drawn) == samples(drawn)
        with pytest.raises(TypeError, match=r"sampler must be a crumpets_like.gluon.Sampler, got"):
            dataset.sample([1, 2])
