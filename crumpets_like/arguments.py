"""Checks of arguments that several classes take."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

__all__ = [
    "OnError",
    "check_count",
    "check_flag",
    "check_on_error",
    "check_optional_count",
    "check_timeout",
]

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


def check_optional_count(argument: str, value: Any, least: int = 1) -> int | None:
    """As :func:`check_count`, but None is returned as it is."""
    return None if value is None else check_count(argument, value, least)


def check_flag(argument: str, value: Any) -> bool:
    """Return `value` as a bool; TypeError for anything else, such as ``"no"``, which is true."""
    if type(value).__name__ in ("bool", "bool_"):  # numpy's, too
        return bool(value)
    raise TypeError(f"{argument} must be True or False, got {value!r} ({type(value).__name__})")


def check_on_error(value: Any) -> OnError:
    """Return `value`; ValueError if it is neither "raise", "skip" nor callable."""
    if callable(value) or (isinstance(value, str) and value in ("raise", "skip")):
        return cast(OnError, value)
    raise ValueError(f"on_error must be 'raise', 'skip' or callable, got {value!r}")


def check_timeout(value: Any) -> float | None:
    """Return `value` in seconds; None for no limit, or one beyond what can be waited for.

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is not positive.
    """
    if value is None:
        return None
    message = f"timeout must be a positive number of seconds or None (no limit), got {value!r}."
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(message)
    seconds = float(value)
    if not seconds > 0:
        raise ValueError(message)
    return seconds if seconds < threading.TIMEOUT_MAX else None
