import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like.sampling import ShuffledOrder
from tests.support.planning import Sized, Unsized, epochs, planner, reference, rows

WORDS = ["keep", "discard", "rollover"]

SOURCES = {
    "own order": lambda n, **options: planner(range(n), **options),
    "sampler": lambda n, **options: planner(range(n), sampler=Sized(range(n)), **options),
    "sampler without length": lambda n, **options: planner(
        range(n), sampler=Unsized(range(n)), **options
    ),
    "samples": lambda n, **options: planner(Sized(range(n)), **options),
    "samples without length": lambda n, **options: planner(Unsized(range(n)), **options),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
SIZED = {name: SOURCES[name] for name in ("own order", "sampler", "samples")}


class TestOnePass:
    @every_source
    @pytest.mark.parametrize("last_batch", WORDS)
    @pytest.mark.parametrize("batch_size", [1, 3, 8, 16])
    @pytest.mark.parametrize("length", [0, 1, 8, 9, 10])
    def test_table(self, source, length, batch_size, last_batch):
        plans = source(length, batch_size=batch_size, last_batch=last_batch)
        assert epochs(plans, 20) == reference(length, batch_size, last_batch, 20)

    @every_source
    def test_rollover(self, source):
        expected = [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ]
        assert epochs(source(10, batch_size=4, last_batch="rollover"), 3) == expected

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    def test_rollover_iterations(self, source):
        plans = source(10, batch_size=4, last_batch="rollover")
        seen = []
        for _ in range(3):
            seen.append(plans.iterations())
            rows(plans.open())
        assert seen == [2, 3, 2]

    @pytest.mark.parametrize("last_batch", WORDS)
    @pytest.mark.parametrize("length", [5, 10, 4096 + 2**20])
    def test_shuffled(self, length, last_batch):
        batch_size = 4 if length < 100 else 2**18
        plans = planner(range(length), batch_size, shuffle=True, seed=7, last_batch=last_batch)
        orders = [ShuffledOrder(length, 7, n).indices(0, length).tolist() for n in range(3)]
        assert orders[0] != orders[1]
        assert epochs(plans, 3) == reference(length, batch_size, last_batch, 3, orders)

    def test_int64(self):
        for options in ({}, {"shuffle": True}, {"sampler": [3, 1]}, {"batch_sampler": [[3, 1]]}):
            batch = next(planner(range(5), 2, **options).open())
            assert isinstance(batch, np.ndarray)
            assert batch.dtype == np.int64
            assert batch.shape == (2,)

    @every_source
    @pytest.mark.parametrize("last_batch", WORDS)
    def test_the_length_of_the_source_changes_nothing(self, source, last_batch):
        plans = source(10, batch_size=4, last_batch=last_batch, length=10)
        expected = reference(10, 4, last_batch, 4)
        assert [rows(plans.open()) for _ in range(4)] == expected
        plans = source(10, batch_size=4, last_batch=last_batch)
        plans.set_length(10)
        assert [rows(plans.open()) for _ in range(4)] == expected

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    @pytest.mark.parametrize(("last_batch", "iterations"), [("keep", 3), ("discard", 2)])
    def test_the_iterations_of_one_pass_change_nothing(self, source, last_batch, iterations):
        plans = source(10, batch_size=4, last_batch=last_batch)
        plans.set_epoch_iterations(iterations)
        assert epochs(plans, 3) == reference(10, 4, last_batch, 3)

    def test_length_of_the_sampler_counts(self):
        plans = planner(range(100), 2, sampler=Sized([5, 6, 7]))
        assert plans.length == 3
        assert epochs(plans, 2) == [[[5, 6], [7]]] * 2

    def test_a_length_that_changes(self):
        sampler = Sized(range(4))
        plans = planner(range(10), 2, sampler=sampler)
        assert epochs(plans, 1) == [[[0, 1], [2, 3]]]
        sampler.items = list(range(7))
        assert plans.iterations() == 4
        assert epochs(plans, 1) == [[[0, 1], [2, 3], [4, 5], [6]]]


class TestChain:
    @every_source
    def test_examples(self, source):
        assert epochs(source(10, batch_size=2, length=6), 2) == [
            [[0, 1], [2, 3], [4, 5]],
            [[6, 7], [8, 9], [0, 1]],
        ]
        assert epochs(source(10, batch_size=4, length=6), 2) == [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9, 0, 1], [2, 3, 4, 5]],
        ]

    @every_source
    @settings(deadline=None, max_examples=40)
    @given(
        n=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        iterations=st.integers(1, 6),
        last_batch=st.sampled_from(WORDS),
        by_length=st.booleans(),
    )
    def test_full_batches_of_the_endless_chain(
        self, source, n, batch_size, iterations, last_batch, by_length
    ):
        plans = source(n, batch_size=batch_size, last_batch=last_batch)
        if by_length:
            length = iterations * batch_size - batch_size // 2
            plans.set_length(length)
            if length == n:
                return
        else:
            plans.set_epoch_iterations(iterations)
            if plans.iterations() == iterations and iterations in (
                n // batch_size,
                -(-n // batch_size),
            ):
                return
        chain = itertools.cycle(range(n))
        expected = [
            [list(itertools.islice(chain, batch_size)) for _ in range(iterations)] for _ in range(4)
        ]
        assert epochs(plans, 4) == expected

    @pytest.mark.parametrize("last_batch", WORDS)
    def test_last_batch_does_not_apply(self, last_batch):
        plans = planner(range(10), 4, length=9, last_batch=last_batch)
        expected = [
            [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]],
            [[2, 3, 4, 5], [6, 7, 8, 9], [0, 1, 2, 3]],
        ]
        assert epochs(plans, 2) == expected

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    def test_iterations_hold_for_a_rollover_too(self, source):
        plans = source(10, batch_size=4, last_batch="rollover")
        plans.set_epoch_iterations(2)  # as many as the first pass has, but not the second
        assert epochs(plans, 2) == [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9, 0, 1], [2, 3, 4, 5]],
        ]

    def test_shuffled_passes(self):
        plans = planner(range(10), 4, shuffle=True, seed=3, length=6)
        got = [i for epoch in epochs(plans, 5) for batch in epoch for i in batch]
        chain = [i for n in range(4) for i in ShuffledOrder(10, 3, n).indices(0, 10).tolist()]
        assert got == chain

    @every_source
    def test_longer_than_a_pass(self, source):
        assert epochs(source(3, batch_size=4, length=8), 2) == [
            [[0, 1, 2, 0], [1, 2, 0, 1]],
            [[2, 0, 1, 2], [0, 1, 2, 0]],
        ]

    def test_endless_iterables(self):
        for options in ({"length": 6}, {}):
            plans = planner(itertools.count(), 4, **options)
            if not options:
                assert plans.iterations() is None
                assert plans.length is None
                plans.set_epoch_iterations(2)
            assert epochs(plans, 2) == [
                [[0, 1, 2, 3], [4, 5, 6, 7]],
                [[8, 9, 10, 11], [12, 13, 14, 15]],
            ]

    def test_setters(self):
        plans = planner(range(10), 2)
        assert (plans.length, plans.iterations()) == (10, 5)
        plans.set_epoch_iterations(2)
        assert (plans.length, plans.iterations()) == (10, 2)
        plans.set_length(6)  # the later call wins
        assert (plans.length, plans.iterations()) == (6, 3)
        plans.set_epoch_iterations(4)
        assert (plans.length, plans.iterations()) == (6, 4)

    def test_setters_act_at_the_next_epoch(self):
        plans = planner(range(10), 2)
        plan = plans.open()
        next(plan)
        plans.set_length(4)
        plans.set_epoch_iterations(1)
        assert plan.iterations == 5
        assert len(rows(plan)) == 4
        assert epochs(plans, 1) == [[[0, 1]]]

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    @pytest.mark.parametrize("last_batch", WORDS)
    def test_back_to_whole_passes(self, source, last_batch):
        plans = source(10, batch_size=4, last_batch=last_batch)
        plans.set_epoch_iterations(1)
        assert epochs(plans, 1) == [[[0, 1, 2, 3]]]
        plans.set_length(10)
        assert epochs(plans, 2) == reference(10, 4, last_batch, 2)
        plans.set_epoch_iterations(1)
        assert epochs(plans, 1) == [[[0, 1, 2, 3]]]

    def test_passes_keep_their_numbers(self):
        plans = planner(range(4), 2, shuffle=True, seed=1, length=6)
        epochs(plans, 1)  # pass 0 and half of pass 1
        plans.set_length(4)
        assert epochs(plans, 1) == [ShuffledOrder(4, 1, 2).indices(0, 4).reshape(2, 2).tolist()]

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    def test_empty(self, source):
        with pytest.raises(
            ValueError, match=r"(sampler|iterable) is empty, so no batch of epoch 0"
        ):
            source(0, batch_size=2, length=4).open()

    @pytest.mark.parametrize("name", ["sampler without length", "samples without length"])
    def test_empty_without_length(self, name):
        plan = SOURCES[name](0, batch_size=2, length=4).open()
        with pytest.raises(ValueError, match=r"(sampler|iterable) gave nothing in a whole pass"):
            next(plan)


