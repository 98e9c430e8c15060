"""Several ranks share each epoch: their parts, and going on with more or fewer of them."""

from __future__ import annotations

import json
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like import TurboDataLoader
from crumpets_like.ranks import WHOLE, Shard, choose_shard
from crumpets_like.sampling import ShuffledOrder
from tests.support.planning import Sized, Unsized
from tests.support.resuming import Drawing, make, receive
from tests.support.scenario import run_scenario
from tests.test_epochs_resume import Run, planner

UNEVEN = ["pad", "drop", "keep"]


class TestShard:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 5])
    @pytest.mark.parametrize("count", [0, 1, 2, 5, 6, 7, 15])
    def test_parts(self, count, world_size):
        items = list(range(count))
        parts = {
            uneven: [Shard(rank, world_size, uneven).part(items) for rank in range(world_size)]
            for uneven in UNEVEN
        }
        assert parts["keep"] == [items[rank::world_size] for rank in range(world_size)]
        even = items[: count - count % world_size]
        assert parts["drop"] == [even[rank::world_size] for rank in range(world_size)]
        full = [items[i % count] for i in range(-(-count // world_size) * world_size)]
        assert parts["pad"] == [full[rank::world_size] for rank in range(world_size)]
        for uneven, of_ranks in parts.items():
            sizes = [Shard(rank, world_size, uneven).size(count) for rank in range(world_size)]
            assert sizes == [len(part) for part in of_ranks]

    def test_seeds_differ(self):
        seeds = {Shard(r, w, "pad").seed(5) for w in (1, 2, 3) for r in range(w)}
        assert len(seeds) == 6
        assert WHOLE.seed(5) == 5


class Distributed(types.ModuleType):
    def __init__(self, initialized: bool) -> None:
        super().__init__("torch.distributed")
        self.is_available = lambda: True
        self.is_initialized = lambda: initialized
        self.get_rank = lambda: 2
        self.get_world_size = lambda: 4


class TestArguments:
    def test_default(self, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(False))
        assert choose_shard(None, None, "pad", default=True) == (0, 1, "pad")
        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(True))
        assert choose_shard(None, None, "keep", default=True) == (2, 4, "keep")
        assert choose_shard(None, None, "keep", default=False) == (0, 1, "keep")
        assert choose_shard(0, 1, "pad", default=True) == (0, 1, "pad")
        assert choose_shard(1, 3, "drop", default=True) == (1, 3, "drop")
        assert choose_shard("env", None, "pad", default=True) == (1, 2, "pad")
        assert choose_shard("env", "env", "pad", default=False) == (1, 2, "pad")

    @pytest.mark.parametrize(
        ("rank", "world_size", "uneven", "text"),
        [
            (0, None, "pad", "rank and world_size go together, got 0 and None"),
            (None, 2, "pad", "rank and world_size go together, got None and 2"),
            (2, 2, "pad", "rank must be less than world_size=2, got 2"),
            (-1, 2, "pad", "rank must be at least 0, got -1"),
            (0, 0, "pad", "world_size must be at least 1, got 0"),
            ("env", 2, "pad", "both be 'env' or both be numbers, got 'env' and 2"),
            (0, 2, "even", "uneven must be 'pad', 'drop' or 'keep', got 'even'"),
        ],
    )
    def test_bad_values(self, rank, world_size, uneven, text):
        with pytest.raises(ValueError, match=text):
            TurboDataLoader(
                range(4), 2, Drawing(), 0, rank=rank, world_size=world_size, uneven=uneven
            )

    def test_bad_types(self):
        with pytest.raises(TypeError, match=r"rank must be an integer, got 0\.5"):
            choose_shard(0.5, 2, "pad", default=True)

    def test_a_sampler_may_deal_out_itself(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(True))
        assert make(shuffle=True)._planner.shard == (2, 4, "pad")
        assert make(sampler=range(9))._planner.shard == (0, 1, "pad")
        assert make(sampler=range(9), rank=1, world_size=2)._planner.shard == (1, 2, "pad")
        assert make(iterable=Unsized([1]))._planner.shard == (0, 1, "pad")

    def test_bad_environment(self, monkeypatch):
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(ValueError, match=r"variable RANK must be a number, got None: .*torchr"):
            choose_shard("env", None, "pad", default=True)
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ValueError, match="RANK must be less than WORLD_SIZE=2, got 3"):
            choose_shard("env", "env", "pad", default=True)

    def test_what_cannot_be_dealt_out(self):
        for options in ({"batch_sampler": [[1, 2]]}, {"iterable": Unsized([1, 2])}):
            with pytest.raises(ValueError, match=r"world_size=2 needs the indices .* part"):
                make(**{"iterable": range(4), **options}, rank=0, world_size=2)

    def test_a_shuffled_order_needs_the_seed(self):
        with pytest.raises(ValueError, match=r"world_size=2 needs seed="):
            make(shuffle=True, seed=None, rank=0, world_size=2)
        make(seed=None, rank=0, world_size=2)


# -- plans ----------------------------------------------------------------------------------


def ranks(world_size: int, n: int, batch_size: int, **options: Any) -> list[Run]:
    return [
        Run(planner(range(n), batch_size, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]


def flat(batches: list[list[int]]) -> list[int]:
    return [item for batch in batches for item in batch]


@pytest.mark.parametrize("uneven", UNEVEN)
@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 12, 13, 14, 100])
def test_each_rank_gets_its_interleaved_part(n, world_size, uneven):
    runs = ranks(world_size, n, 4, shuffle=True, seed=3, uneven=uneven)
    for epoch in range(2):
        order = ShuffledOrder(n, 3, epoch).indices(0, n).tolist()
        if uneven == "drop":
            order = order[: n - n % world_size]
        seen = []
        for rank, run in enumerate(runs):
            iterations = run.plans.iterations()
            run.open()
            batches = run.receive(100)
            part = order[rank::world_size]
            assert flat(batches)[: len(part)] == part
            assert len(flat(batches)) - len(part) == (
                uneven == "pad" and rank >= n % world_size > 0
            )
            assert len(batches) == iterations == run.plan.iterations
            assert all(len(batch) == 4 for batch in batches[:-1])
            seen.append(flat(batches))
        if uneven != "keep":
            assert len({len(items) for items in seen}) == 1
        repeats = Counter(flat(seen)) - Counter(order)
        assert repeats.total() == (-n % world_size if uneven == "pad" else 0)


@pytest.mark.parametrize("n", [1000, 2**20 + 1000])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_strides_of_an_order(n, step):
    order, whole = ShuffledOrder(n, 1, 0), ShuffledOrder(n, 1, 0).indices(0, n)
    for start in [*range(0, 900, 97), 0, 500, 3, n - 50, n - 1]:
        stop = min(start + 100, n)
        assert np.array_equal(order.indices(start, stop, step), whole[start:stop:step])
        assert np.array_equal(order.indices(start, stop), whole[start:stop])


@settings(max_examples=100)
@given(data=st.data())
def test_going_on_with_another_number_of_ranks(data):
    """Exactly the samples of the epoch that nobody has seen, then whole epochs."""
    draw = data.draw
    n = draw(st.integers(1, 60), "n")
    batch_size = draw(st.integers(1, 5), "batch_size")
    options: dict[str, Any] = {
        "uneven": draw(st.sampled_from(UNEVEN), "uneven"),
        "last_batch": draw(st.sampled_from(["keep", "discard", "rollover"]), "last_batch"),
    }
    if draw(st.booleans(), "sampler"):
        options["sampler"] = Sized(range(n)[::-1])
    else:
        options |= {"shuffle": True, "seed": 2}
    options["length"] = draw(st.none() | st.integers(1, 60), "length")
    worlds = draw(st.lists(st.integers(1, 4), min_size=2, max_size=4), "world sizes")
    stops = [draw(st.integers(1, 4), "stop") for _ in worlds]
    state = None
    seen: list[int] = []
    epoch = total = None
    for world_size, stop in zip(worlds, stops, strict=True):
        runs = ranks(world_size, n, batch_size, **options)
        for run in runs:
            if state is not None:
                run.plans.load_state_dict(state)
            run.open()
        if len({run.plan.epoch for run in runs}) > 1:
            # Ranks for which nothing is left begin with the next epoch.
            assert options["uneven"] == "keep"
            assert total is not None
            assert 0 < total - len(seen) < world_size
            return
        first = runs[0]
        if first.plan.epoch != epoch:
            one_pass = options["length"] is None and options["last_batch"] != "rollover"
            if total is not None and one_pass and options["uneven"] != "drop":
                # What did not fill a batch of every rank was discarded.
                limit = batch_size * world_size if options["last_batch"] == "discard" else 1
                assert 0 <= total - len(set(seen)) < limit
            epoch, seen = first.plan.epoch, []
        total = first.plan.total
        left = total - len(seen)
        if options["last_batch"] != "keep" and options["length"] is None:
            assert left % (batch_size * world_size) == 0
        got = [flat(run.receive(stop)) for run in runs]
        # Interleaved, they are what comes next of the common order.
        one = planner(range(n), 1, **{**options, "uneven": "keep", "length": None})
        if options["length"] is None and options["last_batch"] == "keep":
            for _ in range(epoch + 1):
                plan = one.open()
            order = [int(batch[0]) for batch in plan]
            expected = order[len(seen) : len(seen) + stop * batch_size * world_size]
            together = [item for row in zip_longest(got) for item in row]
            assert together[: len(expected)] == expected or options["uneven"] == "drop"
        new = min(left, stop * batch_size * world_size)
        sizes = [len(items) for items in got]
        if options["uneven"] == "keep":
            assert sum(sizes) == new
        else:
            assert len(set(sizes)) == 1
            assert abs(sum(sizes) - new) < world_size
        seen += [item for row in zip_longest(got) for item in row][:new]
        state = first.state() | {"seed": 2}
        for run, items in zip(runs, got, strict=True):
            if len(items) == sizes[0]:
                assert run.state() | {"seed": 2} == state


def next_of_all(worlds: list[tuple[int, int]], n: int, **options: Any) -> list[list[int]]:
    """What is received by so many ranks, of so many batches each; one state leads to the next."""
    state, received = None, []
    for world_size, count in worlds:
        runs = ranks(world_size, n, 1, **options)
        for run in runs:
            if state is not None:
                run.plans.load_state_dict(state)
            run.open()
        received.append(sorted(item for run in runs for item in flat(run.receive(count))))
        state = runs[0].state() | {"seed": 0}
    return received


def test_an_epoch_that_others_would_have_cut_short():
    """Each number of ranks discards what does not fill a batch of its own."""
    received = next_of_all([(1, 1), (4, 2), (1, 100)], 16, last_batch="discard")
    assert received == [[0], list(range(1, 9)), list(range(9, 16))]


def test_behind_the_last_batch_there_is_the_next_epoch():
    received = next_of_all([(4, 2), (4, 100)], 9, uneven="drop")
    assert received == [list(range(8)), list(range(8))]


def zip_longest(parts: list[list[int]]) -> list[list[int]]:
    """The rows of columns of unequal length."""
    longest = max(len(part) for part in parts)
    return [[part[i] for part in parts if i < len(part)] for i in range(longest)]


# -- loaders --------------------------------------------------------------------------------


@pytest.mark.parametrize("nworkers", [0, 2])
def test_loaders(nworkers):
    seen, draws = [], []
    for rank in range(3):
        with make(range(50), nworkers=nworkers, shuffle=True, rank=rank, world_size=3) as loader:
            assert len(loader) == 5
            got = receive(loader)
            assert [len(rows) for _, rows in got] == [4, 4, 4, 4, 1]
            seen += [row[0] for _, rows in got for row in rows]
            draws += [row[1] for _, rows in got for row in rows]
    assert sorted(Counter(seen) - Counter(range(50))) == [seen[16]]  # rank 2 needed one more
    assert len(set(draws)) == 51


def test_draws_go_on_with_the_same_ranks():
    options = {"iterable": range(50), "shuffle": True, "rank": 1, "world_size": 3}
    with make(**options) as loader:
        whole = receive(loader)
    with make(**options, nworkers=2) as loader:
        receive(loader, 2)
        state = loader.state_dict()
    with make(**options) as loader:
        loader.load_state_dict(state)
        assert receive(loader) == whole[2:]


# -- processes that torchrun has started ----------------------------------------------------


def rank_process(folder: str, number: int, rank: int, world_size: int, stops: list[Any]) -> None:
    """One rank of the run with this number."""
    import torch.distributed as dist

    store = f"file://{folder}/store{number}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    loader = make(range(100), 4, 2, shuffle=True, uneven="keep")
    state = Path(folder, "state.json")
    if number:
        loader.load_state_dict(json.loads(state.read_text()))
    with loader:
        items = [[row[0] for _, rows in receive(loader, stop) for row in rows] for stop in stops]
    everything: list[Any] = [None] * world_size
    dist.all_gather_object(everything, items)
    states: list[Any] = [None] * world_size
    dist.all_gather_object(states, loader.state_dict())
    if rank == 0:
        assert all(other["seed"] == states[0]["seed"] for other in states)
        assert all(other["given"] == states[0]["given"] for other in states if not other["over"])
        state.write_text(json.dumps(states[0]))
        Path(folder, f"items{number}.json").write_text(json.dumps(everything))
    dist.barrier()
    dist.destroy_process_group()


def start_ranks(folder: str, number: int, world_size: int, stops: list[Any]) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=rank_process, args=(folder, number, rank, world_size, stops))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * world_size


def test_gloo(tmp_path: Path) -> None:
    """Two ranks stop in the middle of an epoch; three finish it, and do another one."""
    pytest.importorskip("torch")
    runs = []
    for number, (world_size, stops) in enumerate([(2, [5]), (3, [None, None])]):
        run_scenario(start_ranks, str(tmp_path), number, world_size, stops, timeout=120).check()
        runs.append(json.loads((tmp_path / f"items{number}.json").read_text()))
    first, second = (ShuffledOrder(100, 7, epoch).indices(0, 100).tolist() for epoch in range(2))
    assert runs[0] == [[first[:40][rank::2]] for rank in range(2)]
    assert runs[1] == [[first[40:][rank::3], second[rank::3]] for rank in range(3)]
