"""Exceptions on their way from a worker to the caller."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from typing import Any, cast

import msgpack

from ..errors import LoaderError, WorkerError, WorkerTraceback
from .pickling import dump_object, load_object

__all__ = [
    "copy_exception",
    "describe_failure",
    "pack_errors",
    "rebuild_exception",
    "unpack_errors",
]


def describe_failure(error: BaseException, note: str = "") -> bytes:
    """Pickle an exception with its traceback text and a note, so that it survives the way.

    The result unpickles to ``(exception, class name, text, traceback text)``; the
    exception is None if it does not survive pickling with its type and `args`.
    """
    if note:
        error.add_note(note)
    text = "".join(traceback.format_exception(error)).rstrip()
    name = type(error).__qualname__
    try:
        described = dump_object((error, name, str(error), text))
        copy = load_object(described)[0]
        if type(copy) is type(error) and _same_arguments(copy.args, error.args):
            return described
    except Exception:  # noqa: BLE001  user classes may raise anything when pickled or unpickled
        pass
    return dump_object((None, name, _text_of(error), text))


def _same_arguments(copies: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    """Whether the arguments of an exception have survived, as far as that can be told."""
    return len(copies) == len(arguments) and all(
        type(copy) is type(argument)
        and (not isinstance(argument, str | bytes | int) or copy == argument)
        for copy, argument in zip(copies, arguments, strict=True)
    )


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not hide the error itself
        return "<its text could not be made>"


def rebuild_exception(data: bytes) -> BaseException:
    """Make the exception that a worker described, its traceback attached as the cause."""
    try:
        error, name, text, trace = load_object(data)
    except Exception as failure:  # noqa: BLE001  a user's class may raise anything when it is unpickled
        return LoaderError(f"An exception of a worker could not be unpickled: {failure!r}.")
    if error is None or isinstance(error, StopIteration | GeneratorExit):
        return WorkerError(name, text, trace)
    error.__cause__ = WorkerTraceback(trace)
    return error  # type: ignore[no-any-return]


def copy_exception(error: BaseException) -> BaseException:
    """What to raise for an error that is kept, to be raised again.

    Its traceback would be kept with it, and so the frames of its callers and all that they hold.
    """
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001  a user's class may not be made for it
        return error
    copied.__cause__ = error.__cause__
    return copied


def pack_errors(errors: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode described exceptions, each with the row or position that it belongs to."""
    return cast(bytes, msgpack.packb(errors))


def unpack_errors(frame: bytes) -> list[tuple[int, bytes]]:
    """Decode what :func:`pack_errors` made."""
    return [(number, described) for number, described in msgpack.unpackb(frame)]
