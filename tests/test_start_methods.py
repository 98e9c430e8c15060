"""Whatever can be sent to workers works with every start method; the rest is named."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import pytest

from crumpets_like import BufferWorker, TurboDataLoader, Worker
from tests.support import scripts
from tests.support.loading import Items
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.slow

PROCESSES = ("fork", "forkserver", "spawn")
ALL = ("0", *PROCESSES, "thread")


@pytest.mark.parametrize("start_method", ALL)
@pytest.mark.parametrize("name", ["MAIN_CLASSES", "LOCAL_CLASSES", "NOTEBOOK", "RUNTIME_PATH"])
def test_scripts(name: str, start_method: str) -> None:
    result = run_scenario(getattr(scripts, name), start_method, timeout=60)
    result.check()
    assert result.stdout.count("run") <= 1  # nothing imports the script again


@pytest.mark.parametrize("start_method", ["0", *PROCESSES])
def test_a_dataset_that_reopens_its_file(start_method: str) -> None:
    run_scenario(scripts.REOPENED_FILE, start_method, timeout=60).check()


class Locked(Worker):
    """Cannot be pickled: a lock lies two attributes deep."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = Transform()


class Transform:
    """Holds a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Data(list[Any]):
    """A dataset that holds something unpicklable."""

    def __init__(self) -> None:
        super().__init__(range(8))
        self.source = Transform()


@pytest.mark.parametrize("start_method", ALL)
def test_an_unpicklable_template_is_named(start_method: str) -> None:
    nworkers, method = (0, None) if start_method == "0" else (2, start_method)
    loader = TurboDataLoader(range(8), 4, Locked(), nworkers, start_method=method)
    with pytest.raises(TypeError, match=r"worker_template\.transform\.lock cannot be sent"):
        loader.start()


def test_an_unpicklable_dataset_is_named() -> None:
    loader = TurboDataLoader(Data(), 4, Worker(), 2)
    with pytest.raises(TypeError, match=r"dataset\.source\.lock cannot be sent"):
        loader.start()


class Forgetful(BufferWorker):
    """Does not call the constructor of its base class."""

    def __init__(self, declare: bool) -> None:
        if declare:
            self.add_buffer("x", ((), "f4"))


def test_a_forgotten_call_of_the_constructor_is_named() -> None:
    with pytest.raises(TypeError, match=r"Forgetful\.__init__ must call super\(\)\.__init__\(\)"):
        Forgetful(True)
    for nworkers in (0, 1):
        loader = TurboDataLoader(range(8), 4, Forgetful(False), nworkers)
        with pytest.raises(TypeError, match=r"Forgetful\.__init__ must call super"):
            loader.start()


class Counting(Worker):
    """Changes itself with every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def process(self, sample: Any) -> dict[str, Any]:
        self.seen += 1
        return {"seen": self.seen, "worker": self.worker_id}


@pytest.mark.parametrize(("nworkers", "start_method"), [(0, None), *((1, m) for m in ALL[1:])])
def test_the_template_is_not_changed(nworkers: int, start_method: str | None) -> None:
    template = Counting()
    before = dict(vars(template))
    with TurboDataLoader(range(8), 4, template, nworkers, start_method=start_method) as loader:
        seen = [int(s) for _, (mini_batch,) in loader for s in mini_batch["seen"]]
    assert seen == list(range(1, 9))
    assert vars(template) == before
    assert template.worker_id == -1


def test_windows_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = TurboDataLoader(range(8), 4, Counting(), 1)
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(OSError, match="WSL"):
        loader.start()


PID = os.getpid()


class Garbage:
    """A cycle that tells where it is collected."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        print("here" if os.getpid() == PID else "elsewhere", flush=True)


def garbage() -> None:
    gc.collect()
    gc.set_threshold(1_000_000)
    os.register_at_fork(after_in_child=lambda: gc.set_threshold(3, 1, 1))
    Garbage()
    with TurboDataLoader(range(8), 2, Items(), 2, start_method="fork") as loader:
        assert len(list(loader)) == 4
    gc.collect()


def test_garbage_of_the_caller_is_not_collected_in_forked_processes() -> None:
    """Its finalizers may wait for a thread that is not there."""
    assert run_scenario(garbage, timeout=60).check().stdout == "here\n"


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork", "thread"])
def test_in_a_process_that_multiprocessing_has_spawned(method: str) -> None:
    result = run_scenario(scripts.SPAWNED, method, options=["-W", "error"]).check()
    assert result.stdout.split() == ["right", "right"]
