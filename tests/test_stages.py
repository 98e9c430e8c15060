"""User code that ends or blocks a worker, wherever it is called: the error says where it was."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support import stages
from tests.support.matrix import PROCESSES, start_methods
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")


def in_the_matrix(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.matrix)


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize(
    ("where", "on_error"),
    [
        ("read", "raise"),
        ("prepare", "raise"),
        in_the_matrix("read", "skip"),
        ("prepare", "skip"),
    ],
)
def test_samples_that_are_read_or_prepared_at_once(
    start_method: str, where: str, on_error: str
) -> None:
    run_scenario(stages.bulk, start_method, where, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize(
    ("trouble", "on_error"),
    [
        ("hangs", "raise"),
        ("exits", "skip"),
        in_the_matrix("hangs", "skip"),
        in_the_matrix("exits", "raise"),
    ],
)
def test_collate(start_method: str, trouble: str, on_error: str) -> None:
    run_scenario(stages.collate, start_method, trouble, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize(
    ("trouble", "on_error"),
    [("hangs", "raise"), ("exits", "raise"), in_the_matrix("exits", "skip")],
)
def test_the_start_of_the_next_epoch(start_method: str, trouble: str, on_error: str) -> None:
    run_scenario(stages.start_epoch, start_method, trouble, on_error, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_restarts_for_an_epoch_ahead(start_method: str) -> None:
    run_scenario(stages.restarts_of_an_epoch_ahead, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize(
    ("trouble", "on_error", "kind"),
    [
        ("raises", "raise", "each"),
        ("hangs", "raise", "each"),
        ("exits", "raise", "each"),
        ("exits", "raise", "bulk"),
        ("raises", "skip", "each"),
        ("raises", "skip", "bulk"),
        ("exits", "skip", "free"),
        ("raises", "callable", "each"),
        in_the_matrix("hangs", "raise", "bulk"),
        in_the_matrix("hangs", "skip", "bulk"),
        in_the_matrix("exits", "skip", "bulk"),
        in_the_matrix("hangs", "callable", "free"),
    ],
)
def test_samples_that_are_unpickled(
    start_method: str, trouble: str, on_error: str, kind: str
) -> None:
    run_scenario(stages.unpickling, start_method, trouble, on_error, kind, timeout=60).check()


@pytest.mark.parametrize("kind", list(stages.UNPICKLABLE))
@pytest.mark.parametrize("nworkers", [0, 2])
@pytest.mark.parametrize("start_method", start_methods("fork", "spawn"))
def test_results_that_cannot_be_pickled(nworkers: int, start_method: str, kind: str) -> None:
    run_scenario(stages.pickling_of_results, start_method, nworkers, kind, timeout=60).check()
