"""Signal handlers that raise anywhere in the loader: caught, and a new ``for`` is right."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from crumpets_like import TurboDataLoader
from tests.support.loading import Items, run_items
from tests.support.scenario import run_scenario

SAMPLES = 500

pytestmark = pytest.mark.slow


class Stream:
    """An iterable that starts anew in each pass."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """KeyboardInterrupt some time later, wherever this thread is then."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def again_and_again(dataset: Any, start_method: str, nworkers: int, seconds: float) -> None:
    rng = random.Random(2)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    deadline = time.monotonic() + seconds
    hits = 0
    expected = list(range(SAMPLES))
    with TurboDataLoader(
        dataset, 5, Items(), nworkers, start_method=start_method, timeout=30
    ) as loader:
        assert run_items(loader) == expected
        while time.monotonic() < deadline:
            try:
                with interrupted(0.0002 + 0.012 * rng.random()):
                    run_items(loader)
            except KeyboardInterrupt:
                hits += 1
            while True:
                try:
                    assert run_items(loader) == expected
                    break
                except KeyboardInterrupt:  # it came too late
                    pass
    assert hits


@pytest.mark.parametrize(
    ("dataset", "start_method", "nworkers"),
    [(range(SAMPLES), "fork", 2), (Stream(), "fork", 2), (range(SAMPLES), "fork", 0)],
)
def test_again_and_again(dataset: Any, start_method: str, nworkers: int) -> None:
    run_scenario(again_and_again, dataset, start_method, nworkers, 4.0, timeout=120).check()


def start_again_and_again(start_method: str, seconds: float) -> None:
    rng = random.Random(3)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    deadline = time.monotonic() + seconds
    hits = 0
    while time.monotonic() < deadline:
        loader = TurboDataLoader(range(20), 5, Items(), 2, start_method=start_method, timeout=30)
        try:
            with interrupted(0.0002 + 0.05 * rng.random()), loader:
                run_items(loader)
        except KeyboardInterrupt:
            hits += 1
        with loader:
            assert run_items(loader) == list(range(20))
    assert hits


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "thread"])
def test_starting_again_and_again(start_method: str) -> None:
    run_scenario(start_again_and_again, start_method, 4.0, timeout=120).check()


class Raises(Items):
    """Sample 10 raises."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 10:
            raise self.error
        super().prepare(sample, batch, buffers)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("nworkers", [0, 2])
def test_errors_of_samples_close_the_iterator(error: type[BaseException], nworkers: int) -> None:
    options: Any = {"num_mini_batches": 2, "start_method": "fork"}
    with TurboDataLoader(range(40), 10, Raises(error), nworkers, **options) as loader:
        engine = loader._engine
        iterator = iter(loader)
        assert [len(batch["item"]) for batch in next(iterator)[1]] == [5, 5]
        with pytest.raises(error):
            next(iterator)
        with pytest.raises(RuntimeError, match=f"closed, since it raised {error.__name__}"):
            next(iterator)
        assert [len(batch["item"]) for batch in next(iter(loader))[1]] == [5, 5]
        assert loader._engine is engine, "nothing was out of order: the workers go on"