class TestEarlyEnd:
    """A `break` and the next `for`: what counts is the plan."""

    @pytest.mark.parametrize("name", ["own order", "sampler", "samples", "sampler without length"])
    @pytest.mark.parametrize("last_batch", ["keep", "discard"])
    def test_one_pass_starts_anew(self, name, last_batch):
        plans = SOURCES[name](10, batch_size=4, last_batch=last_batch)
        next(plans.open())
        assert rows(plans.open()) == reference(10, 4, last_batch, 1)[0]

    @settings(deadline=None, max_examples=150)
    @given(
        n=st.integers(1, 12),
        batch_size=st.integers(1, 7),
        last_batch=st.sampled_from(WORDS),
        actions=st.lists(
            st.tuples(
                st.sampled_from(["", "length", "iterations"]), st.integers(1, 20), st.integers(0, 5)
            ),
            max_size=8,
        ),
    )
    def test_consumed_or_not_makes_no_difference(self, n, batch_size, last_batch, actions):
        """Own orders, and a sampler of the same order, left early at random."""
        options = {"batch_size": batch_size, "last_batch": last_batch}
        whole, own, sampled = (
            planner(range(n), **options),
            planner(range(n), **options),
            planner(range(n), sampler=Sized(range(n)), **options),
        )
        for action, value, consumed in actions:
            for plans in (whole, own, sampled):
                if action == "length":
                    plans.set_length(value)
                if action == "iterations":
                    plans.set_epoch_iterations(value)
            assert whole.iterations() == own.iterations() == sampled.iterations()
            expected = rows(whole.open())
            assert rows(itertools.islice(own.open(), consumed)) == expected[:consumed]
            assert rows(itertools.islice(sampled.open(), consumed)) == expected[:consumed]

    def test_a_sampler_without_length_starts_without_leftovers(self):
        plans = SOURCES["sampler without length"](10, batch_size=4, last_batch="rollover")
        next(plans.open())
        assert rows(plans.open()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        next(plans.open())
        assert rows(plans.open()) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_samples_of_a_chain_go_on_where_they_stand(self):
        stream = Sized(range(100))
        plans = planner(stream, 4, length=20)
        old = plans.open()
        next(old)
        assert rows(plans.open())[0] == [4, 5, 6, 7]
        assert list(old) == []
        assert stream.passes == 1

    @pytest.mark.parametrize("sized", [True, False])
    def test_samples_of_a_rollover_start_a_new_pass(self, sized):
        stream = Sized(range(10)) if sized else Unsized(range(10))
        plans = planner(stream, 4, last_batch="rollover")
        rows(plans.open())
        next(plans.open())
        assert plans.iterations() == (2 if sized else None)
        assert rows(plans.open()) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    @pytest.mark.parametrize("source", SIZED.values(), ids=SIZED)
    def test_planned_leftovers(self, source):
        plans = source(10, batch_size=4, last_batch="rollover")
        next(plans.open())
        samples = not plans.indexable  # those are not read in vain, so nothing is left over
        assert plans.iterations() == (2 if samples else 3)
        assert rows(plans.open())[0] == ([0, 1, 2, 3] if samples else [8, 9, 0, 1])

    def test_a_chain_ends_the_plan_before(self):
        plans = planner(range(10), 2, sampler=Sized(range(10)), length=6)
        old = plans.open()
        next(old)
        new = plans.open()
        assert list(old) == []
        assert rows(new) == [[6, 7], [8, 9], [0, 1]]

    @pytest.mark.parametrize("options", [{}, {"length": 6}, {"last_batch": "rollover"}])
    def test_own_orders_may_run_ahead(self, options):
        expected = epochs(planner(range(10), 4, shuffle=True, **options), 3)
        plans = planner(range(10), 4, shuffle=True, **options)
        opened = [plans.open() for _ in range(3)]
        assert [rows(plan) for plan in reversed(opened)] == expected[::-1]

    def test_plans_of_one_pass_are_independent(self):
        plans = planner(range(4), 2, sampler=Sized(range(4)))
        first, second = plans.open(), plans.open()
        assert [next(first).tolist(), next(second).tolist()] == [[0, 1], [0, 1]]
        assert rows(first) == rows(second) == [[2, 3]]


class TestPlan:
    def test_epoch_numbers(self):
        for make in SOURCES.values():
            plans = make(4, batch_size=2)
            opened = [plans.open() for _ in range(3)]
            assert [plan.epoch for plan in opened] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("name", "kind", "ahead"),
        [
            ("own order", "indices", True),
            ("sampler", "indices", False),
            ("samples", "samples", False),
        ],
    )
    def test_kind_and_ahead(self, name, kind, ahead):
        plan = SOURCES[name](4, batch_size=2).open()
        assert (plan.kind, plan.ahead) == (kind, ahead)
        assert iter(plan) is plan

    def test_it_stays_at_its_end(self):
        for make in SOURCES.values():
            plan = make(3, batch_size=2).open()
            assert len(rows(plan)) == 2
            assert plan.over
            assert rows(plan) == []

    def test_short_epochs_share_one_permutation(self, monkeypatch):
        made = []
        init = ShuffledOrder.__init__

        def count(self, *args):
            made.append(args)
            init(self, *args)

        monkeypatch.setattr(ShuffledOrder, "__init__", count)
        epochs(planner(range(1000), 10, shuffle=True, length=20), 60)
        assert made == [(1000, 0, 0), (1000, 0, 1)]


