"""Exceptions on their way from a worker to the caller."""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import msgpack

from ..errors import (
    LoaderError,
    LoaderTimeout,
    Whereabouts,
    WorkerDied,
    WorkerError,
    WorkerTraceback,
)
from .pickling import dump_object, load_object

__all__ = [
    "add_note",
    "copy_exception",
    "describe_failure",
    "pack_errors",
    "rebuild_exception",
    "unpack_errors",
]


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, also to one that refuses new attributes."""
    with contextlib.suppress(Exception):
        notes = [*getattr(error, "__notes__", ()), note]
        BaseException.__setattr__(error, "__notes__", notes)


def describe_failure(
    error: BaseException, note: str = "", where: Whereabouts | None = None
) -> bytes:
    """Pickle an exception with its traceback text and a note, so that it survives the way.

    The result unpickles to ``(pickled exception, class name, text, traceback text, notes, where)``;
    the exception is None if it does not survive pickling with its type and `args`.
    """
    if note:
        add_note(error, note)
    text = "".join(traceback.format_exception(error)).rstrip()
    name = type(error).__qualname__
    described = None
    try:
        str(error)  # if that raises, whoever shows the error would not see its text
        pickled = dump_object(error)
        copy = load_object(pickled)
        if type(copy) is type(error) and _same_arguments(copy.args, error.args):
            described = pickled
    except Exception:  # noqa: BLE001  user classes may raise anything when pickled or unpickled
        pass
    return dump_object((described, name, _text_of(error), text, _notes_of(error), where))


def _same_arguments(copies: tuple[Any, ...], arguments: tuple[Any, ...]) -> bool:
    """Whether the arguments of an exception have survived, as far as that can be told."""
    return len(copies) == len(arguments) and all(
        type(copy) is type(argument)
        and (not isinstance(argument, str | bytes | int) or copy == argument)
        for copy, argument in zip(copies, arguments, strict=True)
    )


def _notes_of(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a broken __str__ must not hide the error itself
        return "<its text could not be made>"


def rebuild_exception(data: bytes) -> BaseException:
    """Make the exception that a worker described, its traceback attached as the cause."""
    try:
        pickled, name, text, trace, notes, where = load_object(data)
    except Exception as failure:  # noqa: BLE001  a stranger may have sent it
        return LoaderError(f"An exception of a worker could not be unpickled: {failure!r}.")
    error: Any = None
    if pickled is not None:
        with contextlib.suppress(Exception):  # its class may not be known here, or raise anything
            error = load_object(pickled)
    if not isinstance(error, BaseException) or isinstance(error, StopIteration | GeneratorExit):
        return WorkerError(name, text, trace, where)
    if isinstance(error, WorkerDied | LoaderTimeout):  # whose text has the worker's stack
        return _with_keys(error)
    BaseException.__setattr__(error, "__cause__", WorkerTraceback(trace))
    _keep_notes(error, notes)
    return error


def _keep_notes(error: BaseException, notes: Sequence[str]) -> None:
    """For an error whose own ``__reduce__`` does not tell them."""
    if not hasattr(error, "__notes__"):
        for note in notes:
            add_note(error, note)


def _with_keys(error: WorkerDied | LoaderTimeout) -> BaseException:
    """The same error with the keys of its samples; the broker, which made it, unpickles none."""
    where = error.where
    if where is None or not all(isinstance(key, bytes) for key in where.keys or [None]):
        return error
    keys: tuple[Any, ...] = ()
    with contextlib.suppress(Exception):  # then without them
        keys = tuple(map(load_object, where.keys))
    if len(keys) == 1:  # a whole batch may be one sample of ours
        keys = tuple(getattr(keys[0], "_crumpets_keys", keys))
    if keys and all(isinstance(key, int) for key in keys):
        index = keys[0] if len(keys) == 1 else None
        found = replace(where, keys=(), index=index, indices=() if index is not None else keys)
    else:
        found = replace(where, keys=keys)
    kind, arguments, _ = error.__reduce__()
    located: BaseException = kind(*[found if one is where else one for one in arguments])
    return located


def copy_exception(error: BaseException) -> BaseException:
    """What to raise for an error that is kept, to be raised again.

    Its traceback would be kept with it, and so the frames of its callers and all that they hold.
    """
    try:
        copied = copy.copy(error)
    except Exception:  # noqa: BLE001  a user's class may not be made for it
        return error
    BaseException.__setattr__(copied, "__cause__", error.__cause__)  # frozen ones refuse it
    _keep_notes(copied, _notes_of(error))
    return copied


def pack_errors(errors: Sequence[tuple[int, bytes]]) -> bytes:
    """Encode described exceptions, each with the row or position that it belongs to."""
    return cast(bytes, msgpack.packb(errors))


def unpack_errors(frame: bytes) -> list[tuple[int, bytes]]:
    """Decode what :func:`pack_errors` made."""
    return [(number, described) for number, described in msgpack.unpackb(frame)]
