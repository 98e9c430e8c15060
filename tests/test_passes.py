import itertools

import numpy as np
import pytest

from tests.support.planning import (
    Lying,
    OwnIterator,
    Sized,
    Unsized,
    epochs,
    planner,
    reference,
    rows,
)

WORDS = ["keep", "discard", "rollover"]


class TestLaziness:
    @pytest.mark.parametrize("options", [{}, {"length": 10}, {"length": 40}])
    @pytest.mark.parametrize("make", [Sized, Unsized])
    @pytest.mark.parametrize("argument", ["iterable", "sampler"])
    def test_each_batch_reads_what_it_needs(self, argument, make, options):
        source = make(range(10))
        if argument == "iterable":
            plan = planner(source, 4, **options).open()
        else:
            plan = planner(range(10), 4, sampler=source, **options).open()
        assert source.read == 0
        for expected in (4, 8, 12 if options == {"length": 40} else 10):
            next(plan)
            assert source.read == expected

    @pytest.mark.parametrize("last_batch", WORDS)
    @pytest.mark.parametrize("length", [8, 10])
    def test_nothing_is_read_past_the_end_of_an_epoch(self, last_batch, length):
        stream = Sized(range(length))
        plans = planner(stream, 4, last_batch=last_batch)
        rows(plans.open())
        assert stream.read == (10 if (last_batch, length) == ("keep", 10) else 8)
        assert stream.passes == 1

    def test_nothing_past_the_length(self):
        stream = OwnIterator(100)
        rows(planner(stream, 4, length=6).open())
        assert stream.read == 8

    def test_more_than_the_length_is_cut(self):
        stream = Lying(range(20), 10)
        assert epochs(planner(stream, 4), 1) == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]]
        assert stream.read == 10

    @pytest.mark.parametrize("argument", ["iterable", "sampler"])
    def test_less_than_the_length_ends_early(self, argument):
        source = Lying(range(6), 20)
        if argument == "iterable":
            plans = planner(source, 4)
        else:
            plans = planner(range(20), 4, sampler=source)
        assert plans.iterations() == 5
        for _ in range(2):
            assert rows(plans.open()) == [[0, 1, 2, 3], [4, 5]]

    def test_iter_is_called_by_open(self):
        sampler = Sized(range(4))
        plans = planner(range(4), 2, sampler=sampler)
        assert sampler.passes == 0
        plans.open()
        assert sampler.passes == 1
        assert sampler.read == 0

    @pytest.mark.parametrize("last_batch", ["keep", "discard"])
    @pytest.mark.parametrize("length", [8, 10])
    def test_a_samplers_code_behind_its_last_yield_runs(self, length, last_batch):
        for make in (Sized, Unsized):
            sampler = make(range(length))
            plans = planner(range(10), 4, sampler=sampler, last_batch=last_batch)
            for n in (1, 2):
                rows(plans.open())
                assert sampler.finished == n
                assert sampler.read == n * length

    def test_a_batch_samplers_code_behind_its_last_yield_runs(self):
        sampler = Sized([[0, 1], [2]])
        rows(planner(range(3), 2, batch_sampler=sampler).open())
        assert sampler.finished == 1

    def test_the_read_to_the_end_of_a_sampler_is_bounded(self):
        sampler = Lying(range(100), 3)
        assert epochs(planner(range(9), 2, sampler=sampler), 2) == [[[0, 1], [2]]] * 2
        assert sampler.read == 8


