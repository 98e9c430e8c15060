"""Wrong arguments are refused at the earliest moment, by name and value."""

from __future__ import annotations

import numpy as np
import pytest

from crumpets_like import TurboDataLoader, Worker
from crumpets_like.sampling import WeightedSampler
from tests.support.loading import Items, items
from tests.support.names import stable


def make(dataset=range(10), batch_size=4, worker=None, nworkers=2, **options):
    return TurboDataLoader(dataset, batch_size, worker or Items(), nworkers, **options)


class NoWorker:
    def prepare(self, sample, batch, buffers): ...

    def __repr__(self):
        return "NoWorker()"


REFUSED = [
    ({"batch_size": 0}, ValueError, "batch_size .* 0"),
    ({"batch_size": -1}, ValueError, "batch_size .* -1"),
    ({"batch_size": 2.5}, TypeError, "batch_size .* 2.5"),
    ({"batch_size": "4"}, TypeError, "batch_size .* '4'"),
    ({"batch_size": True}, TypeError, "batch_size .* True"),
    ({"nworkers": -1}, ValueError, "nworkers .* -1"),
    ({"nworkers": 1.0}, TypeError, r"nworkers .* 1\.0"),
    ({"nworkers": None}, TypeError, "nworkers .* None"),
    ({"worker": NoWorker()}, TypeError, r"worker_template .* NoWorker\(\)"),
    ({"worker": Items}, TypeError, "worker_template .* <class .*Items"),
    ({"length": 0}, ValueError, "length .* 0"),
    ({"length": 1.5}, TypeError, r"length .* 1\.5"),
    ({"num_mini_batches": 3}, ValueError, "batch_size .*num_mini_batches.* 4 and 3"),
    ({"num_mini_batches": 8}, ValueError, "batch_size .*num_mini_batches.* 4 and 8"),
    ({"num_mini_batches": 0}, ValueError, "num_mini_batches .* 0"),
    ({"start_iteration": -1}, ValueError, "start_iteration .* -1"),
    ({"start_iteration": "0"}, TypeError, "start_iteration .* '0'"),
    ({"shared_memory": -1}, ValueError, "shared_memory .* -1"),
    ({"shared_memory": "yes"}, TypeError, "shared_memory .* 'yes'"),
    ({"seed": -1}, ValueError, "seed .* -1"),
    ({"seed": 0.5}, TypeError, r"seed .* 0\.5"),
    ({"sampler": [1, 2], "shuffle": True}, ValueError, r"shuffle=True .* sampler=\[1, 2\]"),
    ({"sampler": 7}, TypeError, "sampler .* 7"),
    (
        {"batch_sampler": [[1]], "shuffle": True},
        ValueError,
        r"shuffle=True .* batch_sampler=\[\[1\]\]",
    ),
    (
        {"batch_sampler": [[1]], "sampler": [1]},
        ValueError,
        r"sampler=\[1\] .* batch_sampler=\[\[1\]\]",
    ),
    (
        {"batch_sampler": [[1]], "last_batch": "discard"},
        ValueError,
        r"last_batch='discard' .* batch_sampler=\[\[1\]\]",
    ),
    (
        {"batch_sampler": [[1]], "last_batch": "rollover"},
        ValueError,
        r"last_batch='rollover' .* batch_sampler=\[\[1\]\]",
    ),
    ({"last_batch": "drop"}, ValueError, "last_batch .* 'drop'"),
    ({"last_batch": None}, ValueError, "last_batch .* None"),
    ({"shuffle": "no"}, TypeError, "shuffle must be True or False, got 'no'"),
    ({"in_order": None}, TypeError, "in_order .* None"),
    ({"seed_globals": 1}, TypeError, "seed_globals .* 1"),
    ({"prefetch": 0}, ValueError, "prefetch .* 0"),
    ({"prefetch": 1.5}, TypeError, r"prefetch .* 1\.5"),
    ({"timeout": 0}, ValueError, "timeout .* 0"),
    ({"timeout": -1.0}, ValueError, r"timeout .* -1\.0"),
    ({"timeout": float("nan")}, ValueError, "timeout .* nan"),
    ({"timeout": "1"}, TypeError, "timeout .* '1'"),
    ({"on_error": "ignore"}, ValueError, "on_error .* 'ignore'"),
    ({"start_method": "threads"}, ValueError, "start_method .* 'threads'"),
    ({"max_buffers": 0}, ValueError, "max_buffers .* 0"),
    (
        {"max_buffers": 3, "shared_memory": 4},
        ValueError,
        "max_buffers .* 3, 4 and 1",
    ),
    (
        {"max_buffers": 2, "num_mini_batches": 4},
        ValueError,
        "max_buffers .* 2, True and 4",
    ),
    (
        {"seed_globals": True, "start_method": "thread"},
        ValueError,
        "seed_globals=True .* start_method",
    ),
    ({"dataset": 5}, TypeError, "iterable .* 5"),
    ({"dataset": iter([]), "shuffle": True}, ValueError, "shuffle=True .* __getitem__"),
    ({"dataset": iter([]), "sampler": [0]}, ValueError, r"sampler=\[0\] .* __getitem__"),
    (
        {"dataset": iter([]), "sampler": WeightedSampler([1.0])},
        ValueError,
        "sampler=<.*WeightedSampler.* __getitem__",
    ),
    (
        {"dataset": iter([]), "batch_sampler": [[0]]},
        ValueError,
        r"batch_sampler=\[\[0\]\] .* __getitem__",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    REFUSED,
    ids=[
        stable(" ".join(f"{name}={value}" for name, value in row[0].items()))[:50]
        for row in REFUSED
    ],
)
def test_refused_at_construction(arguments, kind, text):
    with pytest.raises(kind, match=text):
        make(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": np.int64(4), "nworkers": np.int32(1), "num_mini_batches": np.int8(2)},
        {"length": np.int64(10), "seed": np.uint64(2**63), "start_iteration": np.int64(1)},
        {"timeout": None, "prefetch": 1, "max_buffers": 2, "shared_memory": 2},
        {"shared_memory": 0},
        {"shared_memory": False},
        {"max_buffers": 1},
    ],
    ids=str,
)
def test_accepted(arguments):
    loader = make(**{"nworkers": 0, **arguments})
    assert isinstance(loader.batch_size, int)
    assert isinstance(loader.nworkers, int)
    assert isinstance(loader.iterations, int)


