"""The bare processes do the whole work."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from crumpets_like.benchmarks.cases import CASES
from crumpets_like.benchmarks.harness import run_child
from crumpets_like.benchmarks.limit import Limit


@pytest.mark.parametrize("name", ["small", "small-bulk"])
def test_samples_land_in_their_rows(name: str) -> None:
    case = CASES[name].quick()
    case = replace(case, batches={**case.batches, "limit": 2}, workers=1)
    limit = Limit(case, buffers=3)
    limit.work(nullcontext())
    assert limit.total == 6
    assert (limit.done_at > 0).all()
    epoch = case.samples // case.batch_size
    for number in range(3, 6):
        start = number % epoch * case.batch_size
        rows = slice(start, start + case.batch_size)
        np.testing.assert_array_equal(limit.x[number % 3], limit.dataset.x[rows])
        np.testing.assert_array_equal(limit.y[number % 3], limit.dataset.y[rows])


def test_processes_share_the_work() -> None:
    measures = run_child("small", "limit", quick=True, buffers=4, watched=False)
    assert measures["samples_per_second"] > 0
    assert measures["ms_per_batch"] > 0
