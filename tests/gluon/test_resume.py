"""gluon's loader goes on from a state: the batches that would have followed, no others."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crumpets_like.gluon import BatchSampler, DataLoader, IntervalSampler, RandomSampler
from tests.support.gluon import CALLER, MODES, PROCESSES, ReadLog, settle
from tests.support.gluon import ORDERS as QUICK
from tests.support.going_on import receive, through_json
from tests.support.scenario import run_scenario
from tests.test_epochs_resume import SizedStateful, StatefulIterators


def make(dataset: Any = range(30), batch_size: int | None = 4, **options: Any) -> DataLoader:
    """Batches of 4 of 0 ... 29, shuffled."""
    if not {"shuffle", "sampler", "batch_sampler"} & options.keys():
        options["shuffle"] = True
    return DataLoader(np.arange(30) if dataset == range(30) else dataset, batch_size, **options)


def passes(count: int, **options: Any) -> list[list[Any]]:
    """Passes of a run that never stops."""
    loader = make(**options)
    return [receive(loader) for _ in range(count)]


def stop(most: int | None, before: int = 0, **options: Any) -> Any:
    """The state of a run that stops in a pass, `before` whole ones later."""
    loader = make(**options)
    for _ in range(before):
        receive(loader)
    receive(loader, most)
    return through_json(loader)


def go_on(state: Any, count: int = 1, **options: Any) -> list[list[Any]]:
    """Passes of a run that begins with a state, though others have drawn before."""
    np.random.seed(99)
    loader = make(**options)
    loader.load_state_dict(state)
    if not options.get("auto_reload"):  # which has begun the pass
        np.random.random(3)
    return [receive(loader) for _ in range(count)]


# -- new processes -------------------------------------------------------------------------


def one_run(path: str, most: int | None, options: dict[str, Any]) -> None:
    """What one process of a training does: resume, receive, save."""
    np.random.seed(5)
    loader = make(range(100), **options)
    if Path(path).exists():
        np.random.seed(77)
        loader.load_state_dict(json.loads(Path(path).read_text()))
    print(json.dumps(receive(loader, most)))
    Path(path).write_text(json.dumps(loader.state_dict()))


def test_new_processes(tmp_path: Path) -> None:
    """Batches 0-9, 10-14, 15-24, 25-49, of 0 and of 4 workers."""
    path = tmp_path / "state.json"

    def run(most: int | None, **options: Any) -> Any:
        return json.loads(run_scenario(one_run, str(path), most, options).check().stdout)

    np.random.seed(5)
    first, second = passes(2, dataset=range(100))
    assert run(10, num_workers=4) == first[:10]
    assert run(5) == first[10:15]
    assert run(None, num_workers=4, auto_reload=True, prefetch=1) == first[15:]
    assert run(None, num_workers=2, thread_pool=True) == second


# -- every order, in the middle of a pass and at its end -----------------------------------


class Lazy:
    """Draws each index when it is asked for it."""

    def __iter__(self) -> Any:
        for _ in range(30):
            yield int(np.random.randint(30))

    def __len__(self) -> int:
        return 30


ORDERS: dict[str, Any] = {
    "in order": lambda: {"shuffle": False},
    "shuffled": dict,
    "discard": lambda: {"last_batch": "discard"},
    "rollover": lambda: {"last_batch": "rollover"},
    "rollover, few": lambda: {"last_batch": "rollover", "dataset": [1, 2, 3], "batch_size": 7},
    "rollover, one": lambda: {"last_batch": "rollover", "dataset": [1], "batch_size": 3},
    "intervals": lambda: {"sampler": IntervalSampler(30, 7), "last_batch": "rollover"},
    "batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(30), 7, "rollover"),
        "batch_size": None,
    },
    "lists": lambda: {"batch_sampler": [[i, i + 1] for i in range(29)], "batch_size": None},
    "lazy": lambda: {"sampler": Lazy()},
}
RUNS = [
    pytest.param(
        order,
        auto_reload,
        mode.values[0],
        id=f"{order} {auto_reload} {mode.id}",
        marks=[] if mode.id == "caller" or order == "rollover" else pytest.mark.matrix,
    )
    for order in ORDERS
    for auto_reload in (False, True)
    for mode in MODES
]


@pytest.mark.parametrize(("order", "auto_reload", "mode"), RUNS)
def test_orders(order: str, auto_reload: bool, mode: Any) -> None:
    np.random.seed(5)
    whole = passes(5, **ORDERS[order]())
    for most in (3, None):
        np.random.seed(5)
        state = stop(most, 1, auto_reload=auto_reload, **mode, **ORDERS[order]())
        rest = whole[1][3:] if most and len(whole[1]) > 3 else []
        following = go_on(state, 4, auto_reload=not auto_reload, **mode, **ORDERS[order]())
        expected = [rest, *whole[2:]] if rest else whole[2:]
        if order == "lazy" and mode:  # which had drawn ahead
            expected, following = expected[:1], following[:1]
        assert following[: len(expected)] == expected


@pytest.mark.parametrize("mode", QUICK)
def test_len_and_rollover(mode: Any) -> None:
    np.random.seed(5)
    loader = make(range(10), last_batch="rollover", **mode)
    assert len(loader) == 2
    receive(loader)
    assert len(loader) == 3
    state = through_json(loader)
    rest = receive(loader)
    other = make(range(10), last_batch="rollover")
    other.load_state_dict(state)
    assert len(other) == 3
    assert receive(other) == rest
    assert len(other) == len(loader)


# -- which pass ----------------------------------------------------------------------------


class TestPlaces:
    @pytest.mark.parametrize("mode", QUICK)
    @pytest.mark.parametrize("auto_reload", [False, True])
    def test_nothing_received(self, mode: Any, auto_reload: bool) -> None:
        options = {"auto_reload": auto_reload, **mode}
        np.random.seed(5)
        whole = passes(2)
        np.random.seed(5)
        loader = make(**options)
        iterator = iter(loader)
        np.random.random()  # the prefetched pass has drawn already
        expected = whole[0] if auto_reload and mode else None
        state = through_json(loader)
        del iterator
        rest = receive(loader)
        assert expected in (None, rest)
        assert go_on(state, **options) == [rest]

    @pytest.mark.parametrize("mode", QUICK)
    def test_it_is_that_of_the_pass_begun_last(self, mode: Any) -> None:
        loader = make(**mode)
        first, second = iter(loader), iter(loader)
        receive(second, 2)
        receive(first, 3)  # begins now
        receive(second, 4)
        state = through_json(loader)
        rest = receive(first)
        assert go_on(state, **mode) == [rest]

    def test_a_pass_requested_by_hand_follows(self) -> None:
        np.random.seed(5)
        loader = make(**PROCESSES)
        receive(iter(loader), 3)
        loader.refresh()
        state = through_json(loader)
        following = receive(loader)
        assert go_on(state, 2, **PROCESSES)[1] == following

    @pytest.mark.parametrize("mode", QUICK)
    def test_a_loaded_state_serves_again(self, mode: Any) -> None:
        np.random.seed(5)
        (whole,) = passes(1)
        np.random.seed(5)
        loader = make(**mode)
        receive(loader, 6)
        state = loader.state_dict()
        old = iter(loader)
        next(old)
        for _ in range(2):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert receive(loader) == whole[6:]
        assert len(list(old)) == 7

    @pytest.mark.parametrize("mode", QUICK)
    def test_errors_are_no_ends(self, mode: Any) -> None:
        np.random.seed(5)
        (whole,) = passes(1)

        def fail(samples: list[Any]) -> Any:
            if whole[3][0] in samples:
                raise KeyError(3)
            return np.array(samples)

        np.random.seed(5)
        loader = make(batchify_fn=fail, **mode)
        iterator = iter(loader)
        receive(iterator, 3)
        with pytest.raises(KeyError):
            next(iterator)
        assert list(iterator) == []
        assert go_on(through_json(loader), **mode) == [whole[3:]]


def test_what_the_caller_draws_goes_on() -> None:
    """Augmentation in the calling thread draws from the generator of the order."""

    def run(loader: DataLoader, most: int) -> list[Any]:
        seen: list[Any] = []
        while len(seen) < most:
            for batch in loader:
                seen.append((batch.tolist(), np.random.random(), np.random.normal()))
                if len(seen) == most:
                    break
        return seen

    np.random.seed(5)
    whole = run(make(), 20)
    np.random.seed(5)
    loader = make()
    assert run(loader, 3) == whole[:3]
    state = through_json(loader)
    np.random.seed(6)
    loader = make()
    loader.load_state_dict(state)
    assert run(loader, 17) == whole[3:]


def test_no_data_is_read_for_what_is_skipped(tmp_path: Path) -> None:
    np.random.seed(5)
    state = stop(5)
    log = ReadLog(tmp_path / "log")
    (rest,) = go_on(state, batchify_fn=lambda samples: np.array([log(int(s)) for s in samples]))
    assert [number for batch in rest for number in batch] == log.numbers()


def test_a_loaded_pass_is_requested_in_place_of_the_one_ahead(tmp_path: Path) -> None:
    np.random.seed(5)
    state = stop(5)
    log = ReadLog(tmp_path / "log")
    loader = make(
        batchify_fn=lambda samples: np.array([log(int(s)) for s in samples]),
        auto_reload=True,
        **PROCESSES,
    )
    settle(loader)
    before = len(log.numbers())
    loader.load_state_dict(state)
    settle(loader)
    assert len(log.numbers()) - before == 10  # 2 batches of 4, and one of 2
    assert loader.state_dict() == state


# -- samplers with a state -----------------------------------------------------------------


def stateful_sampler() -> Any:
    return {"sampler": SizedStateful(30)}


def stateful_rollover() -> Any:
    return {"sampler": SizedStateful(30), "last_batch": "rollover"}


def stateful_batch_sampler() -> Any:
    batches = [[i, i + 1] for i in range(0, 30, 2)]
    return {"batch_sampler": StatefulIterators(batches), "batch_size": None}


@pytest.mark.parametrize("mode", [CALLER, pytest.param(PROCESSES, marks=pytest.mark.matrix)])
@pytest.mark.parametrize(
    ("sampler", "reads"),
    [(stateful_sampler, 10), (stateful_rollover, 12), (stateful_batch_sampler, 10)],
)
def test_a_stateful_sampler_is_restored(sampler: Any, reads: int, mode: Any) -> None:
    whole = passes(3, **sampler())
    state = stop(5, 1, **mode, **sampler())
    options = sampler()
    assert go_on(state, 2, **mode, **options) == [whole[1][5:], whole[2]]
    one = options.get("sampler") or options["batch_sampler"]
    assert one.read == reads + (15 if "batch_sampler" in options else 30)
    state = stop(None, 1, **mode, **sampler())
    assert go_on(state, **mode, **sampler()) == [whole[2]]


# -- forms, and what is refused ------------------------------------------------------------


def test_it_travels_and_is_small() -> None:
    np.random.seed(5)
    (whole,) = passes(1)
    np.random.seed(5)
    loader = make()
    receive(loader, 5)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    assert len(json.dumps(state)) < 5_000
    other = make()
    other.load_state_dict(state)
    assert receive(pickle.loads(pickle.dumps(other))) == whole[5:]
    assert receive(other) == whole[5:]
    assert len(json.dumps(stop(5, dataset=range(1_000_000)))) < 5_000


REFUSED: dict[str, tuple[Any, str]] = {
    "dataset": ({"dataset": range(29)}, "dataset_length=30, but this one has dataset_length=29"),
    "batch size": ({"batch_size": 5}, "batch_size=4, but this one has batch_size=5"),
    "order": ({"shuffle": False}, "sampler='RandomSampler', .* sampler='SequentialSampler'"),
    "last_batch": ({"last_batch": "rollover"}, "last_batch='keep', .* last_batch='rollover'"),
}


class TestRefused:
    @pytest.mark.parametrize("kind", REFUSED)
    def test_another_loader(self, kind: str) -> None:
        options, text = REFUSED[kind]
        state, loader = stop(3), make(**options)
        before = loader.state_dict()
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(state)
        assert loader.state_dict() == before

    def test_something_else(self) -> None:
        with pytest.raises(TypeError, match="must be a mapping"):
            make().load_state_dict([1])  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="state is none of this kind of loader: it has no"):
            make().load_state_dict({"version": 1})
        with pytest.raises(ValueError, match="holds no states of generators"):
            make().load_state_dict({**stop(3), "generators": {"numpy": ["eJw", 1, 2, 3]}})
