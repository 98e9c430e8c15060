"""``bench`` from its arguments to its tables."""

import argparse
import json
from pathlib import Path

import pytest

from crumpets_like.benchmarks import cli


def bench(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args(argv))


@pytest.mark.slow
def test_quick_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    assert bench("small", "shuffle", "--quick", "--json", str(file)) == 0
    out, told = capsys.readouterr()
    assert told.startswith("small: samples/s >= 8 x torch: ")
    assert "required" not in out
    known = json.loads(file.read_text())
    assert set(known) == {"machine", "cases"}
    small = known["cases"]["small"]
    ours = small["contenders"]["ours"]
    assert ours["error"] == ""
    assert ours["median"]["samples_per_second"] > 0
    assert [check["text"] for check in small["checks"]][1] == "samples/s >= 0.35 x limit"
    assert small["checks"][1]["value"] > 0
    assert known["cases"]["shuffle"]["checks"][0]["value"] > 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["smal"], "unknown case smal; there are small,"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--json", "/nowhere/at/all"], "--json cannot be written: [Errno 2]"),
    ],
)
def test_wrong_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(*argv) == 2
    assert message in capsys.readouterr().err
