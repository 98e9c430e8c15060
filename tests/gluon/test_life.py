"""Workers of a loader: how long they live, and what an error leaves behind."""

import copy
import gc
import os
import pickle
import random
import signal
import threading
import time

import numpy as np
import pytest

from crumpets_like import LoaderClosed, LoaderError, LoaderTimeout, WorkerDied
from crumpets_like.broker.processes import THREAD_NAME
from crumpets_like.gluon import DataLoader, SimpleDataset
from tests.support.gluon import PROCESSES, THREADS, WORKERS, as_lists, settle
from tests.support.loading import wait_until
from tests.support.processes import named
from tests.support.scenario import run_scenario
from tests.test_interrupted import interrupted

TEN = list(range(10))
BATCHES = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def processes():
    return named("crumpets")


class TestLife:
    def test_from_construction_to_collection(self):
        loader = DataLoader(TEN, 4, **PROCESSES)
        assert wait_until(lambda: len(named("crumpets-w")) == 2)
        before = {process.pid for process in processes()}
        for _ in range(2):
            assert as_lists(loader) == BATCHES
        assert {process.pid for process in processes()} == before
        batches = list(loader)
        del loader
        gc.collect()
        assert wait_until(lambda: not processes())
        assert [batch.tolist() for batch in batches] == BATCHES

    @pytest.mark.parametrize("mode", WORKERS)
    def test_an_iterator_keeps_its_loader(self, mode):
        it = iter(DataLoader(TEN, 4, auto_reload=True, **mode))
        gc.collect()
        assert [batch.tolist() for batch in it] == BATCHES

    @pytest.mark.parametrize("mode", WORKERS)
    def test_dropped_in_the_middle_of_a_pass(self, mode):
        loader = DataLoader(TEN, 1, **mode)
        it, unused = iter(loader), iter(loader)
        next(it)
        del loader, it, unused
        gc.collect()
        assert wait_until(lambda: not processes())

    def test_no_workers_no_processes(self):
        loader = DataLoader(TEN, 4, auto_reload=True)
        assert processes() == []
        assert as_lists(loader) == BATCHES

    def test_threads_are_no_processes(self):
        loader = DataLoader(TEN, 4, **THREADS)
        assert as_lists(loader) == BATCHES
        assert named("crumpets-w") == []
        names = [thread.name for thread in threading.enumerate()]
        assert sum(name.startswith(f"{THREAD_NAME}w") for name in names) == 2

    def test_two_loaders(self):
        first, second = DataLoader(TEN, 4, **PROCESSES), DataLoader(TEN[::-1], 5, **PROCESSES)
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(first, second, strict=False)]
        assert pairs == [(BATCHES[0], [9, 8, 7, 6, 5]), (BATCHES[1], [4, 3, 2, 1, 0])]


