"""Troubles that come together, or at awkward moments: never a hang, never an innocent sample."""

from __future__ import annotations

import signal
import sys

import psutil
import pytest

from tests.support import troubles
from tests.support.loading import wait_until
from tests.support.matrix import PROCESSES
from tests.support.scenario import Running, run_scenario

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks at process names"),
]


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("hang", [False, True])
def test_many_culprits_are_skipped(start_method: str, hang: bool) -> None:
    run_scenario(troubles.many_culprits, start_method, hang, timeout=90).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_the_setup_of_a_replacement_is_not_counted(start_method: str) -> None:
    run_scenario(troubles.slow_setup_of_replacements, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_an_epoch_that_does_not_begin(start_method: str) -> None:
    run_scenario(troubles.start_epoch_hangs, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_few_descriptors(start_method: str) -> None:
    run_scenario(troubles.few_descriptors, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_samples_of_main(start_method: str) -> None:
    run_scenario(troubles.samples_of_main, start_method, timeout=60).check()


def test_the_folder_of_the_sockets_is_gone() -> None:
    run_scenario(troubles.folder_is_gone, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_signals_to_all_processes(start_method: str) -> None:
    run_scenario(troubles.signals_to_all, start_method, timeout=60).check()


def test_a_stopped_broker_without_a_supervisor() -> None:
    run_scenario(troubles.stopped_broker, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_memory_of_free_form_slots(start_method: str) -> None:
    run_scenario(troubles.free_form_memory, start_method, timeout=90).check()


def test_the_training_process_dies_while_modules_are_imported() -> None:
    run_scenario(troubles.trainer_dies_while_modules_are_imported, timeout=60, grace=4.0).check()


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("max_buffers", [None, 3])
def test_a_hang_in_an_epoch_that_was_left(start_method: str, max_buffers: int | None) -> None:
    run_scenario(
        troubles.hang_in_an_epoch_that_was_left, start_method, max_buffers, timeout=60
    ).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_hang_behind_a_death(start_method: str) -> None:
    run_scenario(troubles.hang_behind_a_death, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_all_workers_hang(start_method: str) -> None:
    run_scenario(troubles.all_workers_hang, start_method, 16, timeout=60).check()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_records_of_imports(start_method: str) -> None:
    result = run_scenario(troubles.logs_when_imported, start_method, timeout=60).check()
    assert result.stderr.splitlines() == ["imported in full"], "that of the scenario itself"


@pytest.mark.parametrize("start_method", PROCESSES)
def test_many_records(start_method: str) -> None:
    run_scenario(troubles.many_records, start_method, timeout=60).check()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_the_training_process_is_killed_beside_subprocesses(start_method: str) -> None:
    run_scenario(
        troubles.trainer_with_subprocesses_is_killed, start_method, timeout=60, grace=2.0
    ).check(-signal.SIGKILL)


def test_they_do_not_wait_until_its_end_can_be_seen() -> None:
    def kill_when_they_are_gone(running: Running) -> None:
        process = psutil.Process(running.pid)
        assert wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        assert wait_until(lambda: set(map(status, running.descendants())) == {"zombie"}, 5)
        process.kill()

    run_scenario(
        troubles.trainer_with_subprocesses_in_limbo, "fork", interact=kill_when_they_are_gone
    ).check(-signal.SIGKILL)


def status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return "zombie"
