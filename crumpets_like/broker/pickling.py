"""Pickles of what users made."""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

__all__ = [
    "MAIN_NAMES",
    "cloud_pickler",
    "dump_by_value",
    "dump_for_workers",
    "dump_object",
    "dump_with",
    "find_unpicklable",
    "load_object",
    "main_by_value",
    "pickling_error",
]

MAIN_NAMES = ("__main__", "__mp_main__")
"""The user's main module here, and in a process that multiprocessing has spawned."""

_MOST_DEPTH = 8  # attributes of attributes that are looked at


def dump_for_workers(obj: Any) -> bytes:
    """Pickle for other processes: what is of this one's main module travels by value."""
    try:
        data = pickle.dumps(obj, protocol=5)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        pass
    else:
        if not any(name.encode() in data for name in MAIN_NAMES):
            return data
    main_by_value()
    return dump_by_value(obj)


def main_by_value() -> None:
    """Let cloudpickle pickle by value what is of the main module in a spawned process, too."""
    import cloudpickle

    if (main := sys.modules.get("__mp_main__")) is not None:
        cloudpickle.register_pickle_by_value(main)


def dump_object(obj: Any) -> bytes:
    """Pickle; by cloudpickle where plain pickle cannot (local classes and functions)."""
    try:
        return pickle.dumps(obj, protocol=5)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        return dump_by_value(obj)


@functools.cache
def cloud_pickler() -> Any:
    """The class of cloudpickle's pickler, but what travels by value keeps its ``__slots__``.

    Without them a class is another one: its instances have a ``__dict__``, which those of the
    original class cannot be given when they come back.
    """
    import cloudpickle
    from cloudpickle.cloudpickle import _make_skeleton_class

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def reducer_override(self, obj: Any) -> Any:
            reduced = super().reducer_override(obj)
            if isinstance(reduced, tuple) and reduced[0] is _make_skeleton_class:
                slots = vars(obj).get("__slots__")
                if slots is not None:
                    contents = reduced[1][3]  # what the class has from its beginning
                    contents["__slots__"] = slots
            return reduced

    return Pickler


def dump_by_value(obj: Any) -> bytes:
    """Pickle by cloudpickle, which can do so with local classes and functions."""
    file = io.BytesIO()
    cloud_pickler()(file, protocol=5).dump(obj)
    return file.getvalue()


def dump_with(
    kind: type[pickle.Pickler],
    obj: Any,
    table: dict[type, Callable[[Any], Any]],
    buffer_callback: Callable[[pickle.PickleBuffer], bool],
) -> bytes:
    """Pickle by pickle's or cloudpickle's pickler; reducing by `table` alone."""
    file = io.BytesIO()
    pickler: Any = kind.__new__(kind)
    pickler.dispatch_table = table  # before __init__, which looks for it
    pickler.__init__(file, protocol=5, buffer_callback=buffer_callback)
    pickler.dump(obj)
    return file.getvalue()


load_object = pickle.loads


def pickling_error(text: str, error: Exception) -> Exception:
    """What to raise for an error in pickling, whose own text does not say what it is about."""
    kind = type(error) if type(error) in (TypeError, pickle.PicklingError) else pickle.PicklingError
    return kind(text)


def find_unpicklable(
    value: Any, path: str, dump: Callable[[Any], Any] = dump_by_value
) -> str | None:
    """Path of the innermost attribute or item that `dump` cannot pickle, or None."""
    return _find(value, path, dump, _MOST_DEPTH, set())


def _find(
    value: Any, path: str, dump: Callable[[Any], Any], depth: int, seen: set[int]
) -> str | None:
    if id(value) in seen or depth == 0:
        return None
    seen.add(id(value))
    try:
        dump(value)
    except Exception:  # noqa: BLE001  pickling runs user code, which may raise anything
        pass
    else:
        return None
    children = [(f"{path}.{name}", item) for name, item in _state(value).items()]
    if isinstance(value, dict):
        children += [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple | set):
        children += [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    elif getattr(getattr(value, "dtype", None), "hasobject", False):
        children += [(f"{path}.flat[{number}]", item) for number, item in enumerate(value.flat)]
    for child_path, child in children:
        found = _find(child, child_path, dump, depth - 1, seen)
        if found:
            return found
    return path


def _state(value: Any) -> dict[str, Any]:
    """The attributes that pickle would store, where that can be told."""
    try:
        state = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)[2]
    except Exception:  # noqa: BLE001  runs user code, too
        return {}
    parts = state if isinstance(state, tuple) else (state,)  # with __slots__: two dicts
    return {name: item for part in parts if isinstance(part, dict) for name, item in part.items()}
