"""The drop-in loader: what it does beyond giving torch's batches, and when."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from crumpets_like import LoaderClosed, SharedList  # noqa: E402
from crumpets_like.torch import DataLoader  # noqa: E402
from tests.support.dropin import Made, Numbers, forked, kill_once, loads, values  # noqa: E402
from tests.support.loading import wait_until  # noqa: E402
from tests.support.matrix import PROCESSES  # noqa: E402
from tests.support.processes import named  # noqa: E402


@pytest.fixture
def load(request):
    return loads(request)


class Epochs(Made):
    """Tells an attribute that the caller changes, and how often this copy was read."""

    epoch = -1
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return self.epoch, self.reads, os.getpid()

    def set_epoch(self, epoch):
        raise AssertionError("torch would not call it")


class Names(Made):
    """Names in shared memory, which the caller may exchange."""

    def __init__(self):
        super().__init__()
        self.names = SharedList("abcdefghij")

    def __getitem__(self, index):
        return self.names[index]


def draw(index):
    return index + torch.rand(()) / 2


def pid(index):
    return os.getpid()


class TestState:
    def test_every_iter_shows_the_current_state(self, load):
        dataset = Epochs(length=4)
        loader = load(dataset, batch_size=2)
        pids = set()
        for dataset.epoch in range(3):
            batches = list(loader)
            assert {int(x) for epochs, _, _ in batches for x in epochs} == {dataset.epoch}
            assert 1 in [int(x) for _, reads, _ in batches for x in reads]
            assert max(int(x) for _, reads, _ in batches for x in reads) <= 4
            pids |= {int(x) for _, _, own in batches for x in own}
        assert len(pids) <= 2
        assert dataset.reads == 0

    def test_a_copy_is_fresh_though_nothing_has_changed(self, load):
        loader = load(Epochs(length=4), 1, batch_size=4)
        assert [[batch[1].tolist() for batch in loader] for _ in range(2)] == 2 * [[[1, 2, 3, 4]]]

    def test_persistent_workers_keep_their_copies(self, load):
        dataset = Epochs(length=4)
        loader = load(dataset, 1, batch_size=4, persistent_workers=True)
        for dataset.epoch in range(3):
            (batch,) = loader
            assert batch[0].tolist() == [0] * 4
            first = 1 + 4 * dataset.epoch
            assert batch[1].tolist() == list(range(first, first + 4))

    def test_iterators_keep_the_state_they_began_with(self, load):
        dataset = Epochs(length=8)
        loader = load(dataset, 1, batch_size=1)
        iterators = []
        for dataset.epoch in range(3):
            iterators.append(iter(loader))
        for _ in range(8):
            assert [int(next(iterator)[0]) for iterator in iterators] == [0, 1, 2]

    def test_functions_are_taken_as_they_are(self, load):
        class Scale:
            factor = 1

            def __call__(self, samples):
                return torch.tensor(samples) * self.factor

        scale = Scale()
        loader = load(Made(), collate_fn=scale, batch_size=10)
        for scale.factor in (2, 3):
            assert values(loader) == [scale.factor * i for i in range(10)]

    def test_descriptors_come_along(self, load):
        dataset = Names()
        loader = load(dataset, batch_size=10)
        assert next(iter(loader)) == list("abcdefghij")
        dataset.names = SharedList("klmnopqrst")
        assert next(iter(loader)) == list("klmnopqrst")

    def test_large_arrays_and_tensors(self, load):
        dataset = Made()
        dataset.array, dataset.tensor = np.zeros(100_000), torch.zeros(100_000)
        dataset.make = lambda index: (dataset.array[index], dataset.tensor[index])
        loader = load(dataset, batch_size=10)
        for number in range(3):
            dataset.array[:] = number
            dataset.tensor[:] = number
            (batch,) = loader
            assert [column.tolist() for column in batch] == 2 * [[number] * 10]

    def test_a_worker_that_replaces_another_has_it_too(self, load, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        dataset = Made(kill_once)
        loader = load(dataset, batch_size=2)
        assert values(loader) == list(range(10))
        dataset.length = 8
        os.mkdir("alive")
        assert values(loader) == list(range(8))

    def test_workers_are_started_anew_where_descriptors_cannot_be_opened(self, load, monkeypatch):
        monkeypatch.setattr("crumpets_like.torch.pool.reachable", lambda: False)
        dataset = Epochs(length=4)
        loader = load(dataset, batch_size=4)
        dataset.epoch = 0
        old = iter(loader)
        dataset.epoch = 1
        (batch,) = loader
        assert batch[0].tolist() == [1] * 4
        assert next(old)[0].tolist() == [0] * 4


class TestIterators:
    @pytest.mark.parametrize("persistent", [False, True])
    def test_are_independent(self, load, persistent):
        loader = load(Made(), batch_size=2, persistent_workers=persistent)
        first, second, third, fourth = (iter(loader) for _ in range(4))
        assert [int(next(it)[0]) for it in (first, first, second, third)] == [0, 2, 0, 0]
        del third
        assert [batch.tolist() for batch in second] == [[2, 3], [4, 5], [6, 7], [8, 9]]
        assert [int(batch[0]) for batch in first] == [4, 6, 8]
        assert [int(batch[0]) for batch in fourth] == [0, 2, 4, 6, 8]

    def test_streams_are_independent(self, load):
        loader = load(Numbers(), batch_size=2)
        first, second = iter(loader), iter(loader)
        assert next(first).tolist() == [0, 2]
        assert next(second).tolist() == [0, 2]
        assert next(first).tolist() == [1, 3]
        assert len(list(first)) == len(list(second)) - 1 == 4

    def test_draws_do_not_depend_on_each_other(self, load):
        loader = load(Made(draw), 1, batch_size=2)

        def passes():
            torch.manual_seed(1)
            return iter(loader), iter(loader)

        one, other = passes()
        expected = [batch.tolist() for batch in one], [batch.tolist() for batch in other]
        pairs = list(zip(*passes(), strict=True))
        assert [a.tolist() for a, _ in pairs] == expected[0]
        assert [b.tolist() for _, b in pairs] == expected[1]

    def test_an_iterator_outlives_its_loader(self, load):
        assert [int(batch[0]) for batch in forked(Made(), batch_size=5)] == [0, 5]

    def test_read_ahead_as_torch(self, load):
        asked = []

        class Sampler:
            def __iter__(self):
                for index in range(10):
                    asked.append(index)
                    yield index

        loader = load(Made(), sampler=Sampler(), prefetch_factor=3)
        iterator = iter(loader)
        assert len(asked) == 6
        next(iterator)
        assert len(asked) == 7

    def test_batches_stay_valid(self, load):
        loader = load(Made(lambda i: torch.full((5000,), i)), batch_size=2)
        kept = [batch[:, :3] for _ in range(5) for batch in loader]
        loader.close()
        expected = [[2 * (k % 5)] * 3 for k in range(25)]
        assert [batch[0].tolist() for batch in kept] == expected

    def test_batches_can_be_written_to(self, load):
        for batch in load(Made(lambda i: torch.zeros(3000)), batch_size=2):
            batch += 1
            assert float(batch.sum()) == 6000

    def test_in_order_or_not(self, load):
        loader = load(Made(length=40), batch_size=4, in_order=False)
        assert sorted(values(loader)) == list(range(40))
        loader = load(Numbers(), batch_size=4, in_order=False)
        assert sorted(values(loader)) == list(range(12))

    def test_without_samples(self, load):
        assert list(load(Made(length=0))) == []
        assert list(load(Made(length=3), batch_size=4, drop_last=True)) == []

    def test_a_sampler_that_raises(self, load):
        def sampler():
            yield 3
            raise KeyError("no more")

        iterator = iter(load(Made(), sampler=sampler()))
        assert next(iterator).tolist() == [3]
        with pytest.raises(KeyError, match="no more"):
            next(iterator)


class TestLife:
    def test_workers_live_on(self, load):
        loader = load(Made(pid, 20), batch_size=1)
        assert len({*values(loader), *values(loader), *values(loader)}) <= 2

    def test_close(self, load):
        loader = load(Made())
        iterator = iter(loader)
        assert wait_until(lambda: bool(named("crumpets-")))
        loader.close()
        assert not named("crumpets-")
        with pytest.raises(LoaderClosed):
            next(iterator)
        assert values(loader) == list(range(10))
        loader.close()
        loader.close()

    def test_collection(self):
        loader = forked(Made())
        iterator = iter(loader)
        next(iterator)
        del loader, iterator
        gc.collect()
        assert not named("crumpets-")

    def test_nothing_starts_before_the_first_iter(self, load):
        loader = load(Made())
        assert len(loader) == 10
        assert not named("crumpets-")

    @pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
    def test_a_copy_has_workers_of_its_own(self, load, copied):
        loader = load(Made(pid), 1)
        (mine,) = set(values(loader))
        other = copied(loader)
        assert mine not in values(other)
        other.close()
        assert set(values(loader)) == {mine}

    def test_pickles(self, load):
        loader = DataLoader(Made(), batch_size=5)
        assert values(pickle.loads(pickle.dumps(loader))) == values(loader)

    def test_in_a_forked_child(self, load):
        loader = load(Made(), batch_size=5)
        assert values(loader) == list(range(10))

        def check(connection):
            connection.send(values(loader))
            loader.close()

        mine, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=check, args=(theirs,))
        child.start()
        assert mine.recv() == list(range(10))
        child.join()
        assert child.exitcode == 0
        assert values(loader) == list(range(10))
        mine.close()
        theirs.close()
        child.close()

    @pytest.mark.parametrize("start_method", PROCESSES)
    def test_contexts(self, start_method):
        context = multiprocessing.get_context(start_method)
        loader = DataLoader(Made(draw), 5, num_workers=2, multiprocessing_context=context)
        assert [int(value) for value in values(loader)] == list(range(10))
        loader.close()


class TestSeedGlobals:
    def test_draws_do_not_depend_on_the_workers(self):
        def draws(num_workers):
            torch.manual_seed(4)
            options = {"multiprocessing_context": "fork"} if num_workers else {}
            loader = DataLoader(
                Made(lambda i: (torch.rand(()), np.random.rand())),
                3,
                num_workers=num_workers,
                seed_globals=True,
                **options,
            )
            seen = [
                tuple(value.item() for value in sample)
                for _ in range(2)
                for batch in loader
                for sample in zip(*batch, strict=True)
            ]
            loader.close()
            return seen, torch.rand(())

        expected = draws(0)
        assert len(set(expected[0])) == 20
        assert draws(1) == expected
        assert draws(2) == expected

    def test_the_callers_generators_are_not_touched(self):
        loader = DataLoader(Made(draw), 3, seed_globals=True)
        iterator = iter(loader)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist()
        next(iterator)
        after = torch.get_rng_state(), np.random.get_state()[1].tolist()
        assert torch.equal(before[0], after[0])
        assert before[1] == after[1]


def test_torch_knows_the_worker(load):
    def look(index):
        info = data.get_worker_info()
        return info.id, info.num_workers, info.dataset.length

    seen = [tuple(map(int, row)) for row in load(Made(look), batch_size=None)]
    assert {row[1:] for row in seen} == {(2, 10)}
    assert {row[0] for row in seen} <= {0, 1}
    assert data.get_worker_info() is None


def test_the_profiler_shows_it(load):
    with torch.profiler.profile() as profile:
        assert values(load(Made())) == list(range(10))
    names = {event.key for event in profile.key_averages()}
    assert "enumerate(DataLoader)#WorkersIterator.__next__" in names


@pytest.mark.parametrize("collate_fn", [None, torch.stack])
def test_tensors_lie_in_the_ring(load, collate_fn):
    loader = load(Made(lambda i: torch.ones(1000)), batch_size=10, collate_fn=collate_fn)
    (batch,) = loader
    ring = np.frombuffer(loader._pool._engine._parts.ring.mapping, np.uint8)
    assert 0 < batch.data_ptr() - ring.ctypes.data < ring.nbytes