class TestOwnIterators:
    """An iterator that is its own iter() goes on where it stood."""

    def test_goes_on_after_a_break(self):
        plans = planner(OwnIterator(10), 2)
        next(plans.open())
        assert rows(plans.open()) == [[2, 3], [4, 5], [6, 7], [8, 9]]

    @pytest.mark.parametrize("last_batch", WORDS)
    def test_exhausted(self, last_batch):
        plans = planner(OwnIterator(10), 4, last_batch=last_batch)
        assert rows(plans.open()) == reference(10, 4, last_batch, 1)[0]
        plan = plans.open()
        with pytest.raises(RuntimeError, match=r"iterable, .*OwnIterator.* exhausted\. Give"):
            next(plan)

    def test_exhausted_in_a_chain(self):
        plans = planner(OwnIterator(10), 2, length=6)
        assert rows(plans.open()) == [[0, 1], [2, 3], [4, 5]]
        plan = plans.open()
        assert [next(plan), next(plan)] == [[6, 7], [8, 9]]
        with pytest.raises(RuntimeError, match="exhausted"):
            next(plan)

    def test_exhausted_in_the_middle_of_a_batch(self):
        plan = planner(OwnIterator(3), 2, length=6).open()
        assert next(plan) == [0, 1]
        with pytest.raises(RuntimeError, match="exhausted"):
            next(plan)

    def test_a_generator_of_just_the_length(self):
        plans = planner((i for i in range(10)), 4, length=10)
        assert rows(plans.open()) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(RuntimeError, match="exhausted"):
            next(plans.open())

    def test_a_generator_as_sampler(self):
        plans = planner(range(9), 2, sampler=(i for i in [3, 4, 5]))
        assert rows(plans.open()) == [[3, 4], [5]]
        with pytest.raises(RuntimeError, match="a new pass over sampler"):
            next(plans.open())

    def test_a_sampler_is_not_read_past_its_length(self):
        class SizedIterator(OwnIterator):
            def __len__(self):
                return 4

        sampler = SizedIterator(8)
        plans = planner(range(8), 4, sampler=sampler)
        assert epochs(plans, 2) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]

    def test_with_a_length(self):
        class Sized(OwnIterator):
            def __len__(self):
                return 4

        source = Sized(8)
        plans = planner(source, 4)
        assert epochs(plans, 2) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
        assert source.read == 8
        with pytest.raises(RuntimeError, match="exhausted"):
            next(plans.open())


class TestSampler:
    class WithEpoch(Sized):
        def __init__(self, items):
            super().__init__(items)
            self.epochs = []

        def set_epoch(self, epoch):
            self.epochs.append((epoch, self.passes))

    @pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
    def test_set_epoch(self, argument):
        items = [0, 1, 2] if argument == "sampler" else [[0], [1, 2]]
        sampler = self.WithEpoch(items)
        plans = planner(range(3), 2, **{argument: sampler})
        for _ in range(3):
            next(plans.open())
        assert sampler.epochs == [(0, 0), (1, 1), (2, 2)]  # each before its iter()

    def test_set_epoch_gets_the_number_of_the_pass_in_a_chain(self):
        sampler = self.WithEpoch([0, 1])
        epochs(planner(range(2), 2, sampler=sampler, length=6), 2)
        assert [epoch for epoch, _ in sampler.epochs] == [0, 1, 2, 3, 4, 5]

    def test_set_epoch_of_an_iterable_is_not_ours_to_call(self):
        class Samples(Unsized):
            def set_epoch(self, epoch):
                raise AssertionError

        rows(planner(Samples(range(3)), 2).open())

    def test_errors_belong_to_their_batch(self):
        def broken():
            yield from (0, 1, 2)
            raise KeyError("broken sampler")

        class Broken:
            def __iter__(self):
                return broken()

        plan = planner(range(9), 2, sampler=Broken()).open()
        assert next(plan).tolist() == [0, 1]
        with pytest.raises(KeyError, match="broken sampler"):
            next(plan)

    @pytest.mark.parametrize("index", [10, -11, 2**70, -(2**70)])
    @pytest.mark.parametrize("argument", ["sampler", "batch_sampler"])
    def test_out_of_range_belongs_to_its_batch(self, argument, index):
        keys = [0, 1, 2, index]
        items = keys if argument == "sampler" else [keys[:2], keys[2:]]
        plan = planner(range(10), 2, **{argument: items}).open()
        assert next(plan).tolist() == [0, 1]
        message = f"^{argument} gave the index {index}, .* dataset of length 10$"
        with pytest.raises(IndexError, match=message):
            next(plan)

    def test_negative_indices_are_those_of_the_dataset(self):
        plan = planner(range(10), 3, sampler=[-1, -10, 9]).open()
        assert rows(plan) == [[-1, -10, 9]]

    def test_every_kind_of_integer(self):
        keys = [3, np.int32(1), np.uint8(2), np.array(4), True]
        assert rows(planner(range(9), 5, sampler=keys).open()) == [[3, 1, 2, 4, 1]]

    @pytest.mark.parametrize(
        "keys", [["a", "b"], [(0, 1), (1, 0)], [1.5, 0.5], [0, "b"], [None, 1]]
    )
    def test_other_keys_stay_what_they_are(self, keys):
        plan = planner(range(9), 2, sampler=keys).open()
        assert plan.kind == "indices"
        batch = next(plan)
        assert type(batch) is list
        assert batch == keys

    def test_a_mapping_takes_any_key(self):
        data = {100: "a", -5: "b", 2**80: "c"}
        first, second = planner(data, 2, sampler=[100, -5, 2**80]).open()
        assert first.tolist() == [100, -5]
        assert second == [2**80]

    def test_torch_samplers(self):
        data = pytest.importorskip("torch").utils.data
        sampler = data.RandomSampler(range(10))
        batches = rows(planner(range(10), 4, sampler=sampler).open())
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(itertools.chain(*batches)) == list(range(10))
        distributed = data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=3)
        plans = planner(range(10), 5, sampler=distributed)
        for epoch in range(2):
            got = rows(plans.open())
            distributed.set_epoch(epoch)
            assert got == [list(distributed)]
        batch_sampler = data.BatchSampler(data.SequentialSampler(range(10)), 4, drop_last=False)
        assert (
            epochs(planner(range(10), 4, batch_sampler=batch_sampler), 2)
            == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2
        )

    def test_torch_indices(self):
        torch = pytest.importorskip("torch")
        plan = planner(range(9), 2, sampler=torch.tensor([3, 1, 2])).open()
        assert rows(plan) == [[3, 1], [2]]


