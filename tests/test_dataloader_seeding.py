"""What a sample draws at random depends on the seed, the epoch and the sample alone."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from crumpets_like import TurboDataLoader, Worker
from tests.support.loading import START_METHODS, Items, items, run_epoch, run_items


class Draws(Items):
    """Draws two numbers for each sample."""

    def __init__(self):
        super().__init__()
        self.add_buffer("drawn", ((), np.float64))
        self.add_buffer("size", ((), np.int64))

    def prepare(self, sample, batch, buffers):
        super().prepare(sample, batch, buffers)
        self.rng.integers(10, dtype=np.uint32)  # leaves half a word behind
        buffers["drawn"][...] = self.rng.random()


class BulkDraws(Draws):
    """The same, a chunk of samples at once; also tells the size of the chunk."""

    def prepare_batch(self, samples, batch, buffers):
        assert self.indices.tolist() == list(samples)
        with pytest.raises(RuntimeError, match="rngs"):
            self.rng  # noqa: B018
        buffers["item"][...] = samples
        buffers["size"][...] = len(samples)
        for row, rng in enumerate(self.rngs):
            rng.integers(10, dtype=np.uint32)
            buffers["drawn"][row] = rng.random()


class FreeDraws(Worker):
    """The same, free-form."""

    def process(self, sample):
        self.rng.integers(10, dtype=np.uint32)
        return {"item": sample, "drawn": self.rng.random(), "size": 1}


class Slow:
    """Every third item takes 4 ms, so that mini-batches are split over the workers."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.004 * (index % 3 == 0))
        return index


def draws(worker, nworkers, dataset=range(11), batch_size=4, epochs=3, **options):
    """Return the items and what they drew, one list for each epoch, and the sizes of chunks."""
    options = {"seed": 0, "shuffle": True, **options}
    seen, sizes = [], set()
    with TurboDataLoader(dataset, batch_size, worker, nworkers, **options) as loader:
        for _ in range(epochs):
            batches = [batch for _, batch in loader]
            mini_batches = [mini_batch for batch in batches for mini_batch in batch]
            columns = [items(mini_batches, key) for key in ("item", "drawn", "size")]
            seen.append(list(zip(*columns[:2], strict=True)))
            sizes.update(columns[2])
    return seen, sizes


@pytest.fixture(scope="module")
def expected():
    """Three epochs, made in this thread."""
    return draws(Draws(), 0)[0]


class TestSampleGenerators:
    @pytest.mark.parametrize("nworkers", [1, 2, 3, 4])
    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_the_same_everywhere(self, expected, start_method, nworkers):
        # Two runs of each configuration, with chunks of other sizes in the second.
        assert draws(Draws(), nworkers, start_method=start_method)[0] == expected
        batch_size = (1, 3, 8, 11)[nworkers - 1]
        bulk = draws(BulkDraws(), nworkers, batch_size=batch_size, start_method=start_method)
        assert bulk[0] == expected

    @pytest.mark.parametrize("worker", [Draws, BulkDraws, FreeDraws])
    def test_the_same_without_workers(self, expected, worker):
        for batch_size in (1, 5, 16):
            assert draws(worker(), 0, batch_size=batch_size)[0] == expected

    def test_the_same_for_every_size_of_chunk(self, expected):
        sizes = set()
        for nworkers, batch_size, mini_batches in [(1, 4, 2), (2, 11, 1), (3, 6, 3), (4, 16, 1)]:
            for worker in (BulkDraws(), FreeDraws()):
                seen, chunks = draws(
                    worker,
                    nworkers,
                    Slow(11),
                    batch_size,
                    num_mini_batches=mini_batches,
                    start_method="fork",
                )
                assert seen == expected
                sizes |= chunks
        assert len(sizes) > 2

    def test_do_not_depend_on_what_runs_before(self, expected):
        options = {"seed": 0, "shuffle": True, "start_method": "fork"}
        with TurboDataLoader(range(11), 4, Draws(), 2, **options) as loader:
            for _ in loader:
                break
            next(iter(loader))
            drawn = run_items(loader, "drawn")
        assert drawn == [value for _, value in expected[2]]

    def test_epochs_and_seeds_differ(self, expected):
        other = draws(Draws(), 0, seed=1)[0]
        values = {value for epoch in expected + other for _, value in epoch}
        assert len(values) == 6 * 11

    def test_seeds_of_any_size(self):
        seen = [draws(Draws(), n, seed=2**70, start_method="fork")[0] for n in (0, 2)]
        assert seen[0] == seen[1]

    def test_without_a_seed_every_run_differs(self):
        runs = [draws(Draws(), 0, seed=None)[0] for _ in range(2)]
        values = {value for run in runs for epoch in run for _, value in epoch}
        assert len(values) == 6 * 11

    @pytest.mark.parametrize("worker", [Draws, BulkDraws, FreeDraws])
    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_64_samples_draw_64_values(self, worker, nworkers):
        (epoch,), _ = draws(worker(), nworkers, range(64), 8, epochs=1, start_method="fork")
        assert len({value for _, value in epoch}) == 64

    def test_samples_of_an_iterable(self):
        options = {"shuffle": False, "length": 12, "start_method": "fork"}
        runs = [draws(Draws(), n, iter(range(24)), 4, 2, **options)[0] for n in (0, 3)]
        assert runs[0] == runs[1]
        assert len({value for epoch in runs[0] for _, value in epoch}) == 24


