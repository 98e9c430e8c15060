"""Pickles of what users made."""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from typing import Any

from .tensors import reducers

__all__ = ["dump_for_workers", "dump_object", "load_object"]


def dump_for_workers(obj: Any) -> bytes:
    """Pickle for other processes: what is of this one's main module travels by value."""
    try:
        data = pickle.dumps(obj, protocol=5)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        pass
    else:
        if b"__main__" not in data:
            return data
    import cloudpickle

    return cloudpickle.dumps(obj, protocol=5)  # type: ignore[no-any-return]


def dump_object(obj: Any, callback: Any = None) -> bytes:
    """Pickle; by cloudpickle where plain pickle cannot (local classes and functions).

    With `callback` for large buffers (as in :mod:`pickle`), tensors are arrays in them.
    """
    table = reducers() if callback is not None else {}
    try:
        if not table:
            return pickle.dumps(obj, protocol=5, buffer_callback=callback)
        return _dump(pickle.Pickler, obj, callback, table)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        import cloudpickle

        both = ChainMap(*getattr(table, "maps", ()), cloudpickle.Pickler.dispatch_table)
        return _dump(cloudpickle.Pickler, obj, callback, both)


def _dump(kind: Any, obj: Any, callback: Any, table: Any) -> bytes:
    file = io.BytesIO()
    # A class, since a pickler looks for its table when it is made.
    made = type("Pickler", (kind,), {"dispatch_table": table})
    made(file, protocol=5, buffer_callback=callback).dump(obj)
    return file.getvalue()


load_object = pickle.loads
