"""The drop-in loader goes on from a state: the batches that would have followed, no others."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from crumpets_like.torch import DataLoader  # noqa: E402
from tests.support.dropin import Made, Numbers, forked  # noqa: E402
from tests.support.going_on import receive, through_json  # noqa: E402
from tests.support.scenario import run_scenario  # noqa: E402
from tests.test_epochs_resume import SizedStateful, StatefulIterators  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def draw(index: int) -> tuple[int, float, float, float]:
    return index, float(torch.rand(())), random.random(), np.random.random()


def make(num_workers: int = 0, dataset: Any = None, **options: Any) -> Any:
    """Batches of 4 of 0 ... 99, shuffled, without workers that the caller has to close."""
    if dataset is None:
        dataset = Made(length=100)
    options = {"batch_size": 4, **options}
    if not {"shuffle", "sampler", "batch_sampler"} & options.keys():
        options["shuffle"] = not isinstance(dataset, data.IterableDataset)
    if num_workers:
        return forked(dataset, num_workers, **options)
    return DataLoader(dataset, **options)


def passes(count: int, num_workers: int = 0, **options: Any) -> list[list[Any]]:
    """Passes of a run that never stops."""
    loader = make(num_workers, **options)
    try:
        return [receive(loader) for _ in range(count)]
    finally:
        loader.close()


def go_on(state: Any, num_workers: int = 0, count: int = 1, **options: Any) -> list[list[Any]]:
    """Passes of a run that begins with a state, though others have drawn before."""
    torch.manual_seed(99)
    loader = make(num_workers, **options)
    try:
        loader.load_state_dict(state)
        torch.rand(3)
        return [receive(loader) for _ in range(count)]
    finally:
        loader.close()


def stop(most: int | None, num_workers: int = 0, before: int = 0, **options: Any) -> Any:
    """The state of a run that stops in a pass, `before` whole ones later."""
    loader = make(num_workers, **options)
    try:
        for _ in range(before):
            receive(loader)
        receive(loader, most)
        return through_json(loader)
    finally:
        loader.close()


# -- new processes -------------------------------------------------------------------------


def one_run(path: str, most: int | None, num_workers: int, options: dict[str, Any]) -> None:
    """What one process of a training does: resume, receive, save."""
    torch.manual_seed(5)
    loader = make(num_workers, Made(draw, 100), seed_globals=True, **options)
    if Path(path).exists():
        torch.manual_seed(77)
        loader.load_state_dict(json.loads(Path(path).read_text()))
    print(json.dumps(receive(loader, most)))
    Path(path).write_text(json.dumps(loader.state_dict()))
    loader.close()


def test_new_processes(tmp_path: Path) -> None:
    """Batches 0-9, 10-14, 15-24, 25-49, of 0 and of 4 workers, with all that they draw."""
    path = tmp_path / "state.json"

    def run(most: int | None, num_workers: int, **options: Any) -> Any:
        return json.loads(
            run_scenario(one_run, str(path), most, num_workers, options).check().stdout
        )

    torch.manual_seed(5)
    first, second = passes(2, dataset=Made(draw, 100), seed_globals=True)
    assert run(10, 4) == first[:10]
    assert run(5, 0) == first[10:15]
    assert run(None, 4, prefetch_factor=1) == first[15:]
    assert run(None, 2, prefetch_factor=5) == second


# -- what an order may be drawn from -------------------------------------------------------


class Lazy(data.Sampler[int]):
    """Draws each index when it is asked for it."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __iter__(self) -> Any:
        for _ in range(40):
            yield self.draw()

    def __len__(self) -> int:
        return 40


class Eager(Lazy):
    """Draws as soon as it is iterated, and so twice where there are workers."""

    def __iter__(self) -> Any:
        return iter([self.draw() for _ in range(40)])


def torch_draw() -> int:
    return int(torch.randint(100, ()))


def numpy_draw() -> int:
    return int(np.random.randint(100))


