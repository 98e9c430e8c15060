"""User code that ends or blocks a worker, wherever it is called: the error says where it was."""

from __future__ import annotations

import sys

import pytest

from tests.support import stages
from tests.support.matrix import PROCESSES, start_methods
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("where", ["read", "prepare"])
def test_samples_that_are_read_or_prepared_at_once(
    start_method: str, on_error: str, where: str
) -> None:
    run_scenario(stages.bulk, start_method, where, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("trouble", ["hangs", "exits"])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_collate(start_method: str, trouble: str, on_error: str) -> None:
    run_scenario(stages.collate, start_method, trouble, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize(
    ("trouble", "on_error"), [("hangs", "raise"), ("exits", "raise"), ("exits", "skip")]
)
def test_the_start_of_the_next_epoch(start_method: str, trouble: str, on_error: str) -> None:
    run_scenario(stages.start_epoch, start_method, trouble, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_restarts_for_an_epoch_ahead(start_method: str) -> None:
    run_scenario(stages.restarts_of_an_epoch_ahead, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("trouble", ["raises", "hangs", "exits"])
@pytest.mark.parametrize(
    ("on_error", "kind"),
    [
        ("raise", "each"),
        ("raise", "bulk"),
        ("skip", "each"),
        ("skip", "bulk"),
        ("skip", "free"),
        ("callable", "each"),
    ],
)
def test_samples_that_are_unpickled(
    start_method: str, trouble: str, on_error: str, kind: str
) -> None:
    run_scenario(stages.unpickling, start_method, trouble, on_error, kind, timeout=60).check()


@pytest.mark.parametrize("kind", list(stages.UNPICKLABLE))
@pytest.mark.parametrize(
    ("nworkers", "start_method"), [(0, "fork"), *((2, m) for m in start_methods("fork", "spawn"))]
)
def test_results_that_cannot_be_pickled(nworkers: int, start_method: str, kind: str) -> None:
    run_scenario(stages.pickling_of_results, start_method, nworkers, kind, timeout=60).check()
