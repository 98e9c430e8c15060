"""A worker's own attributes live beside ours, or are refused; none is lost without a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from crumpets_like import BufferWorker, TurboDataLoader, Worker

from .support.loading import run_items
from .support.runner import Bench

LIKE_OURS = [
    *("_seed", "_source", "_keys", "_first", "_one", "_drawn", "_chunk", "_pool", "_unit"),
    *("_arena", "_cell", "_buffer_specs", "_params", "_current", "_index", "_rng", "_state"),
]
GIVEN = ["worker_id", "epoch", "index", "indices", "rng", "rngs"]
METHODS = ["setup", "start_epoch", "teardown", "process", "collate"]


class Own(BufferWorker):
    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("item", ((), np.int64))
        self.add_params("p", 5)
        for name in LIKE_OURS:
            setattr(self, name, ["mine", name])

    def setup(self) -> None:
        self._source = ["mine", "_source"]

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        assert all(getattr(self, name) == ["mine", name] for name in LIKE_OURS)
        assert (self.index, self.params) == (sample, {"p": 5})
        buffers["item"][...] = sample
        batch["draw"].append(int(self.rng.integers(1 << 40)))


class OwnBulk(Own):
    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        assert [rng.random() for rng in self.rngs]
        super().prepare_batch(samples, batch, buffers)


@pytest.mark.parametrize("make", [Own, OwnBulk])
@pytest.mark.parametrize("nworkers", [0, 2])
def test_private_names_are_the_users(make: type[Own], nworkers: int) -> None:
    with TurboDataLoader(range(10), 4, make(), nworkers, seed=3, start_method="fork") as loader:
        assert run_items(loader) == list(range(10))


@pytest.mark.parametrize("make", [Worker, BufferWorker])
def test_all_that_is_ours_has_our_name(make: type[Worker]) -> None:
    class Plain(make):  # type: ignore[misc,valid-type]
        def process(self, sample: Any) -> dict[str, Any]:
            return {"x": sample}

        def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
            batch["x"].append(sample)

    worker = Plain()
    bench = Bench(worker)
    assert bench.fill([1, 2]) == {"x": [1, 2]}
    bench.runner.teardown()
    names = [*vars(worker), *(name for cls in (Worker, BufferWorker) for name in vars(cls))]
    private = [name for name in names if name.startswith("_") and not name.endswith("__")]
    assert private
    assert all(name.startswith("_crumpets_") for name in private)
    assert set(vars(worker)) <= set(private)


def test_a_frozen_dataclass() -> None:
    @dataclass(frozen=True)
    class Frozen(Worker):
        factor: int = 3
        _keys: list[str] = field(default_factory=lambda: ["a"])

        def process(self, sample: Any) -> dict[str, Any]:
            return {"item": sample * self.factor, "key": self._keys[0]}

    with TurboDataLoader(range(4), 2, Frozen(), 0) as loader:
        assert run_items(loader) == [0, 3, 6, 9]


class TestReserved:
    @pytest.mark.parametrize("name", GIVEN)
    def test_cannot_be_set(self, name: str) -> None:
        class Setting(Worker):
            def __init__(self) -> None:
                setattr(self, name, 5)

        with pytest.raises(
            AttributeError, match=rf"self\.{name} is the loader's own in each W.* S"
        ):
            Setting()

    @pytest.mark.parametrize("name", ["params", "buffer_specs"])
    def test_only_where_they_mean_something(self, name: str) -> None:
        worker: Any = Worker()
        setattr(worker, name, 5)
        TurboDataLoader(range(4), 2, worker, 0)
        with pytest.raises(AttributeError, match=rf"self\.{name} is the loader's own in each Buf"):
            setattr(BufferWorker(), name, 5)

    @pytest.mark.parametrize("value", [5, property(lambda self: 5), lambda self, word: 5])
    @pytest.mark.parametrize("name", GIVEN)
    def test_refused_in_a_class(self, name: str, value: Any) -> None:
        mixin = type("Mixin", (), {name: value})
        for make in (type("Has", (Worker,), {name: value}), type("Has", (mixin, Worker), {})):
            with pytest.raises(TypeError, match=rf"worker_template: Has has an attribute '{name}'"):
                TurboDataLoader(range(4), 2, make(), 0)

    @pytest.mark.parametrize("name", [*GIVEN, *METHODS])
    def test_refused_in_the_instance(self, name: str) -> None:
        worker = Worker()
        worker.__dict__.update({name: print})
        with pytest.raises(TypeError, match=rf"'{name}' of its own in place of Worker\.{name}, "):
            TurboDataLoader(range(4), 2, worker, 0)

    @pytest.mark.parametrize("name", METHODS)
    def test_methods_are_methods(self, name: str) -> None:
        worker = type("Has", (Worker,), {name: "text"})()
        with pytest.raises(TypeError, match=rf"Worker\.{name}, a method of this class: override"):
            TurboDataLoader(range(4), 2, worker, 0)


def test_prepare_batch_outside_of_a_loader() -> None:
    class Doubling(BufferWorker):
        def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
            buffers["x"][...] = 2 * sample

    rows = np.zeros(3)
    Doubling().prepare_batch([1, 2, 3], {}, {"x": rows})
    assert rows.tolist() == [2, 4, 6]
    with pytest.raises(RuntimeError, match="belongs to a sample"):
        BufferWorker().rng  # noqa: B018
