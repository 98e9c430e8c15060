"""The samplers of our own: their proportions, and that any place can be entered."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like.sampling import (
    Concatenation,
    MixSampler,
    SequentialOrder,
    ShuffledOrder,
    SubsetSampler,
    WeightedSampler,
)
from tests.support.resuming import make, receive

WEIGHTS = [0.0, 1.0, 2.0, 0.0, 5.0, 0.5, 1.5, 0.0]

SAMPLERS: dict[str, Any] = {
    "weighted": lambda: WeightedSampler(WEIGHTS, 1000),
    "weighted once": lambda: WeightedSampler(WEIGHTS, 5, replacement=False),
    "subset": lambda: SubsetSampler(range(7, 500, 3)),
    "subset in order": lambda: SubsetSampler([5, 1, 9], shuffle=False),
    "mix": lambda: MixSampler([range(1000), range(30), range(7)], [5, 3, 1], 3000),
    "mix by length": lambda: MixSampler([range(40), range(60)]),
}


@pytest.mark.parametrize("make_sampler", SAMPLERS.values(), ids=SAMPLERS)
class TestEverySampler:
    @settings(max_examples=60)
    @given(data=st.data())
    def test_any_stretch_at_any_time(self, make_sampler: Any, data: Any) -> None:
        length = len(make_sampler())
        number = data.draw(st.integers(0, 3))
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length))
        step = data.draw(st.integers(1, 5))
        order = make_sampler().order(3, number)
        whole = make_sampler().order(3, number).indices(0, length)
        assert order.length == length
        assert whole.dtype == np.int64
        assert whole.shape == (length,)
        assert np.array_equal(order.indices(start, stop, step), whole[start:stop:step])
        assert 0 <= whole.min() <= whole.max() < make_sampler().reach

    def test_seed_and_pass_make_the_order(self, make_sampler: Any) -> None:
        sampler = make_sampler()

        def order(seed: int, number: int) -> tuple[int, ...]:
            return tuple(sampler.order(seed, number).indices(0, len(sampler)).tolist())

        assert order(3, 1) == order(3, 1)
        if getattr(sampler, "_shuffle", True) and len(sampler) > 5:
            assert len({order(3, 1), order(3, 2), order(4, 1)}) == 3

    def test_outside_of_the_pass(self, make_sampler: Any) -> None:
        sampler = make_sampler()
        with pytest.raises(IndexError, match="not inside"):
            sampler.order(0, 0).indices(0, len(sampler) + 1)

    def test_a_loader_goes_on(self, make_sampler: Any) -> None:
        dataset = make_sampler().dataset if hasattr(make_sampler(), "dataset") else range(500)
        with make(dataset, sampler=make_sampler()) as loader:
            whole = [receive(loader), receive(loader)]
        with make(dataset, nworkers=2, sampler=make_sampler()) as loader:
            receive(loader, 1)
            state = json.loads(json.dumps(loader.state_dict()))
        with make(dataset, sampler=make_sampler()) as loader:
            loader.load_state_dict(state)
            if whole[0][1:]:
                assert receive(loader) == whole[0][1:]
            assert receive(loader) == whole[1]


def chi_square(counts: Any, weights: Any) -> float:
    expected = np.array(weights) / sum(weights) * sum(counts)
    kept = expected > 0
    return float(((np.array(counts)[kept] - expected[kept]) ** 2 / expected[kept]).sum())


class TestWeighted:
    def test_frequencies(self) -> None:
        indices = WeightedSampler(WEIGHTS, 20_000).order(0, 0).indices(0, 20_000)
        counts = np.bincount(indices, minlength=8)
        assert [not count for count in counts] == [not weight for weight in WEIGHTS]
        assert chi_square(counts, WEIGHTS) < 25  # 4 degrees of freedom

    def test_draws_are_independent(self) -> None:
        indices = WeightedSampler([1, 1]).order(0, 0)
        assert indices.length == 2
        order = WeightedSampler([1, 1], 20_000).order(0, 0).indices(0, 20_000)
        pairs = np.bincount(order[:-1] * 2 + order[1:], minlength=4)
        assert chi_square(pairs, [1, 1, 1, 1]) < 30

    def test_without_replacement(self) -> None:
        firsts, seconds = Counter[int](), Counter[tuple[int, int]]()
        sampler = WeightedSampler([1, 2, 3], replacement=False)
        for number in range(6000):
            first, second, third = sampler.order(1, number).indices(0, 3).tolist()
            assert {first, second, third} == {0, 1, 2}
            firsts[first] += 1
            seconds[first, second] += 1
        assert chi_square([firsts[i] for i in range(3)], [1, 2, 3]) < 20
        assert chi_square([seconds[2, i] for i in range(2)], [1, 2]) < 15

    def test_long(self) -> None:
        order = WeightedSampler([1, 3], 10**12).order(0, 0)
        assert 600 < order.indices(9 * 10**11, 9 * 10**11 + 1000).sum() < 900

    @pytest.mark.parametrize(
        ("weights", "options", "text"),
        [
            ([1, -1], {}, r"finite and not negative, got -1\.0 for sample 1"),
            ([1, np.nan], {}, "got nan for sample 1"),
            ([np.inf], {}, "got inf for sample 0"),
            ([0, 0], {}, "must not all be 0"),
            ([], {}, "must not all be 0"),
            ([[1]], {}, "one dimension, got 2"),
            ([1, 0], {"replacement": False}, "without replacement, got 2 and 1"),
            ([1], {"length": 0}, "length must be at least 1, got 0"),
        ],
    )
    def test_bad_values(self, weights: Any, options: Any, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            WeightedSampler(weights, **options)


class TestSubset:
    def test_is_the_subset(self) -> None:
        indices = [9, 4, 4, 17]
        sampler = SubsetSampler(indices)
        assert sorted(sampler.order(0, 0).indices(0, 4)) == sorted(indices)
        assert SubsetSampler(indices, shuffle=False).order(0, 0).indices(0, 4).tolist() == indices
        places = ShuffledOrder(4, 5, 2).indices(0, 4)
        assert sampler.order(5, 2).indices(0, 4).tolist() == [indices[i] for i in places]

    def test_empty(self) -> None:
        with make(range(3), sampler=SubsetSampler([])) as loader:
            assert receive(loader) == []

    def test_bad_values(self) -> None:
        with pytest.raises(ValueError, match="indices must not be negative, got -2"):
            SubsetSampler([3, -2])
        with pytest.raises(TypeError, match="indices must be integers in one dimension, got 1 of"):
            SubsetSampler([0.5])

    def test_dataset_too_short(self) -> None:
        with pytest.raises(ValueError, match="dataset of at least 10 samples, got one of 9"):
            make(range(9), sampler=SubsetSampler([9]))


class TestMix:
    def test_proportions_hold_everywhere(self) -> None:
        lengths, weights = [1000, 30, 7], [5, 3, 1]
        sampler = MixSampler([range(n) for n in lengths], weights, 9000)
        owners = [
            np.searchsorted([1000, 1030], sampler.order(0, number).indices(0, 9000), "right")
            for number in range(3)
        ]
        stream = np.concatenate(owners)
        for stop in range(1024, len(stream), 1024):
            counts = np.bincount(stream[:stop], minlength=3)
            assert np.abs(counts - np.array(weights) / 9 * stop).max() < 2
        assert len(set(map(tuple, stream[: 27 * 1000].reshape(-1, 1000)))) == 27

    def test_each_dataset_in_passes_of_its_own(self) -> None:
        sampler = MixSampler([range(1000), range(30), range(7)], [5, 3, 1], 900)
        stream = np.concatenate([sampler.order(0, n).indices(0, 900) for n in range(12)])
        for start, length in [(0, 1000), (1000, 30), (1030, 7)]:
            part = stream[(stream >= start) & (stream < start + length)] - start
            for first in range(0, len(part) - length, length):
                assert sorted(part[first : first + length]) == list(range(length))
            assert not np.array_equal(part[:length], part[length : 2 * length])

    def test_dataset(self) -> None:
        mix = MixSampler(["abc", [0, 1]])
        assert list(mix.dataset) == ["a", "b", "c", 0, 1]
        assert mix.dataset[-1] == 1
        assert len(mix) == len(mix.dataset) == 5
        with pytest.raises(IndexError):
            mix.dataset[5]
        assert list(Concatenation([])) == []

    def test_far_away(self) -> None:
        mix = MixSampler([range(10**9), range(10**6)], [1, 1], 10**12)
        indices = mix.order(0, 3).indices(9 * 10**11, 9 * 10**11 + 2000)
        assert 980 < (indices < 10**9).sum() < 1020

    def test_a_small_share(self) -> None:
        mix = MixSampler([range(10), range(10)], [1, 10_000], 50_000)
        assert (mix.order(0, 0).indices(0, 50_000) < 10).sum() in (4, 5, 6)

    @pytest.mark.parametrize(
        ("datasets", "weights", "text"),
        [
            ([], None, r"datasets must not be empty, got lengths \[\]"),
            ([[1], []], None, r"datasets must not be empty, got lengths \[1, 0\]"),
            ([[1], [2]], [1], "weight for each dataset, got 1 and 2"),
            ([[1], [2]], [1, 0], r"positive, .* got \[1\.0, 0\.0\]"),
            ([[1], [2]], [1, -1], r"positive, .* got \[1\.0, -1\.0\]"),
            ([[1], [2]], [1, float("nan")], "positive"),
            ([[1], [2]], [1, float("inf")], "positive"),
        ],
    )
    def test_bad_values(self, datasets: Any, weights: Any, text: str) -> None:
        with pytest.raises(ValueError, match=text):
            MixSampler(datasets, weights)


def test_ranks_share_a_sampler() -> None:
    order = WeightedSampler(WEIGHTS, 50).order(7, 0).indices(0, 50).tolist()
    options = {"iterable": range(8), "world_size": 3, "uneven": "keep"}
    for rank in range(3):
        with make(sampler=WeightedSampler(WEIGHTS, 50), rank=rank, **options) as loader:
            got = [row[0] for _, rows in receive(loader) for row in rows]
            assert got == order[rank::3]
    with pytest.raises(ValueError, match="world_size=3 needs seed="):
        make(sampler=SubsetSampler([1]), rank=0, seed=None, **options)


def test_the_next_epoch_is_requested_ahead() -> None:
    plan = make(range(9), sampler=SubsetSampler([3, 4]))._planner.open()
    assert plan.ahead
    assert SequentialOrder(3).indices(0, 3, 2).tolist() == [0, 2]