def python_draw() -> int:
    return random.randrange(100)


def own_generator() -> Any:
    return torch.Generator().manual_seed(3)


def replacement() -> Any:
    return data.RandomSampler(range(100), True, 300, own_generator())


def weighted() -> Any:
    return data.WeightedRandomSampler(range(1, 101), 60, generator=own_generator())


def several_passes() -> Any:
    return data.RandomSampler(range(30), num_samples=100, generator=own_generator())


def buckets() -> Any:
    return data.BatchSampler(several_passes(), 7, True)


ORDERS: dict[str, Any] = {
    "sequential": lambda: {"shuffle": False},
    "shuffled": dict,
    "generator": lambda: {"generator": own_generator()},
    "last batch": lambda: {"batch_size": 7},
    "drop_last": lambda: {"batch_size": 7, "drop_last": True},
    "replacement": lambda: {"sampler": replacement()},
    "weighted": lambda: {"sampler": weighted()},
    "several passes": lambda: {"sampler": several_passes()},
    "batch sampler": lambda: {"batch_sampler": buckets(), "batch_size": 1},
    "no batches": lambda: {"batch_size": None},
    "a list": lambda: {"sampler": [3 * i % 50 for i in range(50)]},
    **{
        f"{kind.__name__} {one.__name__}": lambda kind=kind, one=one: {"sampler": kind(one)}
        for kind in (Lazy, Eager)
        for one in (torch_draw, numpy_draw, python_draw)
    },
    "eager alone": lambda: {"sampler": Eager(torch_draw), "batch_size": None},
}


def seed_all() -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)


RUNS = [
    pytest.param(
        order, *workers, marks=[] if quick else pytest.mark.matrix, id=f"{order} {workers}"
    )
    for order in ORDERS
    for workers in ((0, 0), (0, 2), (2, 0), (2, 1))
    for quick in [
        not any(workers)
        or (order in ("generator", "Eager torch_draw") and not all(workers))
        or (order == "eager alone" and all(workers))
    ]
]


@pytest.mark.parametrize(("order", "before", "after"), RUNS)
def test_orders(order: str, before: int, after: int) -> None:
    """In the middle of the second pass, and at its end."""
    seed_all()
    whole = passes(3, before, **ORDERS[order]())
    seed_all()
    state = stop(3, before, before=1, **ORDERS[order]())
    rest = go_on(state, after, **ORDERS[order]())
    assert rest == [whole[1][3:]]
    seed_all()
    state = stop(None, before, before=1, **ORDERS[order]())
    assert go_on(state, before, **ORDERS[order]()) == [whole[2]]


@pytest.mark.parametrize("order", ["shuffled", "generator", "replacement", "Lazy torch_draw"])
def test_the_passes_that_follow(order: str) -> None:
    seed_all()
    whole = passes(4, **ORDERS[order]())
    seed_all()
    state = stop(3, before=1, **ORDERS[order]())
    assert go_on(state, count=3, **ORDERS[order]()) == [whole[1][3:], *whole[2:]]


def test_what_the_caller_draws_goes_on() -> None:
    """A model's draws are not those of the order, and both go on as they would have."""
    torch.manual_seed(5)
    loader, seen = make(), []
    for _ in range(3):
        for batch in loader:
            seen.append((batch.tolist(), float(torch.rand(()))))
    torch.manual_seed(5)
    loader, done = make(), []
    for batch in loader:
        done.append((batch.tolist(), float(torch.rand(()))))
        if len(done) == 7:
            break
    state = through_json(loader)
    torch.manual_seed(1)
    loader = make()
    loader.load_state_dict(state)
    for _ in range(3):
        for batch in loader:
            done.append((batch.tolist(), float(torch.rand(()))))
    assert done == seen


