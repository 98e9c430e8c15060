"""Contenders run in turn, each in a fresh process."""

import sys
from typing import Any

import pytest

from crumpets_like.benchmarks import harness
from crumpets_like.benchmarks.case import Case
from crumpets_like.benchmarks.cases import CASES


def test_median_of_each_measure() -> None:
    runs = [{"a": 3.0}, {"a": 1.0, "b": 5.0}, {"a": 2.0}]
    assert harness.medians(runs) == {"a": 2.0, "b": 5.0}
    assert harness.medians([]) == {}


def test_environment_of_the_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "8")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    environment = harness.child_environment()
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert "OPENBLAS_CORETYPE" not in environment


def test_a_failing_contender_tells_why() -> None:
    with pytest.raises(harness.ContenderFailed, match=r"exit code 2: .*'nobody'"):
        harness.run_child("small", "nobody", True, 4, False)


def test_a_hanging_contender_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "TIME_LIMIT", 0.1)
    with pytest.raises(harness.ContenderFailed, match="no result within"):
        harness.run_child("wait", "limit", False, 32, False)


def test_contenders_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int, bool]] = []

    def run_child(
        case: str, contender: str, quick: bool, buffers: int, watched: bool
    ) -> dict[str, float]:
        calls.append((contender, buffers, watched))
        if contender == "torch0":
            raise harness.ContenderFailed("exit code 1: no luck")
        measures = {"samples_per_second": 10.0 + len(calls), "buffers": 7.0}
        return {**measures, "peak_pss_mb": 3.0} if watched else measures

    monkeypatch.setattr(harness, "run_child", run_child)
    monkeypatch.setattr(harness, "missing_package", lambda case, name: "")
    lines: list[str] = []
    result = harness.run_case(CASES["small"], 2, False, lines.append)
    names = [name for name, *_ in calls]
    assert names == ["ours", "limit", "torch", "torch0"] + ["ours", "limit", "torch"] * 2
    assert calls[1] == ("limit", 7, False)
    assert [watched for *_, watched in calls] == [False] * 7 + [True] * 3
    ours = result.contenders["ours"]
    assert ours.runs == [
        {"samples_per_second": 11.0},
        {"samples_per_second": 15.0},
        {"peak_pss_mb": 3.0},
    ]
    assert ours.median == {"samples_per_second": 13.0, "peak_pss_mb": 3.0}
    assert result.contenders["torch0"].failed
    assert lines[0] == "small: ours, run 1"
    assert [check.reached for check in result.checks()] == [False, True]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> Any:
        return None if name in {"torch", "cv2"} else sys

    monkeypatch.setattr(harness, "find_spec", find_spec)
    case: Case = CASES["jpeg"]
    assert harness.missing_package(case, "limit") == "cv2 not installed"
    assert harness.missing_package(case, "torch") == "cv2, torch not installed"
    assert harness.missing_package(CASES["small"], "ours") == ""
