"""What the loader takes over from its surroundings, and what it makes of bad ones."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from crumpets_like import LoaderClosed, TurboDataLoader, Worker
from tests.support.loading import Items, run_items, wait_until
from tests.support.matrix import PROCESSES
from tests.support.scenario import run_scenario


class Tells(Worker):
    """Tells about its process."""

    def process(self, sample: Any) -> dict[str, Any]:
        logging.getLogger("mine.worker").warning("sample %d of %s", sample, self.worker_id)
        logging.getLogger("mine.worker").debug("not shown")
        try:
            raise LookupError("an error")
        except LookupError:
            logging.getLogger("mine").exception("with a traceback")
        return {
            "affinity": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
            "threads": os.environ["OMP_NUM_THREADS"],
        }

    def teardown(self) -> None:
        logging.getLogger("mine").info("the end")


def told(start_method: str, **options: Any) -> tuple[dict[str, Any], TurboDataLoader]:
    loader = TurboDataLoader(range(1), 1, Tells(), 1, start_method=start_method, **options)
    with loader:
        ((_, (mini_batch,)),) = list(loader)
    return mini_batch, loader


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="has no affinity")
@pytest.mark.parametrize("start_method", PROCESSES)
def test_cpu_affinity(start_method: str) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert told(start_method)[0]["affinity"] == [{min(before)}]
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_of_libraries(start_method: str, threads: int) -> None:
    assert told(start_method, worker_threads=threads)[0]["threads"] == [str(threads)]


@pytest.mark.parametrize("start_method", PROCESSES)
def test_what_workers_log(start_method: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "mine"):
        told(start_method)
        assert wait_until(lambda: "the end" in caplog.messages)
    records = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert records[0] == ("mine.worker", "WARNING", "sample 0 of 0")
    assert records[1][:2] == ("mine", "ERROR")
    assert records[1][2].startswith("with a traceback\nTraceback")
    assert records[1][2].endswith("LookupError: an error")
    # Between them come those of the next epoch, as far as it was prefetched.
    assert records[-1] == ("mine", "INFO", "the end")
    assert {name for name, *_ in records} == {"mine", "mine.worker"}
    assert "DEBUG" not in {level for _, level, _ in records}


@pytest.mark.parametrize("value", [math.inf, None, 1e-9])
def test_no_limit_or_a_tiny_one(value: Any) -> None:
    """The start of the workers does not count."""
    with (
        TurboDataLoader(range(4), 4, Items(), 1, start_method="fork", timeout=value) as loader,
        contextlib.suppress(TimeoutError) if value == 1e-9 else contextlib.nullcontext(),
    ):
        assert run_items(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_timeouts_that_make_no_sense(value: float) -> None:
    with pytest.raises(ValueError, match=r"^timeout must be a positive number"):
        TurboDataLoader(range(4), 4, Items(), 1, timeout=value)


def load_in(folder: str) -> None:
    """Two loaders at once with this temporary folder."""
    assert tempfile.gettempdir() == folder or not os.access(folder, os.W_OK)
    with (
        TurboDataLoader(range(40), 4, Items(), 2, start_method="fork") as one,
        TurboDataLoader(range(40), 4, Items(), 2) as other,
    ):
        assert run_items(one) == run_items(other) == list(range(40))
    left = [str(path) for path in Path("/tmp").glob(f"crumpets-{os.getpid():x}-*")]
    assert not left, left
    assert not list(Path(folder).glob("crumpets-*"))


@pytest.mark.parametrize("length", [40, 150])
def test_temporary_folders(tmp_path: Path, length: int) -> None:
    """Where the paths of sockets would be too long, /tmp takes them."""
    folder = tmp_path / ("x" * max(1, length - len(str(tmp_path)) - 1))
    folder.mkdir()
    run_scenario(load_in, str(folder), env={"TMPDIR": str(folder)}).check()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_temporary_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    run_scenario(load_in, str(tmp_path), env={"TMPDIR": str(tmp_path)}).check()


class DiesOnce(Items):
    """Sample 5 ends its worker the first time."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 5 and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(1)
        super().prepare(sample, batch, buffers)


def with_other_child_handling(start_method: str, how: str) -> None:
    """Children are ignored, or reaped by somebody else, in the training process."""
    if how == "ignored":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGCHLD, _reap_all)
    worker = DiesOnce(f"died with {start_method}")
    with TurboDataLoader(range(40), 4, worker, 2, start_method=start_method) as loader:
        assert run_items(loader) == list(range(40))
    assert Path(worker.mark).exists()
    Path(worker.mark).unlink()


def _reap_all(number: int, frame: Any) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("how", ["ignored", "reaped"])
def test_children_that_somebody_else_takes(start_method: str, how: str) -> None:
    run_scenario(with_other_child_handling, start_method, how).check()


def without_standard_streams(start_method: str) -> None:
    error = os.dup(2)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    # What a thread prints would go to whatever has got the number since.
    worker = Items() if start_method == "thread" else Prints()
    with TurboDataLoader(range(40), 4, worker, 2, start_method=start_method) as loader:
        right = run_items(loader) == list(range(40))
    os.dup2(error, 2)
    os.close(error)
    assert right


class Prints(Items):
    """Prints, as user code may."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.write(1, b"printed\n" * 100)
        super().prepare(sample, batch, buffers)


@pytest.mark.parametrize("start_method", [*PROCESSES, "thread"])
def test_closed_standard_streams(start_method: str) -> None:
    run_scenario(without_standard_streams, start_method).check()


def test_threads_may_share_an_iterator() -> None:
    with TurboDataLoader(range(400), 4, Items(), 2, start_method="fork") as loader:
        iterator = iter(loader)
        with ThreadPoolExecutor(4) as pool:
            parts = [list(part) for part in pool.map(lambda _: list(iterator), range(4))]
    found = [x for part in parts for _, (batch,) in part for x in batch["item"].tolist()]
    assert sorted(found) == list(range(400))


def test_a_forked_child_is_told_so() -> None:
    with TurboDataLoader(range(400), 4, Items(), 2, start_method="fork") as loader:
        iterator = iter(loader)
        next(iterator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            try:
                next(iterator)
            except LoaderClosed as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(list(iterator)) == 99