@pytest.mark.parametrize("before", [0, 5, 25])
def test_again_after_one_batch(before: int) -> None:
    """The first batch of a pass that goes on is followed by the next one."""
    state = stop(before, shuffle=True)
    expected = go_on(state, shuffle=True)[0]
    loader = make(shuffle=True)
    loader.load_state_dict(state)
    assert receive(iter(loader), 1) == expected[:1]
    assert go_on(loader.state_dict(), shuffle=True)[0] == expected[1:]


def test_a_used_loader_with_persistent_workers_begins_anew() -> None:
    loader = make(1, shuffle=True, persistent_workers=True)
    state = loader.state_dict()
    first = receive(loader, 100)
    loader.load_state_dict(state)
    assert receive(loader, 100) == first
    loader.close()


def test_persistent_workers() -> None:
    options = {"persistent_workers": True, "dataset": Made(draw, 40), "seed_globals": True}
    torch.manual_seed(5)
    whole = passes(4, 1, **options)
    torch.manual_seed(5)
    state = stop(3, 1, before=1, **options)
    assert go_on(state, 2, count=3, **options) == [whole[1][3:], *whole[2:]]
    torch.manual_seed(5)
    state = stop(None, 1, before=1, **options)
    assert go_on(state, 2, count=2, **options) == whole[2:]


# -- which pass, and where in it -----------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
class TestPlaces:
    def test_nothing_received(self, num_workers: int) -> None:
        torch.manual_seed(5)
        whole = passes(2, num_workers)
        torch.manual_seed(5)
        loader = make(num_workers)
        fresh = through_json(loader)
        iterator = iter(loader)
        begun = through_json(loader)
        del iterator
        loader.close()
        assert go_on(fresh, num_workers, 2) == whole
        assert go_on(begun, num_workers, 2) == whole

    def test_behind_the_last_batch_it_is_the_next_pass(self, num_workers: int) -> None:
        """Though the caller has not seen the end."""
        torch.manual_seed(5)
        whole = passes(2, num_workers)
        torch.manual_seed(5)
        assert go_on(stop(25, num_workers), num_workers) == [whole[1]]

    def test_it_is_that_of_the_newest_iterator(self, num_workers: int) -> None:
        torch.manual_seed(5)
        loader = make(num_workers)
        first = iter(loader)
        assert len(receive(first, 3)) == 3
        second = iter(loader)
        assert len(receive(second, 5)) == 5
        receive(first, 4)
        state = through_json(loader)
        rest = [batch.tolist() for batch in second]
        del first, second
        loader.close()
        assert go_on(state, num_workers) == [rest]

    def test_a_loaded_state_serves_again(self, num_workers: int) -> None:
        torch.manual_seed(5)
        whole = passes(2, num_workers)
        torch.manual_seed(5)
        loader = make(num_workers)
        assert receive(loader, 6) == whole[0][:6]
        state = loader.state_dict()
        old = iter(loader)
        for _ in range(2):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert loader.state_dict() is not state
            assert receive(loader) == whole[0][6:]
        assert len(list(old)) == 25  # it stays what it was
        loader.close()

    def test_errors_are_no_ends(self, num_workers: int) -> None:
        torch.manual_seed(5)
        (whole,) = passes(1, num_workers)
        bad = whole[6][0]

        def fail(index: int) -> int:
            if index == bad:
                raise KeyError(index)
            return index

        torch.manual_seed(5)
        loader = make(num_workers, Made(fail, 100))
        iterator = iter(loader)
        receive(iterator, 6)
        with pytest.raises(KeyError):
            next(iterator)
        state = through_json(loader)  # the batch is tried again
        assert next(iterator).tolist() == whole[7]  # as torch, which leaves it out
        later = through_json(loader)
        assert later["received"] == 8
        assert go_on(later, num_workers) == [whole[8:]]
        loader.close()
        assert go_on(state, num_workers) == [whole[6:]]


def test_no_data_is_read_for_what_is_skipped() -> None:
    torch.manual_seed(5)
    state = stop(10)
    reads = []

    def read(index: int) -> int:
        reads.append(index)
        return index

    (rest,) = go_on(state, dataset=Made(read, 100))
    assert [index for batch in rest for index in batch] == reads
    assert len(reads) == 60


