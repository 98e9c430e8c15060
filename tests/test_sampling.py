import tracemalloc
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like import sampling
from crumpets_like.sampling import EXACT_LENGTH, SequentialOrder, ShuffledOrder, _Feistel
from crumpets_like.seeding import SampleRNG, seed_sequence

MAKERS = {
    "sequential": SequentialOrder,
    "shuffled": lambda length: ShuffledOrder(length, 0, 0),
}


def network(length, seed=0, number=0):
    return _Feistel(length, seed_sequence(seed, "order", number))


def values(length, seed=0, number=0):
    return network(length, seed, number)(np.arange(length, dtype=np.uint64)).astype(np.int64)


@cache
def whole_pass(make, length):
    return make(length).indices(0, length)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestEveryOrder:
    @pytest.mark.parametrize("length", [0, 1, 2, 10, 1000, EXACT_LENGTH, EXACT_LENGTH + 1])
    def test_each_index_once(self, make, length):
        order = make(length)
        indices = order.indices(0, length)
        assert order.length == length
        assert indices.dtype == np.int64
        assert np.array_equal(np.sort(indices), np.arange(length))

    @pytest.mark.parametrize("length", [1000, EXACT_LENGTH + 17])
    @settings(deadline=None)
    @given(data=st.data())
    def test_any_stretch_at_any_time(self, make, length, data):
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, min(length, start + 5000)))
        whole = whole_pass(make, length)
        order = make(length)
        order.indices(length // 2, length // 2 + 10)
        assert np.array_equal(order.indices(start, stop), whole[start:stop])
        assert np.array_equal(order.indices(0, 7), whole[:7])

    @pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11), (11, 11)])
    @pytest.mark.parametrize("times", [1, EXACT_LENGTH])
    def test_outside_of_the_pass(self, make, start, stop, times):
        if times > 1 and stop == 11:
            start, stop = 10 * times, 10 * times + 1
        with pytest.raises(IndexError, match=f"positions {start} to {stop} .* {10 * times}"):
            make(10 * times).indices(start, stop)

    @pytest.mark.parametrize("length", [10, EXACT_LENGTH + 1])
    def test_the_array_is_the_callers(self, make, length):
        order = make(length)
        first = order.indices(0, 5)
        kept = first.copy()
        first[...] = -1
        assert np.array_equal(order.indices(0, 5), kept)

    @pytest.mark.parametrize("length", [-1, 2**62 + 1])
    def test_length_out_of_range(self, make, length):
        with pytest.raises(ValueError, match=f"length must be .*{length}"):
            make(length)

    def test_length_no_integer(self, make):
        with pytest.raises(TypeError):
            make(2.5)


