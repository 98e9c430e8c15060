"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

from tests.support.scenario import run_scenario

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.S | re.M)


def test_readme_has_examples() -> None:
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("code", BLOCKS)
def test_example_runs(code: str) -> None:
    result = run_scenario(code, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert not result.leftovers