class TestArguments:
    @pytest.mark.parametrize("value", [0, -1])
    def test_counts_too_small(self, value):
        plans = planner(range(3), 2)
        for name, call in {
            "batch_size": lambda: planner(range(3), value),
            "length": lambda: planner(range(3), 2, length=value),
            "length ": lambda: plans.set_length(value),
            "epoch_iterations": lambda: plans.set_epoch_iterations(value),
        }.items():
            with pytest.raises(
                ValueError, match=f"^{name.strip()} must be at least 1, got {value}$"
            ):
                call()
        assert epochs(plans, 1) == [[[0, 1], [2]]]

    @pytest.mark.parametrize("value", [2.5, "4", True, [1]])
    def test_counts_of_another_type(self, value):
        plans = planner(range(3), 2)
        for name, call in {
            "batch_size": lambda: planner(range(3), value),
            "length": lambda: planner(range(3), 2, length=value),
            "length ": lambda: plans.set_length(value),
            "epoch_iterations": lambda: plans.set_epoch_iterations(value),
        }.items():
            with pytest.raises(TypeError, match=f"^{name.strip()} must be an integer, got "):
                call()

    def test_numpy_integers(self):
        plans = planner(range(4), np.int64(2), length=np.int32(6))
        assert epochs(plans, 1) == [[[0, 1], [2, 3], [0, 1]]]

    @pytest.mark.parametrize("seed", [-1, 2.5])
    def test_seed(self, seed):
        with pytest.raises((ValueError, TypeError), match="seed must"):
            planner(range(3), 2, seed=seed)

    def test_seed_matters(self):
        orders = {
            str(epochs(planner(range(50), 50, shuffle=True, seed=seed), 1))
            for seed in (0, 1, 2**90)
        }
        assert len(orders) == 3

    def test_indexable(self):
        assert planner(range(3), 2).indexable
        assert not planner(iter([]), 2).indexable
