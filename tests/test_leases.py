"""A mini-batch stays valid as long as anything looks at it, and nobody has to wait for that."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from crumpets_like import BufferExhausted, TurboDataLoader, Worker
from tests.support.leasing import FreeForm, Listed, Numbers, Rows, keep_everything
from tests.support.scenario import run_scenario

KINDS = ["buffers", "lists", "free form"]


@pytest.mark.parametrize("kind", ["batches", "slices", "memoryviews"])
def test_everything_kept_stays_right(kind: str) -> None:
    run_scenario(keep_everything, kind, timeout=60).check()


def test_kept_tensors_stay_right() -> None:
    pytest.importorskip("torch", reason="needs torch")
    run_scenario(keep_everything, "tensors", timeout=60).check()


@pytest.mark.slow
def test_one_kept_batch_takes_one_buffer() -> None:
    with TurboDataLoader(Numbers(40_000), 4, Rows(), 2, prefetch=4) as loader:
        iterator = iter(loader)
        kept = next(iterator)[1][0]
        for _ in iterator:
            assert loader.statistics().buffers_held <= 3
        del _
        assert loader.statistics().buffers_held == 1
    assert kept["y"].tolist() == [0, 1, 2, 3]
    assert (kept["x"] == kept["y"][:, None]).all()


def test_three_batches_held_at_any_time() -> None:
    held: list[Any] = []
    with TurboDataLoader(Numbers(40_000), 4, Rows(), 2) as loader:
        for number, (_, (mini_batch,)) in enumerate(loader):
            held = [*held[-2:], (number, mini_batch)]
            for old, values in held:
                assert values["y"].tolist() == list(range(4 * old, 4 * old + 4))


def test_batches_outlive_the_loader() -> None:
    with TurboDataLoader(Numbers(64), 8, Rows(), 2) as loader:
        kept = [mini_batch["x"][1:, :3] for _, (mini_batch,) in loader]
    del loader
    gc.collect()
    for number, view in enumerate(kept):
        assert view[:, 0].tolist() == list(range(8 * number + 1, 8 * number + 8))
        view += 1  # views are writable


@pytest.mark.parametrize("worker", [Rows(), Listed(), FreeForm((1000,))], ids=KINDS)
@pytest.mark.parametrize("nworkers", [0, 1])
def test_a_buffer_is_free_at_once(nworkers: int, worker: Worker) -> None:
    with TurboDataLoader(Numbers(800), 4, worker, nworkers, max_buffers=4) as loader:
        gc.disable()
        try:
            for _, batch in loader:
                batch.clear()
                assert loader.statistics().buffers_held == 0
        finally:
            gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("worker", [Rows(), Listed(), FreeForm((1000,))], ids=KINDS)
@pytest.mark.parametrize("nworkers", [0, 1])  # free-form results of several workers are joined
def test_exhausted_buffers_name_the_batches_held(nworkers: int, worker: Worker) -> None:
    with TurboDataLoader(Numbers(4000), 4, worker, nworkers, max_buffers=8) as loader:
        iterator = iter(loader)
        held = [next(iterator) for _ in range(8)]
        for _ in range(3):
            with pytest.raises(BufferExhausted, match="still holds 8 mini-batches") as caught:
                next(iterator)
            assert (caught.value.held, caught.value.limit) == (8, 8)
            del held[0]
            held.append(next(iterator))
        del held
        assert sum(1 for _ in iterator) == 1000 - 11


@pytest.mark.parametrize("nworkers", [0, 1])
def test_buffers_of_the_next_batch_are_not_held_by_the_caller(nworkers: int) -> None:
    options: Any = {"num_mini_batches": 3, "max_buffers": 8}
    with TurboDataLoader(Numbers(4000), 12, Rows(), nworkers, **options) as loader:
        iterator = iter(loader)
        held = [next(iterator) for _ in range(2)]
        with pytest.raises(BufferExhausted, match=r"holds 6 .*; 2 are for the batch") as caught:
            next(iterator)
        assert (caught.value.held, caught.value.limit) == (6, 8)
        del held


@pytest.mark.slow
def test_cycles_are_collected_before_buffers_are_exhausted() -> None:
    with TurboDataLoader(Numbers(400), 4, Rows(), 2, max_buffers=6) as loader:
        gc.disable()
        try:
            for _, (mini_batch,) in loader:
                cycle: list[Any] = [mini_batch]
                cycle.append(cycle)
                del cycle, mini_batch
        finally:
            gc.enable()


def test_breaks_do_not_need_more_and_more_buffers() -> None:
    with TurboDataLoader(Numbers(400), 4, Rows(), 2, max_buffers=8) as loader:
        for _ in range(100):
            _, (mini_batch,) = next(iter(loader))
            assert mini_batch["y"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("nworkers", "parts", "buffers"), [(1, 8, 1), (2, 4, 2), (0, 4, 1)])
def test_more_mini_batches_than_buffers(nworkers: int, parts: int, buffers: int) -> None:
    with TurboDataLoader(
        Numbers(100), 8, Rows(), nworkers, num_mini_batches=parts, shared_memory=buffers
    ) as loader:
        seen = [int(y) for _, batch in loader for part in batch for y in part["y"]]
    assert seen == list(range(100))


def test_the_base_of_all_fields_is_the_ring() -> None:
    with TurboDataLoader(Numbers(8), 8, Rows(), 1) as loader:
        (_, (mini_batch,)) = next(iter(loader))
        base = mini_batch["x"].base
        assert isinstance(base, np.ndarray)
        assert base is mini_batch["y"].base
        assert type(base.base).__name__ == "mmap"


def epoch(shared_memory: bool | int, worker: Worker) -> list[Any]:
    """Values of two batches that are cut into mini-batches, in plain lists."""
    with TurboDataLoader(
        Numbers(14), 8, worker, 2, num_mini_batches=2, shared_memory=shared_memory
    ) as loader:
        return [
            {key: value.tolist() for key, value in part.items()}
            for _, batch in loader
            for part in batch
        ]


@pytest.mark.parametrize("worker", [Rows(), FreeForm((1000,))], ids=["buffers", "free form"])
def test_results_are_the_same_without_shared_memory(worker: Worker) -> None:
    expected = epoch(True, worker)
    assert [row for part in expected for row in part["y"]] == list(range(14))
    for shared_memory in (False, 0, 1):
        assert epoch(shared_memory, worker) == expected


@pytest.mark.parametrize(("shared_memory", "most", "least"), [(1, 1, 0), (2, 2, 1), (True, 256, 5)])
def test_true_is_not_one(shared_memory: bool | int, most: int, least: int) -> None:
    with TurboDataLoader(Numbers(4000), 4, Rows(), 3, shared_memory=shared_memory) as loader:
        batch = next(iter(loader))
        facts = loader.statistics()
    assert facts.buffers_held == 1
    assert least <= facts.buffers_free + facts.buffers_filling + facts.buffers_ready <= most
    del batch
