"""Samplers and iterables go on: by their state, skipped, or read again."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.support.planning import Sized, Unsized
from tests.support.resuming import all_of, make, receive, through_json
from tests.test_epochs_resume import Stateful, StatefulIterators


class Counting:
    """A dataset that counts how often each item is read."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.reads[index] += 1
        return index


def items(received: list[Any]) -> list[int]:
    return [row[0] for _, rows in received for row in rows]


@pytest.mark.parametrize("workers", [(0, 0), (0, 2), (2, 0)], ids=str)
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_a_sampler_is_skipped_without_reading_data(kind: str, workers: tuple[int, int]) -> None:
    order = [(7 * i) % 60 for i in range(60)]
    keys: list[Any] = order
    if kind == "batch_sampler":
        keys = [order[i : i + 1 + i % 4] for i in range(0, 60, 4)]
        order = [key for batch in keys for key in batch]
    whole = all_of(2, iterable=range(60), **{kind: Sized(keys)})
    assert items(whole[0]) == order
    with make(range(60), nworkers=workers[0], **{kind: Sized(keys)}) as loader:
        receive(loader, 5)
        state = through_json(loader)
    dataset = Counting(60)
    with make(dataset, nworkers=workers[1], **{kind: Sized(keys)}) as loader:
        loader.load_state_dict(state)
        assert receive(loader) == whole[0][5:]
        assert receive(loader) == whole[1]
    if workers[1] == 0:
        done = {row[0] for _, rows in whole[0][:5] for row in rows}
        assert {dataset.reads[index] for index in done} == {1}  # by the second epoch


@pytest.mark.parametrize("nworkers", [0, 2])
def test_a_stateful_sampler_is_restored(nworkers: int) -> None:
    whole = all_of(2, iterable=range(60), sampler=Stateful(60))
    with make(range(60), nworkers=nworkers, sampler=Stateful(60)) as loader:
        receive(loader)
        receive(loader, 5)
        state = through_json(loader)
    assert state["source_state"][1] == {"passes": 2, "done": 20}
    sampler = Stateful(60)
    with make(range(60), nworkers=nworkers, sampler=sampler) as loader:
        loader.load_state_dict(state)
        assert receive(loader) == whole[1][5:]
        assert sampler.read == 40


@pytest.mark.parametrize("nworkers", [0, 2])
@pytest.mark.parametrize(("kind", "reads"), [(Sized, 60), (Unsized, 60), (StatefulIterators, 40)])
def test_iterables(kind: Any, reads: int, nworkers: int) -> None:
    """They are read again and dropped up to the place, unless they restore a state."""
    whole = all_of(2, iterable=kind(range(60)))
    with make(kind(range(60)), nworkers=nworkers) as loader:
        receive(loader)
        receive(loader, 5)
        state = through_json(loader)
    source = kind(range(60))
    with make(source, nworkers=nworkers) as loader:
        loader.load_state_dict(state)
        assert receive(loader) == whole[1][5:]
        assert source.read == reads
        receive(loader)
    with make(source := kind(range(60)), nworkers=nworkers) as loader:
        loader.load_state_dict(loader.state_dict())
        assert receive(loader) == whole[0]
        state = through_json(loader)
        read = source.read
        loader.load_state_dict(state)
        assert receive(loader) == whole[1]
        assert source.read == read + 60  # of an epoch that is over nothing is read


def test_an_iterable_without_length_at_its_end() -> None:
    """The epoch is over, though the caller has not asked for more than its last batch."""
    whole = all_of(2, iterable=Unsized(range(20)))
    with make(Unsized(range(20))) as loader:
        assert receive(loader, 5) == whole[0]
        state = through_json(loader)
    with make(Unsized(range(20))) as loader:
        loader.load_state_dict(state)
        assert receive(loader) == whole[1]


def test_an_iterable_that_gives_less_than_before() -> None:
    with make(Unsized(range(60))) as loader:
        receive(loader, 10)
        state = through_json(loader)
    with make(Unsized(range(30))) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"gave 30 items, where it had given 40 .* the same"):
            iter(loader)
        with pytest.raises(ValueError, match="gave 30 items"):  # nothing is lost by trying
            iter(loader)


def test_a_sampler_that_cannot_load_its_state() -> None:
    with make(range(60), sampler=Stateful(60)) as loader:
        receive(loader, 10)
        state = through_json(loader)
    with make(range(60), sampler=Unsized(range(60))) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"one of sampler or its iterator, .* load_state_dict"):
            iter(loader)
