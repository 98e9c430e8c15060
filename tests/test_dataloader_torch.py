"""The loader together with torch: its generators, samplers and datasets."""

from __future__ import annotations

import numpy as np
import pytest

from crumpets_like import TurboDataLoader
from tests.support.loading import Items, items, run_epoch, run_items

torch = pytest.importorskip("torch")
data = torch.utils.data

both = pytest.mark.parametrize("nworkers", [0, 2])


def fork(iterable, batch_size, nworkers, worker=None, **options):
    """Return a loader that starts quickly."""
    worker = worker or Items()
    return TurboDataLoader(iterable, batch_size, worker, nworkers, start_method="fork", **options)


class Noise(data.Dataset):
    """Draws from torch's global generator."""

    def __init__(self, length=11):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index, torch.rand(())


class Draws(Items):
    """Draws once more."""

    def __init__(self):
        super().__init__()
        self.add_buffer("drawn", ((2,), np.float32))

    def prepare(self, sample, batch, buffers):
        item, drawn = sample
        super().prepare(item, batch, buffers)
        buffers["drawn"][0] = drawn
        buffers["drawn"][1] = torch.rand(())


def draws(nworkers, dataset=None, batch_size=4, epochs=3, **options):
    """Return items and draws, one list for each epoch."""
    options = {"seed": 0, "shuffle": True, **options}
    seen = []
    with TurboDataLoader(dataset or Noise(), batch_size, Draws(), nworkers, **options) as loader:
        for _ in range(epochs):
            batches = [mini_batch for _, (mini_batch,) in loader]
            drawn = [row.tobytes() for batch in batches for row in batch["drawn"]]
            seen.append(list(zip(items(batches), drawn, strict=True)))
    return seen


def values(epochs):
    """Return every number that was drawn."""
    return {x for epoch in epochs for _, drawn in epoch for x in np.frombuffer(drawn, np.float32)}


class TestGlobalGenerator:
    @pytest.mark.parametrize(
        ("start_method", "runs"),
        [("fork", [(1, 11), (2, 1), (4, 4)]), ("forkserver", [(3, 2)]), ("spawn", [(2, 4)])],
    )
    def test_the_same_everywhere(self, start_method, runs):
        expected = draws(0, seed_globals=True)
        assert len(values(expected)) == 2 * 3 * 11
        for nworkers, batch_size in runs:
            options = {"seed_globals": True, "start_method": start_method}
            assert draws(nworkers, batch_size=batch_size, **options) == expected

    def test_workers_differ_without_it(self):
        assert len(values(draws(4, Noise(64), 8, 1, start_method="fork"))) == 2 * 64

    @pytest.mark.parametrize(("nworkers", "seed_globals"), [(0, True), (2, True), (2, False)])
    def test_that_of_the_caller_is_untouched(self, nworkers, seed_globals):
        torch.manual_seed(7)
        before = torch.get_rng_state()
        draws(nworkers, seed_globals=seed_globals, start_method="fork")
        assert torch.equal(torch.get_rng_state(), before)


class TestSamplers:
    @both
    def test_random_sampler(self, nworkers):
        torch.manual_seed(3)
        sampler = data.RandomSampler(range(10))
        expected = [list(sampler) for _ in range(2)]
        torch.manual_seed(3)
        with fork(range(10), 4, nworkers, sampler=sampler) as loader:
            assert len(loader) == 3
            assert [run_items(loader) for _ in range(2)] == expected

    @both
    def test_weighted_random_sampler(self, nworkers):
        sampler = data.WeightedRandomSampler([0.0, 1.0, 1.0], 7)
        with fork(range(3), 4, nworkers, sampler=sampler) as loader:
            assert loader.length == 7
            drawn = run_items(loader)
        assert len(drawn) == 7
        assert 0 not in drawn

    @both
    def test_distributed_sampler(self, nworkers):
        sampler = data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=5)
        reference = data.DistributedSampler(range(10), num_replicas=2, rank=1, seed=5)
        with fork(range(10), 3, nworkers, sampler=sampler) as loader:
            for epoch in range(3):
                reference.set_epoch(epoch)
                assert run_items(loader) == list(reference)

    @both
    @pytest.mark.parametrize("drop_last", [False, True])
    def test_batch_sampler(self, nworkers, drop_last):
        sampler = data.BatchSampler(data.SequentialSampler(range(10)), 4, drop_last)
        with fork(range(10), 4, nworkers, batch_sampler=sampler) as loader:
            assert len(loader) == len(sampler)
            assert [run_epoch(loader) for _ in range(2)] == [list(sampler)] * 2

    @both
    def test_indices_that_are_tensors(self, nworkers):
        with fork(range(10), 4, nworkers, sampler=torch.tensor([3, 1, 9])) as loader:
            assert run_epoch(loader) == [[3, 1, 9]]
        lists = [torch.tensor([3, 1]), torch.tensor([0])]
        with fork(range(10), 4, nworkers, batch_sampler=lists) as loader:
            assert run_epoch(loader) == [[3, 1], [0]]


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(5))


class Labels(Items):
    """Takes the label of a sample (image, label)."""

    def prepare(self, sample, batch, buffers):
        assert sample[0].shape == (2,)
        super().prepare(sample[1], batch, buffers)


class TestDatasets:
    @both
    def test_iterable_dataset(self, nworkers):
        with fork(Stream(), 2, nworkers) as loader:
            for _ in range(2):
                assert run_epoch(loader) == [[0, 1], [2, 3], [4]]

    @both
    def test_subset_of_a_tensor_dataset(self, nworkers):
        dataset = data.TensorDataset(torch.zeros(10, 2), torch.arange(10))
        subset = data.Subset(dataset, [8, 6, 4])
        assert hasattr(subset, "__getitems__")  # read in one call
        with fork(subset, 2, nworkers, Labels()) as loader:
            assert run_epoch(loader) == [[8, 6], [4]]

    @both
    def test_a_tensor(self, nworkers):
        with fork(torch.arange(5, 10), 2, nworkers) as loader:
            assert run_epoch(loader) == [[5, 6], [7, 8], [9]]
