"""Checks of the arguments of `DataLoader`, with the texts of gluon 1.9.1 where it has one."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from numbers import Real
from typing import Any

from ..arguments import check_timeout
from ..sources import check_last_batch
from .samplers import BatchSampler, RandomSampler, SequentialSampler

__all__ = ["check_positive_timeout", "choose_batch_sampler", "negative_as_zero"]


def choose_batch_sampler(
    dataset: Any,
    batch_size: int | None,
    shuffle: bool,
    sampler: Iterable[Any] | None,
    last_batch: str | None,
    batch_sampler: Iterable[Iterable[Any]] | None,
) -> Iterable[Iterable[Any]]:
    """Return the batch sampler that the arguments of `DataLoader` ask for.

    Raises
    ------
    TypeError, ValueError
        If one is invalid, or two do not go together.
    """
    if batch_sampler is not None:
        if not (batch_size is None and not shuffle and sampler is None and last_batch is None):
            raise ValueError(
                "batch_size, shuffle, sampler and last_batch must not be specified if "
                "batch_sampler is specified."
            )
        _check_iterable("batch_sampler", batch_sampler)
        return batch_sampler
    if batch_size is None:
        raise ValueError("batch_size must be specified unless batch_sampler is specified")
    if sampler is None:
        sampler = RandomSampler(len(dataset)) if shuffle else SequentialSampler(len(dataset))
    elif shuffle:
        raise ValueError("shuffle must not be specified if sampler is specified")
    _check_iterable("sampler", sampler)
    return BatchSampler(
        sampler, batch_size, "keep" if last_batch is None else check_last_batch(last_batch)
    )


def _check_iterable(argument: str, value: Any) -> None:
    if not hasattr(value, "__iter__") and not hasattr(value, "__getitem__"):
        raise TypeError(f"{argument} must be iterable, got {value!r} ({type(value).__name__})")


def check_positive_timeout(value: Any) -> float | None:
    """Return `value` in seconds, None for no limit.

    Raises
    ------
    TypeError, ValueError
        If it is no number, or not positive.
    """
    if isinstance(value, Real) and not isinstance(value, bool) and not float(value) > 0:
        raise ValueError(f"timeout must be positive, given {value}")
    return check_timeout(value)


def negative_as_zero(argument: str, value: Any) -> int:
    """Return `value` as an int, negative ones as 0; TypeError if it is no integer."""
    try:
        return max(0, operator.index(value))
    except TypeError:
        message = f"{argument} must be an integer, got {value!r} ({type(value).__name__})"
        raise TypeError(message) from None