class TestShuffledOrder:
    @pytest.mark.parametrize("length", [1000, EXACT_LENGTH + 1, 10**12])
    def test_seed_and_number_make_the_order(self, length):
        def start(seed, number):
            return tuple(ShuffledOrder(length, seed, number).indices(0, 100).tolist())

        assert start(3, 4) == start(3, 4)
        cases = [(3, 4), (3, 5), (4, 4), (4, 3), (0, 0), (2**32, 0), (0, 1), (2**64, 0)]
        assert len({start(*case) for case in cases}) == len(cases)

    def test_exact_permutation_up_to_the_limit(self, monkeypatch):
        def fail(*_):
            raise AssertionError("a short pass went through the network")

        monkeypatch.setattr(sampling, "_Feistel", fail)
        ShuffledOrder(EXACT_LENGTH, 0, 0).indices(0, 3)
        with pytest.raises(AssertionError, match="network"):
            ShuffledOrder(EXACT_LENGTH + 1, 0, 0)

    def test_all_orders_of_four_are_equally_likely(self):
        orders = [tuple(ShuffledOrder(4, seed, 0).indices(0, 4)) for seed in range(4800)]
        counts = np.array([orders.count(order) for order in set(orders)])
        assert counts.size == 24
        assert ((counts - 200) ** 2 / 200).sum() < 60  # chi square of 23 degrees of freedom

    def test_permutation_is_computed_at_first_use(self):
        tracemalloc.start()
        order = ShuffledOrder(EXACT_LENGTH, 0, 0)
        assert tracemalloc.get_traced_memory()[1] < 10**5
        order.indices(0, 1)
        assert tracemalloc.get_traced_memory()[1] > 8 * EXACT_LENGTH
        tracemalloc.stop()

    @pytest.mark.parametrize("length", [10**9, 10**12, 2**62])
    def test_long_passes_need_no_memory(self, length):
        tracemalloc.start()
        order = ShuffledOrder(length, 0, 0)
        ends = [order.indices(0, 64), order.indices(length - 64, length)]
        middle = order.indices(length // 2, length // 2 + 64)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        indices = np.concatenate([*ends, middle])
        assert peak < 10**6
        assert len(np.unique(indices)) == 192
        assert indices.min() >= 0
        assert indices.max() < length
        assert length // 4 < np.median(indices) < 3 * length // 4

    @pytest.mark.parametrize("batch", [1, 64, 100, 4096, 5000])
    def test_one_computation_serves_a_block(self, batch, monkeypatch):
        calls = []
        permute = _Feistel.__call__

        def count(self, positions):
            calls.append(len(positions))
            return permute(self, positions)

        monkeypatch.setattr(_Feistel, "__call__", count)
        order = ShuffledOrder(10**9, 0, 0)
        for start in range(0, 40 * batch, batch):
            order.indices(start, start + batch)
        assert min(calls) >= sampling.BLOCK
        assert len(calls) <= 1 + 40 * batch // (sampling.BLOCK - batch if batch < 4000 else batch)

    def test_differs_from_the_stream_of_a_sample(self):
        # Keyed by the bare seed, both would be the same Philox.
        first = SampleRNG(5).seek(0, 0).permutation(100)
        assert not np.array_equal(first, ShuffledOrder(100, 5, 0).indices(0, 100))

    def test_bad_seed(self):
        with pytest.raises(TypeError, match="seed"):
            ShuffledOrder(3, 1.5, 0)


class TestFeistel:
    @pytest.mark.parametrize(
        "length", [*range(1, 70), 127, 128, 129, 1000, 1023, 1025, 4097, 99991]
    )
    def test_bijective(self, length):
        for seed in range(3):
            assert np.array_equal(np.sort(values(length, seed)), np.arange(length))

    @settings(deadline=None)
    @given(length=st.integers(1, 2**62), seed=st.integers(0, 2**70), data=st.data())
    def test_distinct_and_in_range(self, length, seed, data):
        start = data.draw(st.integers(0, length - 1))
        positions = np.arange(start, min(length, start + 500), dtype=np.uint64)
        kept = positions.copy()
        result = network(length, seed)(positions)
        assert np.array_equal(positions, kept)
        assert result.max() < length
        assert len(np.unique(result)) == len(positions)

    @pytest.mark.parametrize("length", [3, 5, 1000, 2**20 + 1, 2**30, 10**12, 2**62])
    def test_domain_is_less_than_twice_the_length(self, length):
        domain = 2 ** (128 - int(network(length)._to_low) - int(network(length)._to_high))
        assert length <= domain < 2 * length

    @pytest.mark.parametrize("length", [2**20 + 1, 3 * 2**19, 2**21, 10**9])
    def test_values_are_uniform(self, length):
        cells = np.zeros((16, 16))
        for number in range(40):
            first = network(length, 0, number)(np.arange(0, 2048, dtype=np.uint64))
            second = network(length, 0, number)(np.arange(2048, 4096, dtype=np.uint64))
            pair = (first.astype(float) / length * 16, second.astype(float) / length * 16)
            cells += np.histogram2d(*pair, bins=16, range=[(0, 16), (0, 16)])[0]
        expected = cells.sum() / 256
        # Chi square of 255 degrees of freedom: mean 255, standard deviation 22.6.
        assert 255 - 6 * 22.6 < ((cells - expected) ** 2 / expected).sum() < 255 + 6 * 22.6

    def test_neighbours_are_independent(self):
        length = 2**20 + 1
        for number in range(4):
            result = values(length, 1, number).astype(float)
            for lag in (1, 2, 3, 1024, 2048):
                # Standard deviation of the correlation: 1 / sqrt(length), about 0.001.
                assert abs(np.corrcoef(result[:-lag], result[lag:])[0, 1]) < 0.006

    def test_steps_between_neighbours_look_random(self):
        # The differences of a random permutation take about 1 - exp(-1) of the values (mod N).
        result = values(2**20, 5)
        differences = np.unique(np.diff(result) % 2**20)
        assert abs(differences.size / 2**20 - (1 - np.exp(-1))) < 0.005

    @pytest.mark.parametrize("length", [2**20, 2**20 + 2**19])
    def test_low_bits_are_random_too(self, length):
        result = values(length, 2)
        for bit in range(20):
            flips = (result[:-1] ^ result[1:]) >> bit & 1
            assert abs(flips.mean() - 0.5) < 0.01 or bit == 19

    def test_cycles_are_those_of_a_random_permutation(self):
        # Expected number of fixed points: 1; of cycles: ln N + 0.577.
        fixed, cycles = 0, 0
        for seed in range(40):
            result = values(4096, seed)
            fixed += int((result == np.arange(4096)).sum())
            seen = np.zeros(4096, bool)
            for start in range(4096):
                cycles += not seen[start]
                while not seen[start]:
                    seen[start] = True
                    start = result[start]
        assert 15 < fixed < 75
        assert abs(cycles / 40 - 8.9) < 2.5

    def test_numbers_give_unrelated_orders(self):
        orders = [values(2**14, 0, number).astype(float) for number in range(6)]
        correlations = np.corrcoef(orders) - np.eye(6)
        assert np.abs(correlations).max() < 0.05
