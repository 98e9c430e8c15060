"""update_dataset(): workers that run already get the dataset as it is now."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from crumpets_like import BufferWorker, TurboDataLoader
from tests.support.matrix import PROCESSES
from tests.support.processes import named


class Marked:
    """Samples are a mark that the caller changes; `set_epoch` is called in each copy."""

    def __init__(self, length=12):
        self.length = length
        self.mark = 0
        self.epoch = -1
        self.table = np.zeros(50_000)

    def __len__(self):
        return self.length

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        if self.mark == "broken":
            raise OSError("broken")
        return self.mark, self.epoch, self.table[index]


class Unloadable:
    """Can be pickled; what that gives cannot be loaded."""

    def __reduce__(self):
        return int, ("no number",)


class Looks(BufferWorker):
    """Hands on the sample and this process's number."""

    def __init__(self):
        super().__init__()
        self.add_buffer("seen", ((4,), np.int64))

    def prepare(self, sample, batch, buffers):
        buffers["seen"][...] = (*sample, os.getpid())


def look(loader):
    """Marks, epochs, table values and process numbers that one pass shows, each as a set."""
    rows = np.concatenate([mini_batch["seen"] for _, (mini_batch,) in loader])
    return [set(column.tolist()) for column in rows.T]


def load(dataset, nworkers=2, **options):
    options = {"start_method": "fork", **options}
    return TurboDataLoader(dataset, 3, Looks(), nworkers, **options)


@pytest.mark.parametrize("start_method", PROCESSES)
def test_from_the_next_for_on(start_method):
    dataset = Marked()
    with load(dataset, start_method=start_method) as loader:
        pids = set()
        for epoch in range(3):
            dataset.mark = 10 + epoch
            dataset.table[:] = epoch
            loader.update_dataset()
            marks, epochs, table, own = look(loader)
            assert (marks, epochs, table) == ({10 + epoch}, {epoch}, {epoch})
            pids |= own
        assert len(pids) <= 2
        dataset.mark = 5
        assert look(loader)[0] == {12}


def test_length():
    dataset = Marked()
    with load(dataset) as loader:
        assert sum(len(m["seen"]) for _, (m,) in loader) == 12
        dataset.length = 20
        loader.update_dataset()
        assert len(loader) == 7
        assert sum(len(m["seen"]) for _, (m,) in loader) == 20


def test_nothing_is_sent_if_nothing_has_changed():
    dataset = Marked()
    with load(dataset) as loader:
        loader.update_dataset()
        (first,) = loader._engine._snapshots
        loader.update_dataset()
        assert loader._engine._snapshots == [first]
        dataset.table[-1] = 1
        loader.update_dataset()
        assert loader._engine._snapshots[1:] != [first]
        look(loader)
        assert len(loader._engine._snapshots) == 1


def test_replacements_have_it_too():
    dataset = Marked()
    with load(dataset) as loader:
        look(loader)
        dataset.mark = 7
        loader.update_dataset()
        before = look(loader)
        assert before[0] == {7}
        for worker in named("crumpets-w"):
            os.kill(worker.pid, signal.SIGKILL)
        look(loader)  # some of it was made ahead
        after = look(loader)
        assert after[0] == {7}
        assert before[3].isdisjoint(after[3])


def test_within_an_epoch():
    """What is requested may show either state; nothing is lost."""
    dataset = Marked(60)
    with load(dataset) as loader:
        seen = []
        for _, (mini_batch,) in loader:
            seen += mini_batch["seen"][:, 0].tolist()
            dataset.mark += 1
            loader.update_dataset()
        assert len(seen) == 60
        assert look(loader)[0] == {20}


@pytest.mark.parametrize("options", [{"nworkers": 0}, {"start_method": "thread"}])
def test_who_shares_the_dataset_needs_nothing(options):
    dataset = Marked()
    with load(dataset, **options) as loader:
        assert look(loader)[0] == {0}
        dataset.mark = 1
        loader.update_dataset()
        assert look(loader)[0] == {1}


def test_outside_with():
    dataset = Marked()
    loader = load(dataset)
    loader.update_dataset()
    dataset.mark = 3
    with loader:
        assert look(loader)[0] == {3}


def test_an_iterable_is_read_here_anyway():
    with load(iter([(1, 2, 3)] * 6)) as loader:
        loader.update_dataset()
        assert look(loader)[:3] == [{1}, {2}, {3}]


def test_workers_are_started_anew_where_descriptors_cannot_be_opened(monkeypatch):
    monkeypatch.setattr("crumpets_like.broker.engine.reachable", lambda: False)
    dataset = Marked()
    with load(dataset) as loader:
        _, _, _, pids = look(loader)
        dataset.mark = 2
        loader.update_dataset()
        marks, epochs, _, others = look(loader)
        assert (marks, epochs) == ({2}, {1})
        assert pids.isdisjoint(others)


def test_what_cannot_be_pickled_is_named():
    dataset = Marked()
    with load(dataset) as loader:
        dataset.mark = (x for x in "")
        with pytest.raises(TypeError, match=r"dataset\.mark cannot be sent"):
            loader.update_dataset()
        dataset.mark = 1
        loader.update_dataset()
        assert look(loader)[0] == {1}


def test_what_cannot_be_loaded_ends_the_loader():
    dataset = Marked()
    with load(dataset) as loader:
        look(loader)
        dataset.mark = Unloadable()
        loader.update_dataset()
        with pytest.raises(ValueError, match="no number") as caught:
            look(loader)
        assert "new state of the dataset was unpickled in worker" in caught.value.__notes__[0]
