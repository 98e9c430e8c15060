"""The benchmark of the executor's step."""

import pytest

pytest.importorskip("torch")

import torch

from crumpets_like.benchmarks.cases import CASES
from crumpets_like.benchmarks.executor_step import NETWORKS, measure
from crumpets_like.benchmarks.requirements import MEASURES


@pytest.mark.parametrize("contender", NETWORKS)
def test_both_run_and_nothing_is_allocated_again(contender: str) -> None:
    threads = torch.get_num_threads()
    try:
        measures = measure(contender, 3)
    finally:
        torch.set_num_threads(threads)
    assert measures["reallocated"] == 0
    assert measures["eager_ratio"] > 0
    assert measures["samples_per_second"] == pytest.approx(64e3 / measures["ms_per_batch"])
    assert set(measures) <= set(MEASURES)


def test_the_case_has_both_networks() -> None:
    assert set(CASES["executor-step"].batches) == set(NETWORKS)
