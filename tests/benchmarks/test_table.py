"""Tables of the results."""

from crumpets_like.benchmarks import table
from crumpets_like.benchmarks.cases import CASES
from crumpets_like.benchmarks.harness import CaseResult, Result


def test_layout() -> None:
    assert table.layout([["a", "bb"], ["ccc", "d"]]) == ("| a   | bb |\n|-----|----|\n| ccc | d  |")


def test_tables_show_every_contender_and_requirement() -> None:
    ours = {"samples_per_second": 1e6, "reopen_s": 0.5, "epoch_gap_s": 0.002}
    limit = {"samples_per_second": 2e6}
    contenders = {
        "ours": Result([ours], ours),
        "torch": Result(error="torch not installed", note="as it is"),
        "limit": Result([limit], limit),
    }
    result = CaseResult(CASES["small"], contenders)
    lines = table.measures_table([result]).splitlines()
    assert len(lines) == 5
    assert "1,000,000" in lines[2]
    assert "new epoch 0.5000 s" in lines[2]
    assert " 2.0 " in lines[2]
    assert "torch not installed; as it is" in lines[3]
    lines = table.checks_table([result]).splitlines()
    assert "not measured" in lines[2]
    assert "| 0.5      | yes" in lines[3]
