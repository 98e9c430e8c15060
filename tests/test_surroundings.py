"""What the loader takes over from its surroundings, and what it makes of bad ones."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from crumpets_like import TurboDataLoader, Worker
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
        assert wait_until(lambda: len(caplog.records) >= 2)
    records = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
    assert records[0] == ("mine.worker", "WARNING", "sample 0 of 0")
    assert records[1][:2] == ("mine", "ERROR")
    assert records[1][2].startswith("with a traceback\nTraceback")
    assert records[1][2].endswith("LookupError: an error")
    assert len(records) == 2


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
