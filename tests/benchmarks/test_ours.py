"""Our loader as a contender, in every case that is quick enough."""

import pytest

from crumpets_like.benchmarks.harness import run_child


@pytest.mark.slow
@pytest.mark.parametrize("case", ["small-bulk", "small-seeded", "big", "uneven", "step"])
def test_every_worker_runs(case: str) -> None:
    measures = run_child(case, "ours", quick=True, buffers=4, watched=False)
    assert measures["samples_per_second"] > 0
    assert measures["first_batch_s"] > 0


def test_start_method_is_passed_on() -> None:
    measures = run_child("wait", "ours-fork", quick=True, buffers=4, watched=False)
    assert measures["samples_per_second"] > 0
