"""Which samples come in which batch, in which order, for any number of workers."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest

from crumpets_like import TurboDataLoader
from tests.support.loading import Items, items, run_epoch, run_items, wait_until
from tests.support.planning import reference

LENGTHS, BATCH_SIZES = (0, 1, 8, 9, 10), (1, 3, 8, 16)
LAST_BATCH = ("keep", "discard", "rollover")


class TestBatches:
    @pytest.mark.parametrize("nworkers", [0, 4])
    @pytest.mark.parametrize("last_batch", LAST_BATCH)
    def test_table(self, last_batch, nworkers):
        for length, batch_size in product(LENGTHS, BATCH_SIZES):
            expected = reference(length, batch_size, last_batch, 3)
            loader = TurboDataLoader(
                range(length),
                batch_size,
                Items(),
                nworkers,
                last_batch=last_batch,
                start_method="fork",
            )
            with loader:
                for batches in expected:
                    assert len(loader) == len(batches)
                    assert run_epoch(loader) == batches

    @pytest.mark.parametrize("nworkers", [0, 4])
    def test_rollover(self, nworkers):
        expected = [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ]
        with TurboDataLoader(
            range(10), 4, Items(), nworkers, last_batch="rollover", start_method="fork"
        ) as loader:
            lengths = []
            for epoch in expected:
                lengths.append(len(loader))
                assert run_epoch(loader) == epoch
        assert lengths == [2, 3, 2]

    def test_shuffled(self):
        options = {"shuffle": True, "seed": 3, "start_method": "fork"}
        with TurboDataLoader(range(50), 7, Items(), 2, **options) as loader:
            passes = [run_items(loader) for _ in range(3)]
        assert all(sorted(order) == list(range(50)) for order in passes)
        assert len({tuple(order) for order in passes}) == 3
        assert tuple(range(50)) not in map(tuple, passes)

    def test_without_a_seed_each_loader_shuffles_differently(self):
        orders = []
        for _ in range(2):
            with TurboDataLoader(range(100), 100, Items(), 0, shuffle=True) as loader:
                orders += run_epoch(loader)
        assert orders[0] != orders[1]


class TestMiniBatches:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_short_last_batch_fills_them_in_order(self, nworkers):
        with TurboDataLoader(
            range(17), 12, Items(), nworkers, num_mini_batches=4, start_method="fork"
        ) as loader:
            batches = [[items([mb]) for mb in mini_batches] for _, mini_batches in loader]
        assert batches == [
            [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
            [[12, 13, 14], [15, 16]],
        ]

    def test_discard_always_gives_all_of_them(self):
        with TurboDataLoader(
            range(17), 6, Items(), 0, num_mini_batches=3, last_batch="discard"
        ) as loader:
            counts = [[len(mb["item"]) for mb in mini_batches] for _, mini_batches in loader]
        assert counts == [[2, 2, 2], [2, 2, 2]]

    @pytest.mark.parametrize("options", [{"shared_memory": 1}, {"prefetch": 1}])
    def test_more_than_there_are_buffers(self, options):
        with TurboDataLoader(
            range(32), 16, Items(), 1, num_mini_batches=8, start_method="fork", **options
        ) as loader:
            assert run_epoch(loader) == [list(range(16)), list(range(16, 32))]


class TestSizes:
    def test_more_workers_than_samples(self):
        with TurboDataLoader(
            range(3), 2, Items(), 8, shared_memory=16, start_method="fork"
        ) as loader:
            assert [run_epoch(loader) for _ in range(2)] == [[[0, 1], [2]]] * 2

    def test_one_buffer(self):
        with TurboDataLoader(
            range(100), 3, Items(), 2, shared_memory=1, start_method="fork"
        ) as loader:
            assert run_items(loader) == list(range(100))

    @pytest.mark.parametrize("shared_memory", [False, 0])
    def test_no_buffers(self, shared_memory):
        with TurboDataLoader(
            range(100), 7, Items(), 2, shared_memory=shared_memory, start_method="fork"
        ) as loader:
            assert run_epoch(loader) == reference(100, 7, "keep", 1)[0]

    @pytest.mark.parametrize("nworkers", [0, 2])
    @pytest.mark.parametrize("last_batch", LAST_BATCH)
    def test_no_samples(self, nworkers, last_batch):
        with TurboDataLoader(
            range(0), 4, Items(), nworkers, last_batch=last_batch, start_method="fork"
        ) as loader:
            started = time.monotonic()
            assert run_epoch(loader) == []
            assert run_epoch(loader) == []
            assert time.monotonic() - started < 1.0


class Naps:
    """Item 0 takes two seconds, the others 10 ms."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.01 if index else 2.0)
        return index


class Ready(Items):
    """Also says when its worker was up."""

    def __init__(self):
        super().__init__()
        self.add_buffer("ready", ((), np.float64))

    def setup(self):
        self.ready = time.monotonic()  # the same clock in all processes

    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        buffers["ready"][...] = self.ready


class TestUnevenSamples:
    @staticmethod
    def run(in_order):
        """Return the batches, and the seconds from the workers being up to each of them."""
        with TurboDataLoader(
            Naps(), 8, Ready(), 4, shared_memory=8, in_order=in_order, start_method="fork"
        ) as loader:
            received = [(time.monotonic(), mini_batches) for _, mini_batches in loader]
        ready = max(max(items(batch, "ready")) for _, batch in received)
        return [items(batch) for _, batch in received], [when - ready for when, _ in received]

    def test_in_order(self):
        batches, seconds = self.run(in_order=True)
        assert batches == [list(range(i, i + 8)) for i in range(0, 64, 8)]
        assert seconds[-1] < 2.8

    def test_out_of_order(self):
        batches, seconds = self.run(in_order=False)
        assert sorted(batches) == [list(range(i, i + 8)) for i in range(0, 64, 8)]
        assert batches[0][0] != 0
        assert seconds[0] < 0.3


class Recording:
    """Sampler that counts what was read of it."""

    def __init__(self, length):
        self.length = length
        self.read = 0

    def __len__(self):
        return self.length

    def __iter__(self):
        for index in range(self.length):
            self.read += 1
            yield index


class TestPrefetch:
    @pytest.mark.parametrize(
        ("options", "most"),
        [
            ({"prefetch": 1}, 1),
            ({"prefetch": 3}, 3),
            ({"prefetch": 9, "shared_memory": 4}, 4),
            ({"shared_memory": 5}, 5),
        ],
    )
    def test_bounds_what_is_requested_ahead(self, options, most):
        sampler = Recording(200)
        with TurboDataLoader(
            range(200), 4, Items(), 2, sampler=sampler, start_method="fork", **options
        ) as loader:
            for number, _ in enumerate(loader, 1):
                assert sampler.read <= 4 * (number + most)
        assert sampler.read == 200

    def test_works_ahead(self):
        with TurboDataLoader(
            range(100), 4, Items(), 2, shared_memory=6, start_method="fork"
        ) as loader:
            next(iter(loader))
            # One buffer is with the caller, whose place is requested by the next call.
            assert wait_until(lambda: loader.statistics().buffers_ready == 5)
