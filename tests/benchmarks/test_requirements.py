"""Requirements compare medians of factors with bounds."""

import pytest

from crumpets_like.benchmarks.requirements import Check, Requirement

RESULTS = {
    "ours": {"samples_per_second": 900.0, "first_batch_s": 0.2},
    "torch": {"samples_per_second": 90.0, "first_batch_s": 0.5},
    "torch-listed": {"samples_per_second": 100.0},
    "torch0": {},
}


def test_the_best_of_the_others_counts() -> None:
    check = Requirement("samples_per_second", 9.5, ("torch", "torch-listed")).check([RESULTS])
    assert check == Check("samples/s >= 9.5 x torch/torch-listed", 9.0, False)
    assert Requirement("samples_per_second", 9.5, ("torch",)).check([RESULTS]).reached


def test_the_factor_is_that_of_what_ran_in_the_same_round() -> None:
    rates = [(90.0, 100.0), (50.0, 50.0), (110.0, 100.0), (7.0, 1.0)]
    rounds = [
        {"ours": {"samples_per_second": ours}, "limit": {"samples_per_second": limit}}
        for ours, limit in rates
    ]
    alone = {"ours": {"peak_pss_mb": 3.0}}
    check = Requirement("samples_per_second", 1.0, ("limit",)).check([*rounds[:3], alone])
    assert check == Check("samples/s >= 1 x limit", 1.0, True)
    check = Requirement("samples_per_second", 1.0, ("limit",)).check(rounds)
    assert check.value == pytest.approx(1.05)


def test_less_is_better_where_stated() -> None:
    check = Requirement("first_batch_s", 1 / 3, ("torch",), at_most=True).check([RESULTS])
    assert check == Check("first batch (s) <= 1/3 x torch", 0.4, False)
    check = Requirement("first_batch_s", 0.3, at_most=True).check([RESULTS])
    assert check == Check("first batch (s) <= 0.3", 0.2, True)


@pytest.mark.parametrize(
    "requirement",
    [
        Requirement("samples_per_second", 1, ("torch0", "absent")),
        Requirement("samples_per_second", 1, contender="ours-fork"),
        Requirement("rss_growth_mb", 1, at_most=True),
    ],
)
def test_what_was_not_measured_is_neither_reached_nor_missed(requirement: Requirement) -> None:
    check = requirement.check([RESULTS])
    assert check.value is None
    assert check.reached is None
