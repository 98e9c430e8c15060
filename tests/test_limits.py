"""Limits of the system: the loader takes what it can get, or says what is missing."""

from __future__ import annotations

import sys

import pytest

from crumpets_like import TurboDataLoader
from tests.support.leasing import Numbers, Rows, dataset_memory, with_limit
from tests.support.scenario import run_scenario

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@linux
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(("name", "size"), [("RLIMIT_AS", 8 << 30), ("RLIMIT_FSIZE", 1 << 28)])
def test_smaller_mappings(name: str, size: int, start_method: str) -> None:
    run_scenario(with_limit, name, size, start_method, timeout=60).check()


@pytest.mark.slow
@linux
@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_one_copy_of_a_large_array(start_method: str) -> None:
    run_scenario(dataset_memory, start_method, timeout=60).check()


def test_a_ring_larger_than_memory_is_refused() -> None:
    loader = TurboDataLoader(Numbers(4), 1 << 20, Rows((1 << 20,)), 2)
    with pytest.raises(MemoryError, match=r"needs [\d,]+ bytes \(4 buffers .* shared_memory=n"):
        loader.start()