@pytest.mark.parametrize("nworkers", [0, 1])
class TestAtTheBatch:
    """What a sampler gives is known only when its turn comes; batches before are delivered."""

    @staticmethod
    def run(text, kind, nworkers, **options):
        with make(nworkers=nworkers, start_method="fork", **options) as loader:
            iterator = iter(loader)
            assert items(next(iterator)[1]) == [0, 1, 2, 3]
            with pytest.raises(kind, match=text):
                next(iterator)
            assert items(next(iter(loader))[1]) == [0, 1, 2, 3]

    @pytest.mark.parametrize("index", [10, -11, 2**70])
    def test_sampler_index_out_of_range(self, nworkers, index):
        text = rf"sampler .* {index}\b.* 10"
        self.run(text, IndexError, nworkers, sampler=[0, 1, 2, 3, 4, index])

    def test_batch_sampler_index_out_of_range(self, nworkers):
        text = r"batch_sampler .* 10\b.* 10"
        self.run(text, IndexError, nworkers, batch_sampler=[[0, 1, 2, 3], [10]])

    def test_list_over_batch_size(self, nworkers):
        lists = [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
        self.run("batch_sampler .* 5 .*batch_size=4", ValueError, nworkers, batch_sampler=lists)

    def test_empty_list(self, nworkers):
        lists = [[0, 1, 2, 3], []]
        self.run("batch_sampler .* 0 ", ValueError, nworkers, batch_sampler=lists)

    def test_no_list(self, nworkers):
        lists = [[0, 1, 2, 3], 4]
        self.run("batch_sampler .* 4 .*sampler", TypeError, nworkers, batch_sampler=lists)


def test_negative_sampler_index_counts_from_the_end():
    with make(["a", "b", "c"], worker=Letters(), nworkers=0, sampler=[-1, 0]) as loader:
        ((_, (mini_batch,)),) = loader
    assert mini_batch["letter"] == ["c", "a"]


class Letters(Worker):
    def process(self, sample):
        return {"letter": sample}
