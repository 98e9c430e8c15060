"""Checks of arguments that several classes take."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["check_count"]


def check_count(argument: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int.

    Raises
    ------
    TypeError
        If it is no integer.
    ValueError
        If it is less than `least`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        message = f"{argument} must be an integer, got {value!r} ({type(value).__name__})"
        raise TypeError(message) from None
    if count < least:
        raise ValueError(f"{argument} must be at least {least}, got {count}")
    return count
