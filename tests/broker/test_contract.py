"""Both engines keep the contract on which every front end relies."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from crumpets_like import LoaderClosed
from crumpets_like.broker.contract import AnyEngine
from crumpets_like.broker.engine import Engine
from crumpets_like.broker.local import LocalEngine
from crumpets_like.broker.options import EngineOptions
from tests.support.loading import Items, items
from tests.support.planning import planner

ENGINES = [Engine, LocalEngine]


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[AnyEngine]:
    nworkers = 0 if request.param is LocalEngine else 1
    options = EngineOptions(Items(), range(8), 2, nworkers, start_method="fork", timeout=20)
    made = request.param(options)
    yield made
    made.stop()


@pytest.mark.parametrize("kind", ENGINES)
def test_same_methods(kind: type[AnyEngine]) -> None:
    for name, method in inspect.getmembers(AnyEngine, inspect.isfunction):
        if not name.startswith("_"):
            wanted = list(inspect.signature(method).parameters)
            assert list(inspect.signature(getattr(kind, name)).parameters)[: len(wanted)] == wanted


def test_passes_side_by_side(engine: AnyEngine) -> None:
    plans = planner(range(8), 4)
    first = engine.open(plans.open())
    second = engine.open(plans.open(), after=first)
    found = {id(this): [] for this in (first, second)}
    for _ in range(3):
        for this in (first, second):
            batch = engine.next_batch(this)
            found[id(this)].append(None if batch is None else items(batch))
            del batch
    assert list(found.values()) == [[[0, 1, 2, 3], [4, 5, 6, 7], None]] * 2
    assert (first.delivered, second.delivered) == (8, 8)
    assert first.mark.given == 8
    assert first.join(None)
    facts = engine.facts()
    assert (facts.held, facts.filling, facts.ready, facts.skipped) == (0, 0, 0, 0)
    assert facts.free >= 2
    assert len(facts.busy_seconds) == 1


def test_a_pass_is_left(engine: AnyEngine) -> None:
    plans = planner(range(8), 4)
    left = engine.open(plans.open())
    engine.next_batch(left)
    engine.interrupt(left)
    engine.close_pass(left)
    engine.close_pass(left)
    assert engine.update_dataset()
    this = engine.open(plans.open())
    assert items(engine.next_batch(this)) == [0, 1, 2, 3]
    assert engine.knows(LoaderClosed())


def test_a_stopped_engine_says_so(engine: AnyEngine) -> None:
    this = engine.open(planner(range(8), 4).open())
    engine.stop()
    engine.stop()
    for use in (lambda: engine.open(planner(range(8), 4).open()), lambda: engine.next_batch(this)):
        with pytest.raises(LoaderClosed, match="was stopped"):
            use()
