"""Epochs: how many iterations each has, where it begins, what carries over, what is told of it."""

from __future__ import annotations

import os
import time
from unittest.mock import MagicMock

import numpy as np
import pytest

from crumpets_like import LoaderClosed, TurboDataLoader, Worker
from tests.support.loading import Items, items, run_epoch, run_items, wait_until


def fork(iterable, batch_size, nworkers=2, worker=None, **options):
    """Return a loader that starts quickly."""
    worker = worker or Items()
    return TurboDataLoader(iterable, batch_size, worker, nworkers, start_method="fork", **options)


class TestIteration:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_counts_on_over_epochs_and_breaks(self, nworkers):
        with fork(range(10), 4, nworkers, start_iteration=100) as loader:
            assert loader.iterations == 100
            assert [iteration for iteration, _ in loader] == [100, 101, 102]
            for iteration, mini_batches in loader:
                assert (iteration, items(mini_batches)) == (103, [0, 1, 2, 3])
                break
            assert loader.iterations == 104
            assert [iteration for iteration, _ in loader] == [104, 105, 106]
        assert loader.iterations == 107

    def test_start_iteration_leaves_the_data(self):
        options = {"shuffle": True, "seed": 1}
        epochs = []
        for start_iteration in (0, 1234):
            with fork(range(10), 4, 0, start_iteration=start_iteration, **options) as loader:
                epochs.append([run_epoch(loader) for _ in range(2)])
        assert epochs[0] == epochs[1]

    def test_counts_on_after_a_restart(self):
        loader = fork(range(4), 4, 0)
        for expected in (0, 1):
            with loader:
                assert [iteration for iteration, _ in loader] == [expected]


class TestLength:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_epochs_are_cut_from_the_chain_of_passes(self, nworkers):
        with fork(range(10), 2, nworkers, length=6) as loader:
            assert len(loader) == 3
            assert run_epoch(loader) == [[0, 1], [2, 3], [4, 5]]
            assert run_epoch(loader) == [[6, 7], [8, 9], [0, 1]]

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_batches_are_full(self, nworkers):
        with fork(range(10), 4, nworkers, length=6, last_batch="discard") as loader:
            assert (len(loader), loader.length) == (2, 6)
            assert run_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
            assert run_epoch(loader) == [[8, 9, 0, 1], [2, 3, 4, 5]]

    def test_of_one_pass_is_the_default(self):
        with fork(range(10), 4, 0, length=10) as loader:
            assert run_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            assert run_epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_set_length_acts_at_the_next_for(self, nworkers):
        with fork(range(10), 2, nworkers) as loader:
            seen = []
            for _, mini_batches in loader:
                loader.set_length(6)
                assert (len(loader), loader.epoch_iterations) == (5, 5)
                seen.append(items(mini_batches))
            assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
            assert (len(loader), loader.length) == (3, 6)
            assert run_epoch(loader) == [[0, 1], [2, 3], [4, 5]]
            assert run_epoch(loader) == [[6, 7], [8, 9], [0, 1]]

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_set_epoch_iterations_leaves_the_length(self, nworkers):
        with fork(range(10), 4, nworkers) as loader:
            loader.set_epoch_iterations(4)
            assert (len(loader), loader.epoch_iterations, loader.length) == (4, 4, 10)
            batches = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1], [2, 3, 4, 5]]
            assert run_epoch(loader) == batches
            loader.set_epoch_iterations(1)
            assert len(loader) == 1
            assert run_epoch(loader) == [[6, 7, 8, 9]]

    @pytest.mark.parametrize("change", ["set_length", "set_epoch_iterations"])
    def test_changes_often_and_at_any_time(self, change):
        # Whatever was requested of an epoch that is taken back must not stay counted.
        with fork(range(40), 4, shared_memory=4, timeout=10) as loader:
            for number in range(30):
                for _, mini_batches in loader:
                    assert len(items(mini_batches)) == 4
                    getattr(loader, change)(40 if change == "set_length" else 10)
                assert loader.iterations == 10 * (number + 1)
            statistics = loader.statistics()
        assert statistics.buffers_filling + statistics.buffers_ready <= 4

    @pytest.mark.parametrize("method", ["set_length", "set_epoch_iterations"])
    @pytest.mark.parametrize(
        ("value", "kind"), [(0, ValueError), (-1, ValueError), (2.5, TypeError), ("4", TypeError)]
    )
    def test_needs_an_integer_of_at_least_one(self, method, value, kind):
        loader = fork(range(10), 4)
        with pytest.raises(kind, match=f"{method[4:]} .*{value}"):
            getattr(loader, method)(value)
        assert (len(loader), loader.length) == (3, 10)

    @pytest.mark.parametrize("method", ["set_length", "set_epoch_iterations"])
    def test_a_refused_change_costs_nothing(self, method):
        with fork(range(10), 4) as loader:
            run_epoch(loader)
            ahead = loader._upcoming
            assert ahead is not None
            with pytest.raises(ValueError, match="at least 1"):
                getattr(loader, method)(0)
            assert loader._upcoming is ahead

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [("set_length", (8,)), ("set_epoch_iterations", (2,)), ("update_dataset", ())],
    )
    def test_no_epoch_is_begun_during_a_change(self, method, arguments, monkeypatch):
        loader = fork(range(10), 4)
        monkeypatch.setattr(loader, "_lock", MagicMock())
        getattr(loader, method)(*arguments)
        loader._lock.__enter__.assert_called_once()

    def test_facts(self):
        loader = fork(range(10), 4, 3, num_mini_batches=2, start_iteration=5)
        facts = {
            "iterations": 5,
            "epoch_iterations": 3,
            "length": 10,
            "batch_size": 4,
            "mini_batch_size": 2,
            "num_mini_batches": 2,
            "nworkers": 3,
        }
        assert {name: getattr(loader, name) for name in facts} == facts
        for name in facts:
            with pytest.raises(AttributeError):
                setattr(loader, name, 1)

    def test_after_a_stop_is_that_of_the_next_epoch(self):
        loader = fork(range(10), 4, 0, last_batch="rollover")
        with loader:
            next(iter(loader))
            assert len(loader) == 2
        assert len(loader) == 3


