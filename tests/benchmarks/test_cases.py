"""Cases are consistent."""

import pytest

from crumpets_like.benchmarks import cases, copy_workers
from crumpets_like.benchmarks.case import Case
from crumpets_like.benchmarks.requirements import MEASURES

every_case = pytest.mark.parametrize("case", cases.CASES.values(), ids=lambda case: case.name)


@every_case
def test_requirements_name_contenders_and_measures_that_exist(case: Case) -> None:
    assert case.requirements
    for requirement in case.requirements:
        assert requirement.measure in MEASURES
        assert {requirement.contender, *requirement.relative_to} <= set(case.batches)


@every_case
def test_sizes(case: Case) -> None:
    assert all(count > 0 for count in case.batches.values())
    assert case.samples % case.batch_size == 0
    assert hasattr(copy_workers, case.worker)


@every_case
def test_quick_is_small(case: Case) -> None:
    quick = case.quick()
    assert quick.batches.keys() == case.batches.keys()
    if case.kind == "epochs":
        assert max(quick.batches.values()) <= 2 * case.workers


def test_quick_cases_exist() -> None:
    assert set(cases.QUICK) <= set(cases.CASES)