# -- samplers with a state, streams --------------------------------------------------------


def stateful_sampler() -> Any:
    return {"sampler": SizedStateful(60)}


def stateful_batch_sampler() -> Any:
    batches = [[i, i + 1] for i in range(0, 60, 2)]
    return {"batch_sampler": StatefulIterators(batches), "batch_size": 1}


@pytest.mark.parametrize("workers", [(0, 0), (0, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("sampler", [stateful_sampler, stateful_batch_sampler])
def test_a_stateful_sampler_is_restored(sampler: Any, workers: tuple[int, int]) -> None:
    before, after = workers
    common = {"dataset": Made(draw, 60), "seed_globals": True}
    torch.manual_seed(5)
    whole = passes(3, before, **common, **sampler())
    torch.manual_seed(5)
    state = stop(5, before, before=1, **common, **sampler())
    options = sampler()
    assert go_on(state, after, 2, **common, **options) == [whole[1][5:], whole[2]]
    one = options.get("sampler") or options["batch_sampler"]
    assert one.read == (40 + 60 if "sampler" in options else 25 + 30)
    torch.manual_seed(5)
    state = stop(None, before, before=1, **common, **sampler())
    assert go_on(state, after, **common, **sampler()) == [whole[2]]


class Shuffling(data.IterableDataset[int]):
    """A stream that draws."""

    def __iter__(self) -> Any:
        info = data.get_worker_info()
        for number in range(30):
            yield 1000 * (info.id if info else 0) + number + random.random() / 2


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_streams_are_read_again(num_workers: int) -> None:
    options = {"dataset": Shuffling()}
    seed_all()
    whole = passes(3, num_workers, **options)
    seed_all()
    state = stop(5, num_workers, before=1, **options)
    assert go_on(state, num_workers, 2, **options) == [whole[1][5:], whole[2]]
    for most in (None, len(whole[1])):
        seed_all()
        state = stop(most, num_workers, before=1, **options)
        assert go_on(state, num_workers, **options) == [whole[2]]


def test_streams_of_different_lengths() -> None:
    options = {"dataset": Numbers(21), "batch_size": 2}
    whole = passes(1, 3, **options)
    for most in (2, 9):
        assert go_on(stop(most, 3, **options), 3, **options) == [whole[0][most:]]


def test_a_stream_that_gives_less_than_before() -> None:
    state = stop(5, 2, dataset=Numbers(40))
    with pytest.raises(ValueError, match=r"gave 4 batches, where it had given 5 .* the same"):
        go_on(state, 2, dataset=Numbers(10))


# -- forms, and what is refused ------------------------------------------------------------


def test_it_travels() -> None:
    torch.manual_seed(5)
    whole = passes(1)
    torch.manual_seed(5)
    loader = make()
    receive(loader, 10)
    state = loader.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for copied in (torch.load(file), pickle.loads(pickle.dumps(state))):
        assert copied == state
    other = make()
    other.load_state_dict(state)
    # A loader that is copied takes what was loaded along.
    assert receive(pickle.loads(pickle.dumps(other))) == whole[0][10:]
    assert receive(copy.deepcopy(other)) == whole[0][10:]
    assert receive(other) == whole[0][10:]


def test_distributed_checkpoint_takes_it() -> None:
    from torch.distributed.checkpoint.stateful import Stateful

    assert isinstance(make(), Stateful)


@pytest.mark.parametrize("length", [100, 1_000_000])
def test_it_is_small(length: int) -> None:
    torch.manual_seed(5)
    state = stop(10, dataset=range(length))
    assert len(json.dumps(state)) < 5_000
    generator = torch.Generator().manual_seed(1)
    state = stop(10, dataset=range(length), generator=generator)
    assert list(state["generators"]) == ["generator 0"]
