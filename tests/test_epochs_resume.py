"""A planner goes on from a state as if nothing had happened, for every kind of source."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like.epochs import Planner
from crumpets_like.passes import BEGINNING
from tests.support.planning import Sized, Unsized, planner, rows


class Stateful:
    """A sampler of 0 ... n - 1 whose passes differ, and which knows where it stands."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.state: dict[str, Any] = {"passes": 0, "done": None}  # begun; items of the last one
        self.loaded: int | None = None
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        if self.loaded is None:
            self.state["passes"] += 1
        self.state["done"], self.loaded = self.loaded or 0, None
        return self.steps(self.state["done"])

    def steps(self, first: int) -> Iterator[int]:
        for item in range(first + 1, self.n + 1):
            self.state["done"] = item
            self.read += 1
            yield (item * self.state["passes"]) % self.n
        self.state["done"] = None

    def state_dict(self) -> dict[str, Any]:
        return self.state  # which goes on changing

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.loaded = state, state["done"]


class SizedStateful(Stateful):
    def __len__(self) -> int:
        return self.n


class StatefulIterators(Sized):
    """An iterable whose iterators know where they stand."""

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return StatefulIterator(self)


class StatefulIterator(Iterator[Any]):
    def __init__(self, source: Sized) -> None:
        self.source = source
        self.done = 0

    def __next__(self) -> Any:
        if self.done == len(self.source.items):
            raise StopIteration
        self.done += 1
        self.source.read += 1
        return self.source.items[self.done - 1]

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


class Reshuffled(Sized):
    """A sampler whose order depends on the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def _steps(self) -> Iterator[Any]:
        for item in self.items:
            self.read += 1
            yield (item * (self.epoch + 1)) % len(self.items)


SOURCES = {
    "own order": lambda n, **o: planner(range(n), **o),
    "shuffled": lambda n, **o: planner(range(n), shuffle=True, **o),
    "sampler": lambda n, **o: planner(range(n), sampler=Sized(range(n)), **o),
    "set_epoch": lambda n, **o: planner(range(n), sampler=Reshuffled(range(n)), **o),
    "unsized sampler": lambda n, **o: planner(range(n), sampler=Unsized(range(n)), **o),
    "stateful sampler": lambda n, **o: planner(range(n), sampler=SizedStateful(n), **o),
    "unsized stateful": lambda n, **o: planner(range(n), sampler=Stateful(n), **o),
    "samples": lambda n, **o: planner(Sized(range(n)), **o),
    "unsized samples": lambda n, **o: planner(Unsized(range(n)), **o),
    "stateful samples": lambda n, **o: planner(StatefulIterators(range(n)), **o),
}
every_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


class Run:
    """A planner and what a caller has received of its last plan."""

    def __init__(self, plans: Planner) -> None:
        self.plans = plans
        self.plan: Any = None
        self.mark = BEGINNING

    def open(self) -> None:
        self.plan = self.plans.open()
        self.mark = self.plan.mark

    def receive(self, count: int) -> list[list[int]]:
        """Up to `count` batches."""
        got = rows(itertools.islice(self.plan, count))
        self.mark = self.plan.mark
        return got

    def state(self) -> dict[str, Any]:
        state = self.plans.state_dict(self.plan, self.mark)
        return {"seed": 0, **json.loads(json.dumps(state))}


def resumed(plans: Planner, state: dict[str, Any]) -> Run:
    plans.load_state_dict(state)
    return Run(plans)


def change(plans: Planner, action: str, value: int) -> None:
    if action == "length":
        plans.set_length(value)
    if action == "iterations":
        plans.set_epoch_iterations(value)


ACTIONS = st.tuples(st.sampled_from(["", "", "length", "iterations"]), st.integers(1, 20))


@every_source
@settings(max_examples=150)
@given(
    n=st.integers(1, 12),
    batch_size=st.integers(1, 7),
    last_batch=st.sampled_from(["keep", "discard", "rollover"]),
    left=st.lists(st.tuples(ACTIONS, st.integers(0, 6)), max_size=3),
    stops=st.lists(st.tuples(ACTIONS, st.integers(0, 5)), min_size=1, max_size=4),
)
def test_goes_on_as_if_nothing_had_happened(source, n, batch_size, last_batch, left, stops):
    """Some epochs are left early; then the run stops and resumes a few times."""
    make = lambda: source(n, batch_size=batch_size, last_batch=last_batch)  # noqa: E731
    whole, parts = Run(make()), Run(make())
    if type(whole.plans._source.items) is Stateful and last_batch == "rollover":
        left = []  # it does not know that the pass was left until iter() is called again
    for (action, value), received in left:
        for run in (whole, parts):
            change(run.plans, action, value)
            run.open()
            run.receive(received)
    for run in (whole, parts):
        run.open()
    rest = []  # of the epoch, in the run that never stops
    for (action, value), received in stops:
        rest = rest or whole.receive(100)
        assert parts.receive(received) == rest[:received]
        rest = rest[received:]
        # Settings made in the middle of an epoch act on the next one, and are kept.
        for run in (whole, parts):
            change(run.plans, action, value)
        state = parts.state()
        parts = resumed(make(), state)
        assert parts.state() == state
        if rest:
            assert parts.plans.iterations() == whole.plan.iterations
        else:
            # Without a length, only reading on tells that the epoch is over.
            known = parts.plans.identity()["source_length"] is not None
            assert not known or parts.plans.iterations() == whole.plans.iterations()
            whole.open()
        parts.open()
        assert parts.plan.epoch == whole.plan.epoch
        assert parts.plan.iterations == whole.plan.iterations
    rest = rest or whole.receive(100)
    assert parts.receive(100) == rest
    for _ in range(2):
        whole.open()
        parts.open()
        assert parts.plan.epoch == whole.plan.epoch
        assert parts.receive(100) == whole.receive(100)
