"""The full matrix of faults and start methods runs in one environment, a part in the others."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["PROCESSES", "start_methods"]


def start_methods(first: str, *others: str) -> list[Any]:
    """Parameters: `first` always, `others` where the full matrix runs."""
    return [first, *(pytest.param(name, marks=pytest.mark.matrix) for name in others)]


PROCESSES = start_methods("fork", "forkserver", "spawn")
