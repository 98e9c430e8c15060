"""Passes are timed as documented, with a loader that is no loader."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from crumpets_like.benchmarks import measure
from crumpets_like.benchmarks.cases import CASES


class FakeLoader:
    def __init__(self, batches: int) -> None:
        self.count = batches
        self.log: list[str] = []

    def start(self) -> None:
        self.log.append("start")

    def batches(self) -> Iterator[object]:
        self.log.append("open")
        return iter(range(self.count))

    def stop(self) -> None:
        self.log.append("stop")


def test_spin_takes_its_time() -> None:
    begin = time.perf_counter()
    measure.spin(0.01)
    assert time.perf_counter() - begin >= 0.01


def test_consume_takes_every_batch() -> None:
    result = measure.consume(iter(range(5)), step_s=0.001)
    assert result.count == 5
    assert result.last - result.first >= 0.005


def test_no_batch_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no batch"):
        measure.consume([])
    with pytest.raises(RuntimeError, match="no batch"):
        measure.measure_first(FakeLoader(0), CASES["start"])


def test_two_epochs_are_run_and_the_second_is_timed() -> None:
    loader = FakeLoader(4)
    measures = measure.measure_epochs(loader, replace(CASES["small"], step_s=0.001))
    assert loader.log == ["start", "open", "open", "stop"]
    assert measures["ms_per_batch"] >= 1.0
    assert measures["samples_per_second"] == pytest.approx(256e3 / measures["ms_per_batch"])
    assert measures["cpu_us_per_batch"] > 0
    assert 0 <= measures["epoch_gap_s"] < 1
    assert 0 < measures["first_batch_s"] < 1


def test_first_batches() -> None:
    loader = FakeLoader(4)
    assert set(measure.measure_first(loader, CASES["start"])) == {"first_batch_s"}
    assert loader.log == ["start", "open", "stop"]
    loader = FakeLoader(4)
    measures = measure.measure_reopen(loader, CASES["shuffle"])
    assert set(measures) == {"first_batch_s", "reopen_s", "rss_growth_mb"}
    assert loader.log == ["start", "open", "open", "stop"]
