"""What goes wrong in user code reaches the caller as what it is, in its turn, and never hangs."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest

from crumpets_like import LoaderClosed, TurboDataLoader, Worker, WorkerDied, WorkerError
from tests.support.loading import Items, items, run_epoch, run_items
from tests.support.scenario import run_scenario

everywhere = pytest.mark.parametrize(
    ("nworkers", "start_method"), [(0, "fork"), (2, "fork"), (1, "thread")]
)


def load(dataset, batch_size=4, nworkers=2, start_method="fork", worker=None, **options):
    options = {"start_method": start_method, **options}
    return TurboDataLoader(dataset, batch_size, worker or Items(), nworkers, **options)


class Fussy(Items):
    """Raises what `error` makes at one sample."""

    def __init__(self, error, at=6):
        super().__init__()
        self.error = error
        self.at = at

    def prepare(self, sample, batch, buffers):
        if sample == self.at:
            raise self.error()
        super().prepare(sample, batch, buffers)


class FussyDataset:
    """Raises at one index."""

    def __init__(self, error, at=6):
        self.error = error
        self.at = at

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == self.at:
            raise self.error()
        return index


class OwnError(Exception):
    def __init__(self, number, *, detail):
        super().__init__(number)
        self.detail = detail

    def __reduce__(self):
        return _own_error, (self.args[0], self.detail)


def _own_error(number, detail):
    return OwnError(number, detail=detail)


class Unpicklable(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class TestOneSample:
    @everywhere
    @pytest.mark.parametrize("where", ["dataset", "worker"])
    def test_is_raised_behind_the_batches_before_it(self, nworkers, start_method, where):
        error = partial(KeyError, "six")
        dataset = FussyDataset(error) if where == "dataset" else range(20)
        worker = Fussy(error) if where == "worker" else Items()
        with load(dataset, 4, nworkers, start_method, worker) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0, 1, 2, 3]
            with pytest.raises(KeyError, match="six") as caught:
                next(iterator)
            assert any("index 6" in note for note in caught.value.__notes__)
            if nworkers:
                function = "__getitem__" if where == "dataset" else "in prepare"
                assert function in str(caught.value.__cause__)
            with pytest.raises(LoaderClosed, match="KeyError"):
                next(iterator)
            assert loader.iterations == 1

    @everywhere
    def test_the_next_epoch_begins_anew(self, nworkers, start_method):
        with load(range(20), 4, nworkers, start_method, Fussy(partial(ValueError, "x"))) as loader:
            for _ in range(10):
                with pytest.raises(ValueError, match="x"):
                    run_epoch(loader)
            assert items(next(iter(loader))[1]) == [0, 1, 2, 3]
            figures = loader.statistics()
        assert figures.samples == 44
        assert figures.buffers_held <= 1

    @everywhere
    def test_one_of_a_prefetched_epoch_waits_for_it(self, nworkers, start_method):
        with load(FussyEpoch(), 4, nworkers, start_method) as loader:
            assert run_items(loader) == list(range(20))
            with pytest.raises(RuntimeError, match="epoch 1"):
                run_items(loader)
            assert run_items(loader) == list(range(20))

    @everywhere
    def test_only_one_of_several_mini_batches(self, nworkers, start_method):
        worker = Fussy(partial(ValueError, "x"), at=7)
        with load(range(20), 4, nworkers, start_method, worker, num_mini_batches=2) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0, 1, 2, 3]
            with pytest.raises(ValueError, match="x"):
                next(iterator)
            assert items(next(iter(loader))[1]) == [0, 1, 2, 3]

    @everywhere
    def test_stop_iteration_does_not_end_the_epoch(self, nworkers, start_method):
        with (
            load(
                range(20), 4, nworkers, start_method, Fussy(partial(StopIteration, "over"))
            ) as loader,
            pytest.raises(WorkerError, match="StopIteration: over"),
        ):
            list(loader)

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_own_classes_keep_their_attributes(self, nworkers):
        with (
            load(
                range(20), nworkers=nworkers, worker=Fussy(partial(OwnError, 3, detail="d"))
            ) as loader,
            pytest.raises(OwnError) as caught,
        ):
            list(loader)
        assert (caught.value.args, caught.value.detail) == ((3,), "d")

    def test_what_cannot_be_pickled_keeps_its_text(self):
        with (
            load(range(20), worker=Fussy(partial(Unpicklable, 1, 2))) as loader,
            pytest.raises(WorkerError, match=r"(?s)Unpicklable: 1 and 2.*in prepare") as caught,
        ):
            list(loader)
        assert caught.value.class_name == "Unpicklable"
        assert caught.value.text == "1 and 2"

    def test_the_others_come_without_order(self):
        seen = []
        with (
            load(range(20), worker=Fussy(partial(ValueError, "x")), in_order=False) as loader,
            pytest.raises(ValueError, match="x"),
        ):
            seen.extend(items(mini_batches) for _, mini_batches in loader)
        assert [4, 5, 6, 7] not in seen


class FussyEpoch(FussyDataset):
    """Raises in epoch 1."""

    def __init__(self):
        super().__init__(None, at=-1)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        if self.epoch == 1:
            raise RuntimeError("epoch 1")
        return index


class FussyHook(Items):
    """Raises in one of its hooks."""

    def __init__(self, hook):
        super().__init__()
        self.hook = hook

    def setup(self):
        if self.hook == "setup":
            raise ValueError("hook")

    def start_epoch(self, epoch):
        if self.hook == "start_epoch" and epoch == 1:
            raise ValueError("hook")


class TestHooks:
    @pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn", "thread"])
    def test_setup(self, start_method):
        loader = load(range(20), 4, 2, start_method, FussyHook("setup"))
        with loader, pytest.raises(ValueError, match="hook") as caught:
            list(loader)
        assert "in setup" in str(caught.value.__cause__)
        assert any("FussyHook.setup" in note for note in caught.value.__notes__)

    def test_setup_without_workers(self):
        with pytest.raises(ValueError, match="hook"):
            load(range(20), 4, 0, worker=FussyHook("setup")).start()

    @everywhere
    def test_start_epoch(self, nworkers, start_method):
        with load(range(20), 4, nworkers, start_method, FussyHook("start_epoch")) as loader:
            assert run_items(loader) == list(range(20))
            with pytest.raises(ValueError, match="hook"):
                list(loader)
            assert run_items(loader) == list(range(20))


class Short(FussyDataset):
    def __init__(self):
        super().__init__(None, at=-1)

    def __getitems__(self, indices):
        return list(indices)[:-1]


class BulkItems(Items):
    def prepare_batch(self, samples, batch, buffers):
        buffers["item"][...] = samples


@pytest.mark.parametrize("worker", [Items, BulkItems])
@pytest.mark.parametrize("nworkers", [0, 2])
def test_getitems_that_returns_too_few(nworkers, worker):
    text = r"__getitems__ returned \d samples for \d indices"
    with (
        load(Short(), 4, nworkers, worker=worker()) as loader,
        pytest.raises(ValueError, match=text),
    ):
        list(loader)


class Odd(Worker):
    """Returns what has no length."""

    def process(self, sample):
        return {"item": sample}

    def collate(self, results):
        return {
            "count": len(results),
            "mean": np.float32(1.5),
            "item": [r["item"] for r in results],
        }


@pytest.mark.parametrize("nworkers", [0, 2])
def test_a_collate_may_return_values_without_a_length(nworkers):
    with load(range(10), 4, nworkers, worker=Odd()) as loader:
        batches = [mini_batch for _, (mini_batch,) in loader]
        assert loader.statistics().samples == 10
    assert [batch["count"] for batch in batches] == [4, 4, 2]
    assert [batch["item"] for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


class Deadly(Items):
    """Ends its process at one sample, or while it is set up."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def setup(self):
        if self.at == "setup":
            os._exit(0)

    def prepare(self, sample, batch, buffers):
        if sample == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare(sample, batch, buffers)