class GlobalDraws(Items):
    """Draws from the global generators, in the dataset and in the worker."""

    def __init__(self):
        super().__init__()
        self.add_buffer("drawn", ((3,), np.float64))

    def prepare(self, sample, batch, buffers):
        item, drawn = sample
        super().prepare(item, batch, buffers)
        buffers["drawn"][...] = drawn, random.random(), np.random.random()


class GlobalFreeDraws(Worker):
    def process(self, sample):
        return {"item": sample[0], "drawn": np.array([sample[1], random.random()])}


class BulkGlobalDraws(GlobalDraws):
    def prepare_batch(self, samples, batch, buffers):
        buffers["item"][...] = [item for item, _ in samples]
        buffers["drawn"][:, 0] = [drawn for _, drawn in samples]
        buffers["drawn"][:, 1] = [random.random() for _ in samples]
        buffers["drawn"][:, 2] = np.random.random(len(samples))


class CollatesGlobalDraws(GlobalFreeDraws):
    def collate(self, results):
        joined = super().collate(results)
        joined["drawn"] = joined["drawn"] + random.random()
        return joined


class Noise:
    """A dataset that augments its items by itself, in bulk, too."""

    def __init__(self, length=11):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, random.random()

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def global_draws(nworkers, worker=None, dataset=None, batch_size=4, epochs=3, **options):
    """Return items and draws as bytes, one list for each epoch."""
    options = {"seed": 0, "seed_globals": True, "shuffle": True, **options}
    seen = []
    worker = worker or GlobalDraws()
    with TurboDataLoader(dataset or Noise(), batch_size, worker, nworkers, **options) as loader:
        for _ in range(epochs):
            seen.append(
                [
                    (int(item), drawn.tobytes())
                    for _, mini_batches in loader
                    for mini_batch in mini_batches
                    for item, drawn in zip(mini_batch["item"], mini_batch["drawn"], strict=True)
                ]
            )
    return seen


def all_draws(epochs):
    """Return every number that was drawn."""
    return np.concatenate([np.frombuffer(drawn) for epoch in epochs for _, drawn in epoch])


class TestGlobalGenerators:
    @pytest.mark.slow
    @pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
    def test_the_same_everywhere(self, start_method):
        expected = global_draws(0)
        assert len(set(all_draws(expected))) == 3 * 3 * 11
        for nworkers, batch_size in ((1, 4), (2, 3), (3, 11), (4, 1)):
            seen = global_draws(nworkers, batch_size=batch_size, start_method=start_method)
            assert seen == expected

    @pytest.mark.parametrize("worker", [BulkGlobalDraws, CollatesGlobalDraws])
    def test_the_same_for_every_size_of_chunk(self, worker):
        expected = global_draws(0, worker())
        for nworkers in (1, 3):
            assert global_draws(nworkers, worker(), start_method="fork") == expected
        assert len(set(all_draws(expected))) >= 3 * 11

    def test_free_form(self):
        runs = [
            global_draws(nworkers, GlobalFreeDraws(), start_method="fork") for nworkers in (0, 1, 3)
        ]
        assert runs[0] == runs[1] == runs[2]
        assert len(set(all_draws(runs[0]))) == 2 * 3 * 11

    @pytest.mark.parametrize("nworkers", [0, 1])
    @pytest.mark.parametrize("seed_globals", [True, False])
    def test_64_samples_draw_64_values(self, nworkers, seed_globals):
        epochs = global_draws(
            nworkers,
            dataset=Noise(64),
            batch_size=8,
            epochs=1,
            seed_globals=seed_globals,
            start_method="fork",
        )
        assert len(set(all_draws(epochs))) == 3 * 64

    @pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
    def test_workers_differ_without_it(self, start_method):
        # Each of four workers makes one item of each mini-batch.
        epochs = global_draws(
            4,
            dataset=SlowNoise(64),
            batch_size=4,
            epochs=1,
            seed_globals=False,
            start_method=start_method,
        )
        assert len(set(all_draws(epochs))) == 3 * 64

    @pytest.mark.parametrize(("nworkers", "seed_globals"), [(0, True), (2, True), (2, False)])
    def test_the_callers_generators_are_untouched(self, nworkers, seed_globals):
        random.seed(5)
        np.random.seed(6)
        python, legacy = random.getstate(), np.random.get_state()
        options = {"seed_globals": seed_globals, "start_method": "fork"}
        with TurboDataLoader(Noise(), 4, GlobalDraws(), nworkers, **options) as loader:
            run_epoch(loader)
            run_epoch(loader)
        assert random.getstate() == python
        assert all(map(np.array_equal, np.random.get_state(), legacy))

    def test_not_with_threads(self):
        options = {"seed_globals": True, "start_method": "thread"}
        with pytest.raises(ValueError, match=r"seed_globals=True .* start_method"):
            TurboDataLoader(range(11), 4, Draws(), 1, **options)
        with TurboDataLoader(range(11), 4, Draws(), 0, **options) as loader:
            assert len(run_epoch(loader)) == 3


class SlowNoise(Noise):
    __getitems__ = None

    def __getitem__(self, index):
        time.sleep(0.005)
        return super().__getitem__(index)