class TestBreak:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_a_new_epoch_starts_at_its_first_batch(self, nworkers):
        with fork(range(100), 4, nworkers) as loader:
            for stop in (1, 3, 24, 25):
                for count, (_, mini_batches) in enumerate(loader, 1):
                    assert items(mini_batches) == list(range(4 * count - 4, 4 * count))
                    if count == stop:
                        break
            assert run_items(loader) == list(range(100))

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_the_older_iterator_raises(self, nworkers):
        with fork(range(100), 4, nworkers) as loader:
            older = iter(loader)
            next(older)
            newer = iter(loader)
            with pytest.raises(LoaderClosed, match="newer"):
                next(older)
            assert items(next(newer)[1]) == [0, 1, 2, 3]

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_an_ended_iterator_stays_ended(self, nworkers):
        with fork(range(4), 4, nworkers) as loader:
            iterator = iter(loader)
            assert len(list(iterator)) == 1
            assert list(iterator) == []
            assert len(run_epoch(loader)) == 1
            assert list(iterator) == []

    def test_advances_the_order(self):
        options = {"shuffle": True, "seed": 5}
        with fork(range(100), 10, 2, **options) as loader:
            complete = [run_epoch(loader) for _ in range(4)]
        with fork(range(100), 10, 2, **options) as loader:
            for epoch in (0, 1, 2):
                for _, mini_batches in loader:
                    assert items(mini_batches) == complete[epoch][0]
                    break
            assert run_epoch(loader) == complete[3]