class TestBatchSampler:
    def test_lists_of_any_length_up_to_the_batch_size(self):
        plans = planner(range(10), 4, batch_sampler=Sized([[1], [2, 3, 4, 5], (6, 7)]))
        assert plans.length is None
        assert epochs(plans, 2) == [[[1], [2, 3, 4, 5], [6, 7]]] * 2

    def test_arrays(self):
        plan = planner(range(9), 3, batch_sampler=[np.array([3, 4])]).open()
        assert rows(plan) == [[3, 4]]

    def test_without_length(self):
        plans = planner(range(10), 4, batch_sampler=Unsized([[1], [2, 3]]))
        assert plans.iterations() is None
        assert epochs(plans, 2) == [[[1], [2, 3]]] * 2

    def test_endless(self):
        endless = ([i, i + 1] for i in itertools.count())
        plans = planner(range(10), 4, batch_sampler=endless)
        plans.set_epoch_iterations(2)
        assert epochs(plans, 2) == [[[0, 1], [1, 2]], [[2, 3], [3, 4]]]

    def test_iterations_cut_the_chain_of_lists(self):
        lists = [[0], [1, 2], [3]]
        plans = planner(range(10), 4, batch_sampler=lists)
        plans.set_epoch_iterations(2)
        assert epochs(plans, 3) == [[[0], [1, 2]], [[3], [0]], [[1, 2], [3]]]

    def test_length(self):
        plans = planner(range(10), 4, batch_sampler=[[0], [1, 2], [3]], length=7)
        assert plans.length == 7
        assert epochs(plans, 2) == [[[0], [1, 2]], [[3], [0]]]
        plans.set_length(9)  # three iterations are one pass
        assert epochs(plans, 2) == [[[0], [1, 2], [3]]] * 2

    def test_too_long_belongs_to_its_batch(self):
        plan = planner(range(10), 3, batch_sampler=[[0], [1, 2, 3, 4]]).open()
        assert next(plan).tolist() == [0]
        message = r"batch_sampler gave a list of 4 indices, .* batch_size=3"
        with pytest.raises(ValueError, match=message):
            next(plan)

    def test_empty_list(self):
        plan = planner(range(10), 3, batch_sampler=[[]]).open()
        with pytest.raises(ValueError, match="a list of 0 indices"):
            next(plan)

    def test_a_plain_sampler_by_mistake(self):
        plan = planner(range(10), 3, batch_sampler=[0, 1]).open()
        with pytest.raises(TypeError, match=r"must give lists of indices, got 0 \(int\)"):
            next(plan)

    def test_each_list_is_read_when_its_turn_comes(self):
        sampler = Sized([[0], [1], [2]])
        plan = planner(range(9), 2, batch_sampler=sampler).open()
        for n in (1, 2, 3):
            next(plan)
            assert sampler.read == n