SCRIPT = """
import sys
from crumpets_like.gluon import DataLoader

class Squares:
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return index * index

loader = DataLoader(Squares(), 4, num_workers=2, thread_pool=sys.argv[1] == "threads",
                    batchify_fn=lambda data: sum(data), auto_reload=True)
print(list(loader))
it = iter(loader)
next(it)
if sys.argv[2] == "raises":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("kind", ["processes", "threads"])
@pytest.mark.parametrize("end", ["ends", "raises"])
def test_nothing_is_left_at_the_exit(kind, end):
    result = run_scenario(SCRIPT, kind, end)
    result.check(3 if end == "raises" else 0)
    assert result.stdout == "[14, 126, 145]\n"
    assert result.stderr == ""


class Slow(SimpleDataset):
    """Sample 5 takes long while a file is there."""

    def __init__(self, mark):
        super().__init__(TEN)
        self.mark = mark

    def __getitem__(self, index):
        deadline = time.monotonic() + 60
        while index == 5 and os.path.exists(self.mark) and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().__getitem__(index)


@pytest.mark.parametrize("mode", WORKERS)
def test_timeout(mode, tmp_path):
    mark = tmp_path / "slow"
    mark.touch()
    loader = DataLoader(Slow(mark), 4, timeout=0.6, **mode)
    it = iter(loader)
    assert next(it).tolist() == BATCHES[0]
    with pytest.raises(LoaderTimeout) as caught:
        next(it)
    text = str(caught.value)
    for part in ("0.6 seconds", "slow transform", "larger timeout", "fewer workers (num_workers)"):
        assert part in text
    if mode is PROCESSES:
        assert caught.value.index == 5
        assert "has not got on with the sample with index 5" in text
    assert list(it) == []
    mark.unlink()
    assert as_lists(loader) == BATCHES


class Deadly(SimpleDataset):
    """Sample 5 ends its process while a file is there."""

    def __init__(self, mark):
        super().__init__(TEN)
        self.mark = mark

    def __getitem__(self, index):
        if index == 5 and os.path.exists(self.mark):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class TestDeaths:
    def test_of_a_worker(self, tmp_path):
        mark = tmp_path / "deadly"
        mark.touch()
        loader = DataLoader(Deadly(mark), 4, **PROCESSES)
        with pytest.raises(WorkerDied) as caught:
            list(loader)
        assert (caught.value.index, caught.value.signal_name) == (5, "SIGKILL")
        mark.unlink()
        assert as_lists(loader) == BATCHES

    def test_of_the_broker(self, tmp_path):
        mark = tmp_path / "slow"
        mark.touch()
        loader = DataLoader(Slow(mark), 4, **PROCESSES)
        it = iter(loader)
        assert next(it).tolist() == BATCHES[0]
        (broker,) = named("crumpets-broker")
        broker.kill()
        with pytest.raises(LoaderError, match="no more mini-batches can come"):
            next(it)
        mark.unlink()
        assert as_lists(loader) == BATCHES

    def test_while_nobody_looks(self):
        loader = DataLoader(TEN, 4, auto_reload=True, **PROCESSES)
        assert as_lists(loader) == BATCHES
        settle(loader)
        (broker,) = named("crumpets-broker")
        broker.kill()
        assert wait_until(lambda: not loader._engine.usable)
        assert as_lists(loader) == BATCHES

    def test_a_dataset_that_cannot_be_unpickled(self):
        loader = DataLoader(Fragile(TEN), 4, **PROCESSES)
        for _ in range(2):
            with pytest.raises(OSError, match=r"^no such disk"):
                list(loader)


class Fragile(SimpleDataset):
    """Cannot be made again."""

    def __setstate__(self, state):
        raise OSError("no such disk")


def test_a_signal_handler_raises(tmp_path):
    mark = tmp_path / "slow"
    loader = DataLoader(Slow(mark), 4, prefetch=0, **PROCESSES)
    first, second = iter(loader), iter(loader)
    for it in (first, second):
        assert next(it).tolist() == BATCHES[0]
    mark.touch()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted(0.2):
            next(first)
    finally:
        signal.signal(signal.SIGALRM, old)
    with pytest.raises(LoaderClosed, match="workers were stopped when another of its passes"):
        next(second)
    assert list(first) == list(second) == []
    mark.unlink()
    assert as_lists(loader) == BATCHES


def interrupted_again_and_again(mode, auto_reload, seconds):
    rng = random.Random(5)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    deadline = time.monotonic() + seconds
    loader = DataLoader(list(range(100)), 4, auto_reload=auto_reload, timeout=10, **mode)
    expected = [list(range(first, first + 4)) for first in range(0, 100, 4)]
    assert as_lists(loader) == expected
    hits = 0
    while time.monotonic() < deadline:
        try:
            with interrupted(0.0002 + 0.02 * rng.random()):
                as_lists(loader)
        except KeyboardInterrupt:
            hits += 1
        while True:
            try:
                assert as_lists(loader) == expected
                break
            except KeyboardInterrupt:  # it came too late
                pass
    assert hits


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "auto_reload"), [(PROCESSES, True), (THREADS, False)])
def test_interrupted_anywhere(mode, auto_reload):
    run_scenario(interrupted_again_and_again, mode, auto_reload, 3.0, timeout=60).check()


def forked_child():
    loader = DataLoader(TEN, 4, auto_reload=True, **PROCESSES)
    it = iter(loader)
    assert next(it).tolist() == BATCHES[0]
    child = os.fork()
    if child == 0:
        with pytest.raises(LoaderClosed, match="of which this one was forked"):
            next(it)
        assert as_lists(loader) == BATCHES  # by workers of its own
        assert processes()
        del loader, it
        gc.collect()
        return
    assert os.waitpid(child, 0)[1] == 0
    assert [batch.tolist() for batch in it] == BATCHES[1:]
    assert as_lists(loader) == BATCHES


def test_a_forked_child_has_workers_of_its_own():
    run_scenario(forked_child).check()


class TestPickling:
    def test_workers_cannot_travel(self):
        loader = DataLoader(TEN, 4, **PROCESSES)
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="DataLoader with workers cannot be pickled"):
                attempt(loader)
        assert as_lists(loader) == BATCHES

    def test_a_loader_without_workers_can(self):
        loader = DataLoader(TEN, 4, last_batch="rollover")
        list(loader)
        assert next(iter(pickle.loads(pickle.dumps(loader)))).tolist() == [8, 9, 0, 1]

    def test_what_cannot_be_pickled_is_named_at_construction(self):
        dataset = SimpleDataset(TEN)
        dataset.lock = threading.Lock()
        with pytest.raises(TypeError, match=r"dataset\.lock cannot be sent"):
            DataLoader(dataset, 4, **PROCESSES)
        assert as_lists(DataLoader(dataset, 4, **THREADS)) == BATCHES


def draws(number):
    """Of the global generators of a worker."""
    return np.random.random(), random.random()


class TestRandomNumbersInWorkers:
    def run(self, num_workers):
        dataset = SimpleDataset(list(range(64))).transform(draws)
        loader = DataLoader(dataset, 1, num_workers=num_workers, batchify_fn=lambda data: data[0])
        return list(loader)

    def test_they_follow_the_seed_of_numpy(self):
        runs = []
        for seed in (3, 3, 4):
            np.random.seed(seed)
            runs.append(self.run(1))
            assert np.random.random() == np.random.RandomState(seed).random()  # nothing was drawn
        assert runs[0] == runs[1]
        assert not set(runs[0]) & set(runs[2])

    def test_workers_differ(self):
        seen = self.run(2)
        assert len(set(seen)) == len(seen)