class TestOutside:
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_needs_with_or_start(self, nworkers):
        loader = fork(range(4), 2, nworkers)
        with pytest.raises(LoaderClosed, match="with loader"):
            iter(loader)
        with loader:
            iterator = iter(loader)
            next(iterator)
        with pytest.raises(LoaderClosed, match="stopped"):
            next(iterator)
        with pytest.raises(LoaderClosed, match="with loader"):
            iter(loader)
        with pytest.raises(LoaderClosed, match="started"):
            loader.statistics()

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_start_and_stop_may_be_repeated(self, nworkers):
        loader = fork(range(4), 2, nworkers)
        loader.stop()
        assert loader.start() is loader
        loader.start()
        assert run_epoch(loader) == [[0, 1], [2, 3]]
        loader.stop()
        loader.stop()
        with loader:
            assert run_epoch(loader) == [[0, 1], [2, 3]]

    def test_stops_after_an_error_of_the_body(self):
        loader = fork(range(4), 2, 1)

        def body():
            with loader:
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            body()
        with pytest.raises(LoaderClosed):
            iter(loader)


class Identity(Items):
    """Is slow to set up, and tells who it is and how often it was set up."""

    def __init__(self):
        super().__init__()
        self.setups = 0
        for key in ("pid", "setups"):
            self.add_buffer(key, ((), np.int64))

    def setup(self):
        time.sleep(1.0)
        self.setups += 1

    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        buffers["pid"][...] = os.getpid()
        buffers["setups"][...] = self.setups


class TestManyEpochs:
    def test_workers_stay_without_a_pause(self):
        pids, setups, ended = set(), set(), []
        with fork(range(64), 4, 2, Identity()) as loader:
            for _ in range(20):
                for _, mini_batches in loader:
                    pids.update(items(mini_batches, "pid"))
                    setups.update(items(mini_batches, "setups"))
                ended.append(time.monotonic())
        assert len(pids) <= 2
        assert os.getpid() not in pids
        assert setups == {1}
        assert ended[-1] - ended[0] < 1.0  # one more set-up would take as long

    def test_the_next_epoch_is_prefetched(self):
        with fork(range(16), 4, shared_memory=4) as loader:
            run_epoch(loader)
            assert wait_until(lambda: loader.statistics().buffers_ready == 4)
            assert run_epoch(loader)[0] == [0, 1, 2, 3]


class Epochs:
    """A dataset whose items are the epoch that it was told."""

    epoch = -1

    def __init__(self, length=60):
        self.length = length

    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        time.sleep(0.001 * (index % 3))
        return self.epoch


class Told(Items):
    """Tells the epoch that `start_epoch` gave it, and its own attribute."""

    def __init__(self):
        super().__init__()
        for key in ("told", "epoch"):
            self.add_buffer(key, ((), np.int64))
        self.told = -1

    def start_epoch(self, epoch):
        assert self.epoch == epoch
        self.told = epoch

    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        buffers["told"][...] = self.told
        buffers["epoch"][...] = self.epoch


class TestEpochNumber:
    @pytest.mark.parametrize(
        ("nworkers", "start_method"),
        [(0, "fork"), (4, "fork"), (2, "forkserver"), (2, "spawn"), (4, "thread")],
    )
    def test_reaches_the_dataset_and_the_worker(self, nworkers, start_method):
        dataset, worker = Epochs(), Told()
        with TurboDataLoader(dataset, 3, worker, nworkers, start_method=start_method) as loader:
            for epoch in range(6):
                for count, (_, mini_batches) in enumerate(loader, 1):
                    for key in ("item", "told", "epoch"):
                        assert items(mini_batches, key) == [epoch] * 3
                    if epoch in (3, 4) and count == 5 * epoch:
                        break
        if nworkers and start_method != "thread":
            assert dataset.epoch == -1
        assert (worker.told, worker.epoch, worker.worker_id) == (-1, 0, -1)

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_free_form(self, nworkers):
        with fork(range(8), 4, nworkers, FreeForm()) as loader:
            for epoch in range(3):
                assert run_epoch(loader, "epoch") == [[epoch] * 4] * 2


class FreeForm(Worker):
    def process(self, sample):
        return {"epoch": self.epoch}
