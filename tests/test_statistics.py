"""The figures of a loader, and what it takes for the bottleneck."""

from __future__ import annotations

import dataclasses
import inspect
import time

import pytest

from crumpets_like import Statistics, TurboDataLoader
from tests.support.loading import Items, run_epoch, wait_until


class Slow(Items):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def prepare(self, sample, batch, buffers):
        time.sleep(self.seconds)
        super().prepare(sample, batch, buffers)


class SlowOne(Items):
    """Sample 0 takes its time."""

    def prepare(self, sample, batch, buffers):
        time.sleep(0.3 * (sample == 0))
        super().prepare(sample, batch, buffers)


class Slowly:
    """An iterable or sampler that takes its time."""

    def __init__(self, length, seconds):
        self.length = length
        self.seconds = seconds

    def __iter__(self):
        for number in range(self.length):
            time.sleep(self.seconds)
            yield number


def measure(dataset, nworkers=2, *, worker=None, seconds=0.0, **options):
    """Return the figures after one epoch of a caller who works for some seconds per batch."""
    options = {"start_method": "fork", **options}
    with TurboDataLoader(dataset, 4, worker or Items(), nworkers, **options) as loader:
        for batch in loader:
            time.sleep(seconds)
            del batch
        return loader.statistics()


class TestFigures:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_after_an_epoch(self, nworkers):
        figures = measure(range(40), nworkers, worker=Slow(0.002), seconds=0.01)
        assert figures.samples == 40
        assert 0.1 <= figures.seconds_worked < 2.0
        assert 0.0 < figures.seconds_waited < 2.0
        iterating = figures.seconds_worked + figures.seconds_waited
        assert figures.samples_per_second == pytest.approx(40 / iterating)
        assert len(figures.worker_busy) == max(1, nworkers)
        assert all(0.0 <= share <= 1.0 for share in figures.worker_busy)
        assert sum(figures.worker_busy) > 0.0
        assert 1 <= figures.chunk_samples <= 40
        assert figures.buffers_held == 0

    def test_counts_mini_batches_and_epochs(self):
        with TurboDataLoader(range(10), 4, Items(), 0, num_mini_batches=2) as loader:
            for epoch in (1, 2):
                run_epoch(loader)
                assert loader.statistics().samples == 10 * epoch

    def test_is_of_the_last_start(self):
        loader = TurboDataLoader(range(10), 4, Items(), 0)
        for _ in range(2):
            with loader:
                run_epoch(loader)
                assert loader.statistics().samples == 10

    def test_buffers(self):
        with TurboDataLoader(
            range(400), 4, Items(), 2, shared_memory=6, start_method="fork"
        ) as loader:
            iterator = iter(loader)
            held = [next(iterator) for _ in range(3)]
            assert wait_until(lambda: loader.statistics().buffers_filling == 0)
            figures = loader.statistics()
            assert (figures.buffers_held, figures.buffers_ready) == (3, 5)
            held.clear()
            assert loader.statistics().buffers_held == 0

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_each_buffer_counts_once(self, nworkers):
        def total():
            figures = loader.statistics()
            held, free = figures.buffers_held, figures.buffers_free
            return held + free + figures.buffers_filling + figures.buffers_ready

        with TurboDataLoader(
            range(40), 4, Items(), nworkers, shared_memory=16, prefetch=2, start_method="fork"
        ) as loader:
            assert loader.statistics().buffers_free == 16
            iterator = iter(loader)
            held = [next(iterator) for _ in range(3)]
            assert wait_until(lambda: total() == 16)
            assert loader.statistics().buffers_held == 3
            held.clear()

    def test_is_frozen_and_each_field_is_documented(self):
        figures = measure(range(4), 0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            figures.samples = 0
        names = [field.name for field in dataclasses.fields(Statistics)]
        assert all(f"\n{name} : " in inspect.getdoc(Statistics) for name in names)


class TestBottleneck:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_caller(self, nworkers):
        assert measure(range(80), nworkers, seconds=0.02).bottleneck == "caller"

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_workers(self, nworkers):
        length = 40 * max(1, nworkers)
        figures = measure(range(length), nworkers, worker=Slow(0.015))
        assert figures.bottleneck == "workers"
        assert min(figures.worker_busy) > 0.5

    @pytest.mark.parametrize("length", [1, 4, 9])
    def test_workers_in_a_short_run(self, length):
        """Three of four workers have nothing to do, and buffers would not help."""
        figures = measure(range(length), 4, worker=SlowOne(), start_method="fork")
        assert max(figures.worker_busy) > 0.5
        assert sum(figures.worker_busy) < 2
        assert figures.bottleneck == "workers"

    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_the_start_of_workers_does_not_count(self, start_method):
        figures = measure(range(40), 1, worker=Slow(0.015), start_method=start_method)
        assert figures.bottleneck == "workers"

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_producer(self, nworkers):
        assert measure(Slowly(20, 0.015), nworkers).bottleneck == "producer"

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_producer_is_a_sampler(self, nworkers):
        sampler = Slowly(20, 0.015)
        assert measure(range(20), nworkers, sampler=sampler).bottleneck == "producer"

    @pytest.mark.parametrize("options", [{"shared_memory": 1}, {"prefetch": 1}])
    def test_buffers(self, options):
        # One mini-batch at a time keeps one of four workers busy, at most.
        assert measure(range(800), 4, worker=Slow(0.0005), **options).bottleneck == "buffers"
