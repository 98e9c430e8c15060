"""A loader goes on from a state bit by bit: in new processes, with other workers, other options."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like import LoaderClosed, TurboDataLoader, Worker
from crumpets_like.sampling import BLOCK, _Feistel
from tests.support.loading import START_METHODS
from tests.support.planning import Unsized
from tests.support.resuming import all_of, make, receive, through_json
from tests.support.scenario import run_scenario
from tests.test_epochs_resume import Stateful

# -- new processes -------------------------------------------------------------------------


def one_run(path: str, stop: int | None, options: dict[str, Any]) -> None:
    """What one process of a training does: resume, receive, save."""
    loader = make(shuffle=True, **options)
    if Path(path).exists():
        loader.load_state_dict(json.loads(Path(path).read_text()))
    with loader:
        print(json.dumps(receive(loader, stop)))
        Path(path).write_text(json.dumps(loader.state_dict()))


def new_process(path: Path, stop: int | None, **options: Any) -> list[Any]:
    result = run_scenario(one_run, str(path), stop, options).check()
    received: list[Any] = json.loads(result.stdout)
    return received


def test_new_processes(tmp_path: Path) -> None:
    """0 and 4 workers, other start methods, another prefetch: batches 0-9, 10-14, 15-24, 25-49."""
    first, second, _ = all_of(3, shuffle=True)
    path = tmp_path / "state.json"
    assert new_process(path, 10, nworkers=4) == first[:10]
    assert new_process(path, 5) == first[10:15]
    kept = path.read_text()
    assert new_process(path, None, nworkers=4, start_method="forkserver", prefetch=1) == first[15:]
    assert new_process(path, None, nworkers=2, start_method="thread") == second
    # The same state serves again.
    with make(shuffle=True, nworkers=1, num_mini_batches=2, shared_memory=False) as loader:
        loader.load_state_dict(json.loads(kept))
        assert receive(loader) == first[15:]


@pytest.mark.matrix
@pytest.mark.parametrize("after", START_METHODS)
@pytest.mark.parametrize("before", START_METHODS)
def test_other_start_methods(before: str, after: str, tmp_path: Path) -> None:
    first, second = all_of(2, shuffle=True)
    path = tmp_path / "state.json"
    assert new_process(path, 10, nworkers=2, start_method=before) == first[:10]
    assert new_process(path, None, nworkers=3, start_method=after) == first[10:]
    assert new_process(path, None, nworkers=1, start_method=before) == second


# -- everything that an epoch can be --------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "rollover": {"shuffle": True, "last_batch": "rollover"},
    "discard": {"last_batch": "discard"},
    "virtual epochs": {"shuffle": True, "length": 28},
    "longer than a pass": {"length": 70},
    "mini-batches": {"shuffle": True, "num_mini_batches": 2},
}


@pytest.mark.parametrize("workers", [(0, 0), (0, 3), (3, 0)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_epochs(kind: str, workers: tuple[int, int]) -> None:
    options = {"iterable": range(30), "batch_size": 4, **KINDS[kind]}
    whole = all_of(3, **options)
    for stop in [3] if any(workers) else [0, 1, 3, len(whole[1])]:
        with make(nworkers=workers[0], **options) as loader:
            receive(loader)
            assert receive(loader, stop) == whole[1][:stop]
            if stop:
                state = through_json(loader)
            else:
                iterator = iter(loader)  # opens the third epoch: none of it is received
                state = through_json(loader)
                del iterator
        with make(nworkers=workers[1], **options) as loader:
            loader.load_state_dict(state)
            rest = whole[1][stop:] if stop else whole[2]
            ahead = 0 if stop else len(whole[1])  # batches that the run above did not receive
            if not rest:
                rest = whole[2]
            got = receive(loader)
            assert [rows for _, rows in got] == [rows for _, rows in rest]
            assert [number + ahead for number, _ in got] == [number for number, _ in rest]


def test_epoch_iterations_are_kept() -> None:
    def run(loader: TurboDataLoader) -> None:
        loader.set_epoch_iterations(6)

    whole = make(shuffle=True)
    run(whole)
    with whole, make(shuffle=True, nworkers=2) as loader, make(shuffle=True) as other:
        epochs = [receive(whole) for _ in range(3)]
        assert [len(epoch) for epoch in epochs] == [6, 6, 6]
        run(loader)
        receive(loader)
        assert receive(loader, 2) == epochs[1][:2]
        loader.set_epoch_iterations(9)  # acts on the next epoch, here and there
        other.load_state_dict(through_json(loader))
        assert len(other) == 6
        assert receive(other) == epochs[1][2:]
        assert len(other) == 9
        assert len(receive(other)) == 9


@pytest.mark.parametrize("nworkers", [0, 3])
def test_breaks_before(nworkers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "nworkers": nworkers}
    with make(shuffle=True) as whole, make(**options) as loader:
        for run in (whole, loader):
            receive(run, 3)
            receive(run, 4)
        expected = receive(whole)
        assert receive(loader, 5) == expected[:5]
        state = through_json(loader)
        with make(**options) as other:
            other.load_state_dict(state)
            assert receive(other) == expected[5:]
            assert receive(other) == receive(whole)
        assert receive(loader) != expected[5:]  # in the same process a `for` is a new epoch


class Failing(Worker):
    def process(self, sample: int) -> dict[str, Any]:
        if sample % 5 == 0 or 40 <= sample < 48:
            raise ValueError(sample)
        return {"item": sample, "draw": self.rng.random(), "epoch": self.epoch}


@pytest.mark.parametrize("workers", [(0, 2), (2, 0)])
def test_skipped_samples(workers: tuple[int, int]) -> None:
    def fail(nworkers: int) -> TurboDataLoader:
        return TurboDataLoader(
            range(60), 4, Failing(), nworkers, seed=1, on_error="skip", start_method="fork"
        )

    with fail(0) as whole:
        expected = receive(whole)
    assert len(expected) == 13  # batches 10 and 11 have no sample left
    for stop in (3, 9, 10, 11):
        with fail(workers[0]) as loader:
            assert receive(loader, stop) == expected[:stop]
            state = through_json(loader)
        with fail(workers[1]) as loader:
            loader.load_state_dict(state)
            assert receive(loader) == expected[stop:]


@pytest.mark.parametrize("nworkers", [0, 2])
def test_a_sample_that_failed_is_tried_again(nworkers: int) -> None:
    def fail(iterable: Any) -> TurboDataLoader:
        return TurboDataLoader(iterable, 4, Failing(), nworkers, seed=1, start_method="fork")

    with fail([1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]) as loader:
        with pytest.raises(ValueError, match="10"):
            receive(loader)
        state = through_json(loader)
    with fail([1, 2, 3, 4, 6, 7, 8, 9, 11, 11, 12, 13]) as loader:
        loader.load_state_dict(state)
        (only,) = receive(loader)
        assert only[0] == 2
        assert [row[0] for row in only[1]] == [11, 11, 12, 13]


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    batch_size=st.integers(1, 8),
    last_batch=st.sampled_from(["keep", "discard", "rollover"]),
    length=st.none() | st.integers(1, 60),
    shuffle=st.booleans(),
    stops=st.lists(st.integers(0, 8), min_size=1, max_size=5),
)
def test_any_stops_make_no_difference(n, batch_size, last_batch, length, shuffle, stops):
    options = {
        "iterable": range(n),
        "batch_size": batch_size,
        "last_batch": last_batch,
        "length": length,
        "shuffle": shuffle,
    }
    epochs: list[list[Any]] = []
    state = None
    received: list[list[Any]] = []
    for stop in stops:
        with make(**options) as loader:
            if state is not None:
                loader.load_state_dict(state)
            received.append(receive(loader, stop) if stop else receive(loader))
            state = through_json(loader)
    flat = [batch for part in received for batch in part]
    with make(**options) as loader:
        for _ in range(len(stops)):
            epochs.append(receive(loader))
    assert flat == [batch for epoch in epochs for batch in epoch][: len(flat)]


# -- what the state counts ------------------------------------------------------------------


@pytest.mark.parametrize("nworkers", [0, 4])
def test_counts_what_was_received(nworkers: int) -> None:
    with make(nworkers=nworkers) as loader:
        fresh = loader.state_dict()
        assert (fresh["epochs"], fresh["given"], fresh["iterations"]) == (0, 0, 0)
        for count, _ in enumerate(loader, 1):
            state = loader.state_dict()
            assert (state["given"], state["iterations"]) == (4 * count, count)
            assert state["epochs"] == 1  # also when the next one is prefetched
        assert loader.state_dict() == state
    assert loader.state_dict() == state  # a loader that is stopped still knows


def test_a_state_that_nobody_has_gone_on_from_stays() -> None:
    with make() as loader:
        receive(loader, 3)
        state = loader.state_dict()
        receive(loader)
    other = make()
    other.load_state_dict(state)
    assert other.state_dict() == state
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert loader.iterations == 3


@pytest.mark.parametrize("nworkers", [0, 2])
def test_loading_while_it_runs(nworkers: int) -> None:
    with make(shuffle=True, nworkers=nworkers) as loader:
        whole = receive(loader)
        start = iter(loader)
        next(start)
        state = loader.state_dict()
        following = receive(loader)
        loader.load_state_dict(state)
        second = receive(loader)
        assert len(second) == 24
        assert [row[0] for _, rows in second for row in rows] != [
            row[0] for _, rows in following[1:] for row in rows
        ]
        loader.load_state_dict({**state, **make(shuffle=True).state_dict()})
        with pytest.raises(LoaderClosed, match="newer one"):
            next(start)
        assert receive(loader) == whole


def test_long_data_sets_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    permute = _Feistel.__call__

    def count(self: Any, positions: Any) -> Any:
        computed.append(len(positions))
        return permute(self, positions)

    state = make(range(10**9), 1000, shuffle=True).state_dict()
    size = len(json.dumps(state))
    state |= {"epochs": 1, "iterations": 900_000, "total": 10**9, "left": 0, "next_pass": 1}
    state |= {"given": 9 * 10**8, "position": 9 * 10**8, "offset": 9 * 10**8}
    assert len(json.dumps(state)) < size + 100
    monkeypatch.setattr(_Feistel, "__call__", count)
    with make(range(10**9), 1000, shuffle=True) as loader:
        loader.load_state_dict(state)
        (only,) = receive(loader, 1)
        assert loader.state_dict()["given"] == 9 * 10**8 + 1000
    assert only[0] == 900_000
    assert sum(computed) <= BLOCK


# -- seeds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("nworkers", [0, 2])
def test_without_a_seed_the_state_brings_it(nworkers: int, started: bool) -> None:
    options: dict[str, Any] = {"seed": None, "shuffle": True, "nworkers": nworkers}
    with make(**options) as loader:
        receive(loader, 10)
        state = through_json(loader)
        loader.load_state_dict(state)
        rest = receive(loader)
    with make(**{**options, "seed": state["seed"]}) as loader:
        assert receive(loader)[10:] == rest
    loader = make(**options)
    assert loader.state_dict()["seed"] != state["seed"]
    if started:
        loader.start()
        receive(loader, 2)
    loader.load_state_dict(state)
    with loader:
        assert receive(loader) == rest


# -- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"iterable": range(99)}, "dataset_length=100, .* dataset_length=99"),
        ({"batch_size": 5}, "batch_size=4, .* batch_size=5"),
        ({"seed": 8}, "seed=7, .* seed=8"),
        ({"shuffle": False}, "shuffle=True, .* shuffle=False"),
        ({"last_batch": "discard"}, "last_batch='keep', .* last_batch='discard'"),
        ({"shuffle": False, "sampler": range(100)}, "source='iterable', .* source='sampler'"),
        ({"shuffle": False, "iterable": Unsized([])}, "source='iterable', .* source='samples'"),
    ],
)
def test_another_loader(changed: dict[str, Any], text: str) -> None:
    with make(shuffle=True) as loader:
        receive(loader, 3)
        state = loader.state_dict()
    with make(**{"shuffle": True, **changed}) as loader:
        before = loader.state_dict()
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(state)
        assert loader.state_dict() == before


def test_another_length_of_a_sampler() -> None:
    state = make(sampler=range(50)).state_dict()
    with pytest.raises(ValueError, match=r"source_length=50, .* source_length=40"):
        make(sampler=range(40)).load_state_dict(state)


def test_no_state() -> None:
    loader = make()
    state = loader.state_dict()
    with pytest.raises(ValueError, match=r"version=2, .* version=1"):
        loader.load_state_dict({**state, "version": 2})
    with pytest.raises(ValueError, match=r"version=2, .* version=1"):
        loader.load_state_dict({"version": 2})
    with pytest.raises(ValueError, match=r"none of this kind of loader: it has no batch_size, "):
        loader.load_state_dict({})
    with pytest.raises(ValueError, match=r"has no given"):
        loader.load_state_dict({key: state[key] for key in state if key != "given"})
    with pytest.raises(TypeError, match=r"state must be a mapping .* got \[1\]"):
        loader.load_state_dict([1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"state\['given'\] must be an integer, got '3'"):
        loader.load_state_dict({**state, "given": "3"})
    with pytest.raises(ValueError, match=r"state\['iterations'\] must be at least 0, got -1"):
        loader.load_state_dict({**state, "iterations": -1})


def test_out_of_order() -> None:
    with make(nworkers=2, in_order=False) as loader:
        receive(loader, 3)
        with pytest.raises(ValueError, match=r"12 samples of epoch 0 .* in_order=False"):
            loader.state_dict()
        receive(loader)
        state = through_json(loader)
    with make() as loader:
        loader.load_state_dict(state)
        assert [row[2] for _, rows in receive(loader) for row in rows] == [2] * 100


# -- ways to keep a state -------------------------------------------------------------------


def test_pickle() -> None:
    with make() as loader:
        receive(loader, 10)
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        expected = through_json(loader)
    assert state == expected


def test_torch_save(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = all_of(1, shuffle=True)[0]
    with make(shuffle=True) as loader:
        receive(loader, 10)
        torch.save({"loader": loader.state_dict()}, tmp_path / "checkpoint.pt")
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    with make(shuffle=True) as loader:
        loader.load_state_dict(checkpoint["loader"])
        assert receive(loader) == whole[10:]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("sampler", [None, Stateful])
def test_distributed_checkpoint(tmp_path: Path, sampler: Any) -> None:
    """It asks a fresh loader for its state, and fills in the values that it has saved."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    stateful = pytest.importorskip("torch.distributed.checkpoint.stateful")

    def loader() -> TurboDataLoader:
        return make(sampler=sampler(100)) if sampler else make(shuffle=True)

    with loader() as whole:
        expected = receive(whole)
    with loader() as first:
        receive(first, 10)
        assert isinstance(first, stateful.Stateful)
        checkpoint.save({"loader": first}, checkpoint_id=tmp_path / "saved")
    with loader() as second:
        checkpoint.load({"loader": second}, checkpoint_id=tmp_path / "saved")
        assert receive(second) == expected[10:]
