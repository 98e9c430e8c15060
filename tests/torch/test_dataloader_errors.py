"""The drop-in loader: errors, its arguments and attributes."""

from __future__ import annotations

import inspect
import os
import random
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from crumpets_like import LoaderTimeout, WorkerDied  # noqa: E402
from crumpets_like.torch import DataLoader  # noqa: E402
from tests.support.dropin import Made, Numbers, die_at_seven, kill_once, loads, values  # noqa: E402
from tests.support.processes import named  # noqa: E402


def pid(index):
    return os.getpid()


@pytest.fixture
def load(request):
    return loads(request)


class TestErrors:
    def test_keep_their_type_and_tell_the_sample(self, load):
        loader = load(Made(lambda i: 1 // (7 - i)), batch_size=2)
        iterator = iter(loader)
        assert len([next(iterator) for _ in range(3)]) == 3
        with pytest.raises(ZeroDivisionError) as caught:
            next(iterator)
        assert "epoch 0: sample with index 7" in caught.value.__notes__[0]
        assert [batch.tolist() for batch in iterator] == [[-1, -1]]  # it goes on, as torch's does
        with pytest.raises(ZeroDivisionError):
            values(loader)

    @pytest.mark.parametrize("nworkers", [0, 2])
    def test_a_pass_goes_on_behind_them(self, nworkers):
        def run(make, place=None, stop=None):
            loader = make(Made(lambda i: 7 // (i % 5)), 2, num_workers=nworkers)
            if place:
                loader.load_state_dict(place)
            iterator, seen, states = iter(loader), [], []
            while stop is None or len(seen) < stop:
                try:
                    seen.append(next(iterator).tolist())
                except ZeroDivisionError:
                    seen.append(None)
                except StopIteration:
                    break
                states.append(make is DataLoader and loader.state_dict())
            if make is DataLoader:
                loader.close()
            return seen, states

        expected, _ = run(data.DataLoader)
        assert expected == [None, [3, 2], None, [7, 3], [2, 1]]
        seen, states = run(DataLoader)
        assert seen == expected
        for number, state in enumerate(states[:-1]):
            came = max(n + 1 for n in range(-1, number + 1) if n < 0 or seen[n])
            rest, _ = run(DataLoader, state)
            assert rest == expected[came:], "what was raised last is tried again"

    def test_a_stream_ends_with_them(self, load):
        class Stream(data.IterableDataset):
            def __iter__(self):
                yield 1
                raise OSError("no more")

        loader = load(Stream(), batch_size=1, num_workers=1)
        iterator = iter(loader)
        assert next(iterator).tolist() == [1]
        with pytest.raises(OSError, match="no more"):
            next(iterator)
        assert list(iterator) == []

    def test_of_collate_fn_tell_the_batch(self, load):
        def collate(samples):
            raise OSError("not today")

        with pytest.raises(OSError, match="not today") as caught:
            values(load(Made(), collate_fn=collate))
        assert "batch number 0 of the epoch" in caught.value.__notes__[0]

    def test_of_worker_init_fn(self, load):
        def init(worker_id):
            raise OSError("not there")

        loader = load(Made(), worker_init_fn=init)
        with pytest.raises(OSError, match="not there"):
            values(loader)
        loader.worker_init_fn = None
        assert values(loader) == list(range(10))

    def test_what_cannot_be_pickled_is_named(self, load):
        dataset = Made()
        dataset.lock = threading.Lock()
        with pytest.raises(TypeError, match=r"dataset\.lock cannot be sent"):
            iter(load(dataset))

    def test_a_dead_worker_is_replaced(self, load, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        os.mkdir("alive")
        assert values(load(Made(kill_once), batch_size=2)) == list(range(10))

    def test_a_sample_that_ends_workers(self, load):
        iterator = iter(load(Made(die_at_seven), batch_size=2))
        assert [next(iterator).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(WorkerDied, match="ended with exit code 3") as caught:
            next(iterator)
        assert (caught.value.index, caught.value.indices) == (None, (6, 7))
        assert "one of 2 samples at once, with the indices 6, 7 (epoch 0" in str(caught.value)

    def test_a_sample_that_ends_workers_without_batches(self, load):
        iterator = iter(load(Made(die_at_seven), batch_size=None))
        with pytest.raises(WorkerDied, match="the sample with index 7 ") as caught:
            list(iterator)
        assert caught.value.index == 7

    def test_a_stream_cannot_be_continued(self, load):
        loader = load(Numbers(make=die_at_seven), batch_size=1)
        iterator = iter(loader)
        # What is requested of that worker when it ends may be lost with it.
        seen = [next(iterator).tolist() for _ in range(3)]
        assert seen == [[0], [1], [2]]
        with pytest.raises(WorkerDied, match="It cannot be replaced in a stream"):
            list(iterator)
        assert list(iterator) == []
        loader.dataset.make = int
        assert values(loader) == list(range(12))

    def test_a_worker_that_dies_between_two_batches_of_its_stream(self, load):
        """It may have told its end already: the caller cannot know what is missing."""
        loader = load(Numbers(40, lambda number: (number, os.getpid())), batch_size=1)
        iterator = iter(loader)
        pids = [int(next(iterator)[1]) for _ in range(2)]
        time.sleep(0.2)  # until what may be requested ahead is done
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL") as caught:
            list(iterator)
        assert caught.value.pid == pids[1]

    def test_timeout(self, load):
        loader = load(Made(lambda i: time.sleep(60 * (i == 1))), collate_fn=list, timeout=1)
        with pytest.raises(LoaderTimeout, match="within 1 seconds"):
            list(loader)

    def test_broken_engine(self, load):
        """What ended the workers for good ends this iterator; the next one has new workers."""
        loader = load(Made(die_at_seven), batch_size=1)
        for _ in range(2):
            with pytest.raises(WorkerDied):
                values(loader)
            assert values(iter([next(iter(loader))])) == [0]
        for broker in named("crumpets-broker"):
            broker.kill()
        with pytest.raises(Exception, match="ended unexpectedly"):
            values(loader)
        loader.dataset.make = int
        assert values(loader) == list(range(10))


class TestArguments:
    @pytest.mark.parametrize(
        "options",
        [
            {"num_workers": -1},
            {"timeout": -1},
            {"prefetch_factor": 2},
            {"prefetch_factor": -1, "num_workers": 1},
            {"persistent_workers": True},
            {"sampler": [1], "shuffle": True},
            {"batch_sampler": [[1]], "batch_size": 2},
            {"batch_sampler": [[1]], "drop_last": True},
            {"batch_size": None, "drop_last": True},
            {"batch_size": 0},
            {"batch_size": 2.5},
            {"batch_size": "4"},
            {"multiprocessing_context": "fork"},
            {"multiprocessing_context": "thread", "num_workers": 1},
            {"multiprocessing_context": 3, "num_workers": 1},
            {"dataset": Made(length=0), "shuffle": True},
            {"dataset": Numbers(), "shuffle": True},
            {"dataset": Numbers(), "sampler": [1]},
            {"dataset": Numbers(), "batch_sampler": [[1]]},
        ],
        ids=lambda options: ", ".join(options),  # the same in every process
    )
    def test_wrong_ones_are_torchs_errors(self, options):
        options = {"dataset": Made()} | options
        with pytest.raises((TypeError, ValueError)) as theirs:
            data.DataLoader(**options)
        with pytest.raises(type(theirs.value)) as ours:
            DataLoader(**options)
        assert str(ours.value) == str(theirs.value)

    @pytest.mark.parametrize(("factor", "error"), [(0, AssertionError), (1.5, TypeError)])
    def test_wrong_ones_that_torch_finds_late(self, factor, error):
        with pytest.raises(error, match="prefetch_factor must be"):
            iter(DataLoader(Made(), num_workers=1, prefetch_factor=factor))

    def test_datapipes(self):
        with pytest.raises(TypeError, match="is a datapipe"):
            DataLoader(data.datapipes.iter.IterableWrapper([1]))

    def test_signature(self):
        ours = dict(inspect.signature(DataLoader).parameters)
        assert ours.pop("seed_globals").default is False
        theirs = inspect.signature(data.DataLoader).parameters
        assert [(p.name, p.default, p.kind) for p in ours.values()] == [
            (p.name, p.default, p.kind) for p in theirs.values()
        ]

    def test_attributes(self, load):
        loader = load(Made(), batch_size=3, drop_last=True)
        assert isinstance(loader, data.DataLoader)
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (3, True, 2)
        assert loader.prefetch_factor == 2
        assert isinstance(loader.sampler, data.SequentialSampler)
        assert isinstance(loader.batch_sampler, data.BatchSampler)
        assert loader.collate_fn is data.default_collate
        with pytest.raises(ValueError, match="should not be set after DataLoader is initialized"):
            loader.batch_size = 4
        assert len(iter(loader)) == len(loader) == 3

    def test_attributes_that_may_be_set(self, load):
        loader = load(Made(pid), batch_size=1)
        few = set(values(loader))
        loader.num_workers = 1
        assert len(set(values(loader))) == 1
        assert few.isdisjoint(values(loader))

    @pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_pin_memory_without_accelerator(self, num_workers):
        options = {"multiprocessing_context": "fork"} if num_workers else {}
        loader = DataLoader(Made(), 10, num_workers=num_workers, pin_memory=True, **options)
        with pytest.warns(UserWarning, match="no accelerator is found"):
            (batch,) = loader
        assert batch.tolist() == list(range(10))
        loader.close()

    def test_a_stream_longer_than_it_said(self, load):
        class Short(Numbers):
            def __len__(self):
                return 2

        loader = load(Short(), batch_size=None)
        assert len(loader) == 2
        with pytest.warns(UserWarning, match="Length of IterableDataset .* to be 2"):
            list(loader)

    def test_the_collate_functions_of_torch_can_be_taught(self, monkeypatch):
        from torch.utils.data._utils.collate import default_collate_fn_map

        def negative(batch, *, collate_fn_map=None):
            return -torch.tensor(batch)

        loader = DataLoader(Made(), 5, num_workers=1)  # not forked: it has to be told
        assert values(loader) == [*range(10)]
        monkeypatch.setitem(default_collate_fn_map, int, negative)
        assert values(loader) == [-i for i in range(10)]
        loader.close()

    def test_seed_globals_may_be_set_later(self):
        seen = []
        for num_workers in (0, 2):
            loader = DataLoader(Made(lambda _: random.random()), 5, num_workers=num_workers)
            values(loader)
            loader.seed_globals = True
            torch.manual_seed(0)
            seen.append(values(loader))
            loader.close()
        assert seen[0] == seen[1]
