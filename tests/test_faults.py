"""Processes that end when they should not: an error or a replacement, never a hang."""

from __future__ import annotations

import sys

import pytest

from tests.support import faults
from tests.support.matrix import PROCESSES, start_methods
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")


@pytest.mark.parametrize("death", list(faults.DEATHS))
def test_a_deadly_sample_is_named(death: str) -> None:
    run_scenario(faults.deadly_sample, "fork", death, timeout=30).check()


@pytest.mark.parametrize("start_method", start_methods("forkserver", "spawn"))
def test_a_deadly_sample_with_other_start_methods(start_method: str) -> None:
    run_scenario(faults.deadly_sample, start_method, "SIGKILL", timeout=30).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_one_death_changes_nothing(start_method: str) -> None:
    result = run_scenario(faults.one_death, start_method, "SIGKILL", timeout=30).check()
    assert result.stderr == "", "it is logged, and the program says where that goes"


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("when", ["idle", "working", "together"])
def test_workers_are_killed_from_outside(start_method: str, when: str) -> None:
    run_scenario(faults.killed_from_outside, start_method, when, 8, 320, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_worker_is_killed_while_it_writes(start_method: str) -> None:
    run_scenario(faults.killed_while_writing, start_method, timeout=60).check()


@pytest.mark.slow
def test_a_hundred_kills_in_one_epoch() -> None:
    run_scenario(faults.killed_from_outside, "fork", "working", 100, 2000, timeout=90).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_the_limit_of_restarts(start_method: str) -> None:
    run_scenario(faults.no_more_restarts, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sample_that_hangs(start_method: str, on_error: str) -> None:
    run_scenario(faults.sleeps_for_ever, start_method, on_error, timeout=60).check()


@pytest.mark.parametrize("name", ["crumpets-broker", "crumpets-superv"])
def test_a_helper_process_is_killed(name: str) -> None:
    run_scenario(faults.helper_killed, name, timeout=30).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_stop_while_workers_start(start_method: str) -> None:
    run_scenario(faults.stop_while_starting, start_method, timeout=30).check()


def test_stopped_workers() -> None:
    run_scenario(faults.stopped_workers, timeout=30).check()


@pytest.mark.slow
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.matrix)])
def test_the_training_process_is_killed(times: int) -> None:
    run_scenario(faults.killed_trainers, times, timeout=240).check()
