"""What is done again and again costs nothing the second time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from crumpets_like import LoaderClosed, TurboDataLoader
from tests.support.leasing import Numbers, Rows
from tests.support.loading import Items, items, run_epoch, run_items
from tests.support.scenario import run_scenario

pytestmark = pytest.mark.slow


def counts() -> tuple[int, int, int]:
    """Descriptors, threads and child processes of this process."""
    me = psutil.Process()
    return me.num_fds(), threading.active_count(), len(me.children(recursive=True))


@pytest.mark.parametrize("start_method", ["fork", "thread"])
@pytest.mark.parametrize("close", [True, False])
def test_first_batches(start_method: str, close: bool) -> None:
    """200 times ``next(iter(loader))``, and 200 times a ``break`` at once."""
    with TurboDataLoader(range(40), 4, Items(), 2, start_method=start_method) as loader:
        for number in range(200):
            if close:
                for batch in loader:  # noqa: B007
                    break
            else:
                batch = next(iter(loader))
            assert items(batch[1]) == [0, 1, 2, 3]
            if number == 99:  # by now all workers are connected
                before = counts()
        assert counts() == before


def open_and_close(start_method: str, times: int) -> None:
    loader = TurboDataLoader(range(16), 4, Items(), 2, start_method=start_method)
    before = None
    for _ in range(times):
        with loader:
            assert items(next(iter(loader))[1]) == [0, 1, 2, 3]
        before = before or counts()
    assert counts() == before, (counts(), before)


@pytest.mark.parametrize(
    ("start_method", "times"),
    [
        ("thread", 20),
        ("fork", 50),
        pytest.param("fork", 200, marks=pytest.mark.matrix),
        pytest.param("forkserver", 20, marks=pytest.mark.matrix),
        pytest.param("spawn", 10, marks=pytest.mark.matrix),
    ],
)
def test_open_and_close(start_method: str, times: int) -> None:
    result = run_scenario(open_and_close, start_method, times, timeout=120).check()
    assert result.stderr == ""


@pytest.mark.parametrize(("nworkers", "start_method"), [(0, "fork"), (2, "fork"), (2, "thread")])
class TestPasses:
    def test_stopped_in_the_middle(self, nworkers: int, start_method: str) -> None:
        with TurboDataLoader(range(40), 4, Items(), nworkers, start_method=start_method) as loader:
            for number, _ in enumerate(loader):
                if number == 4:
                    break
            assert run_items(loader) == list(range(40))

    def test_two_loaders_in_turn(self, nworkers: int, start_method: str) -> None:
        options: Any = {"start_method": start_method}
        with (
            TurboDataLoader(range(40), 4, Items(), nworkers, **options) as train,
            TurboDataLoader(range(100, 140), 4, Items(), nworkers, **options) as val,
        ):
            for _ in range(2):
                assert [items(next(iter(val))[1]) for _ in range(2)] == [[100, 101, 102, 103]] * 2
                assert len(run_epoch(train)) == 10
                assert run_items(val) == list(range(100, 140))

    def test_two_live_iterators(self, nworkers: int, start_method: str) -> None:
        with TurboDataLoader(range(40), 4, Items(), nworkers, start_method=start_method) as loader:
            older = iter(loader)
            next(older)
            newer = iter(loader)
            assert items(next(newer)[1]) == [0, 1, 2, 3]
            with pytest.raises(LoaderClosed, match="a newer one"):
                next(older)
            assert len(list(newer)) == 9

    def test_after_the_end(self, nworkers: int, start_method: str) -> None:
        loader = TurboDataLoader(range(8), 4, Items(), nworkers, start_method=start_method)
        with loader:
            iterator = iter(loader)
            next(iterator)
        with pytest.raises(LoaderClosed):
            next(iterator)
        with pytest.raises(LoaderClosed):
            iter(loader)
        with loader:
            assert run_items(loader) == list(range(8))

    def test_started_in_a_thread_that_ends(self, nworkers: int, start_method: str) -> None:
        loader = TurboDataLoader(range(400), 4, Items(), nworkers, start_method=start_method)
        thread = threading.Thread(target=loader.start)
        thread.start()
        thread.join()
        try:
            for _ in range(2):
                assert run_items(loader) == list(range(400))
        finally:
            loader.stop()

    def test_an_error_in_the_body(self, nworkers: int, start_method: str) -> None:
        def leave() -> None:
            with TurboDataLoader(
                range(40), 4, Items(), nworkers, start_method=start_method
            ) as loader:
                for _ in loader:
                    raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            leave()


def small_batches() -> None:
    """Memory after 100,000 mini-batches of 4 is that of the first ones."""
    _grow(TurboDataLoader(Numbers(400_000), 4, Rows(), 2, start_method="fork"), 4)


def large_batches() -> None:
    """Memory after 50 epochs of ten mini-batches of 10 MB is that of the third epoch."""
    worker = Rows((1_250_000 // 4,))
    _grow(TurboDataLoader(Numbers(40), 4, worker, 4, start_method="fork"), 50)


def _grow(loader: TurboDataLoader, epochs: int) -> None:
    sizes = []
    with loader:
        for _ in range(epochs):
            for number, (_, (mini_batch,)) in enumerate(loader):
                assert mini_batch["y"][0] == 4 * number
                if epochs == 4 and number == 25_000:
                    break
            sizes.append(_proportional_memory())
    early = sizes[2] if epochs > 4 else sizes[1]  # by then the window has its size
    assert sizes[-1] <= 1.05 * early + (1 << 20), sizes


def _proportional_memory() -> int:
    me = psutil.Process()
    return sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)])


@pytest.mark.parametrize("scenario", [small_batches, large_batches])
def test_memory_does_not_grow(scenario: Any) -> None:
    run_scenario(scenario, timeout=120).check()


def large_samples() -> None:
    size = 16 << 20
    worker = Rows((size // 8,))
    with TurboDataLoader(Numbers(24), 8, worker, 2, start_method="fork") as loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            assert mini_batch["x"].shape == (8, size // 8)
            assert np.array_equal(mini_batch["x"][:, -1], np.arange(8 * number, 8 * number + 8))


UNSHARE = ["unshare", "--mount", "--map-root-user"]


def _may_unshare() -> bool:
    command = [*UNSHARE, "mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", "/dev/shm"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_unshare(), reason="needs a mount namespace of its own")
def test_samples_larger_than_dev_shm() -> None:
    code = "from tests.test_repetition import large_samples; large_samples()"
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm"
    script = f"{mount} && exec {sys.executable} -c '{code}'"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    subprocess.run([*UNSHARE, "sh", "-c", script], check=True, timeout=100, env=env)
