"""How long an engine waits for what comes next."""

from types import SimpleNamespace

import pytest

from crumpets_like import LoaderTimeout
from crumpets_like.broker.engine import Engine


class Waits:
    """A consumer to which nothing comes, its producer, and the clock that both go by."""

    def __init__(self, changes: dict[float, float]) -> None:
        self.now = 100.0
        self.changed_at = 0.0
        self.waits: list[float] = []
        self.told: list[tuple[float, int]] = []
        self._changes = changes  # by when a wait begins: when a worker gets ready in it

    def monotonic(self) -> float:
        return self.now

    def retrieve_data(self, stream: object, seconds: float) -> None:
        self.waits.append(seconds)
        self.changed_at = self._changes.get(self.now, self.changed_at)
        self.now += seconds
        raise LoaderTimeout(seconds)

    def tell_waiting(self, this: object, overdue: int, timeout: float) -> None:
        self.told.append((self.now, overdue))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, [(101.0, 0), (102.0, 1)]),
        ({100.0: 100.25}, [(101.25, 0), (102.25, 1)]),
        ({101.0: 101.5}, [(101.0, 0), (102.5, 0), (103.5, 1)]),
    ],
)
def test_the_limit_counts_from_when_the_workers_were_there(monkeypatch, changes, told):
    waits = Waits(changes)
    monkeypatch.setattr("crumpets_like.broker.engine.time", waits)
    engine = Engine.__new__(Engine)
    engine._options = SimpleNamespace(timeout=2.0, start_method="fork", dataset=[])
    engine._parts = SimpleNamespace(consumer=waits, producer=waits)
    with pytest.raises(LoaderTimeout, match="within 2 seconds"):
        engine._receive(SimpleNamespace(stream=None))
    assert waits.told == told
    assert waits.now == told[-1][0] + waits.waits[-1] < told[-1][0] + 1
