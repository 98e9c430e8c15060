"""Checks of arguments that several classes take."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

__all__ = ["OnError", "check_count", "check_on_error"]

OnError: TypeAlias = Literal["raise", "skip"] | Callable[[int | None, Exception], Any]


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


def check_on_error(value: Any) -> OnError:
    """Return `value`; ValueError if it is neither "raise", "skip" nor callable."""
    if callable(value) or (isinstance(value, str) and value in ("raise", "skip")):
        return cast(OnError, value)
    raise ValueError(f"on_error must be 'raise', 'skip' or callable, got {value!r}")