def deadly_setup(start_method):
    loader = load(range(20), 4, 2, start_method, Deadly("setup"))
    with loader, pytest.raises(WorkerDied) as caught:
        list(loader)
    assert (caught.value.exit_code, caught.value.index) == (0, None)


def deadly_key():
    data = {"a": 1, "b": 2, "c": 9}
    loader = load(data, 1, 1, worker=Deadly(9), sampler=list(data))
    with loader, pytest.raises(WorkerDied, match="the sample with key 'c' ") as caught:
        list(loader)
    assert (caught.value.index, caught.value.where.keys) == (None, ("c",))


def deadly_sample_of_an_iterable():
    seen = []
    loader = load(iter(range(20)), 4, 2, worker=Deadly(9))
    with loader, pytest.raises(WorkerDied) as caught:
        seen.extend(items(mini_batches) for _, mini_batches in loader)
    assert caught.value.signal_name == "SIGKILL"
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


def deadly_prefetch():
    with load(range(20), 4, 2, worker=Deadly(19), shuffle=True, seed=0) as loader:
        for _ in range(3):
            with pytest.raises(WorkerDied) as caught:
                list(loader)
            assert caught.value.index == 19


class TestDeath:
    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_in_setup(self, start_method):
        run_scenario(deadly_setup, start_method, timeout=30).check()

    def test_of_a_sample_with_a_key(self):
        run_scenario(deadly_key, timeout=30).check()

    def test_of_samples_that_travel(self):
        run_scenario(deadly_sample_of_an_iterable, timeout=30).check()

    def test_again_in_each_epoch(self):
        run_scenario(deadly_prefetch, timeout=30).check()
