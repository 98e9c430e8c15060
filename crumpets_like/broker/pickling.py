"""Pickles of what users made."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["dump_object", "load_object"]


def dump_object(obj: Any, callback: Any = None) -> bytes:
    """Pickle; by cloudpickle where plain pickle cannot (local classes and functions)."""
    try:
        return pickle.dumps(obj, protocol=5, buffer_callback=callback)
    except Exception:  # noqa: BLE001  user code may raise anything; cloudpickle's error is shown
        import cloudpickle

        return cloudpickle.dumps(obj, protocol=5)  # type: ignore[no-any-return]


load_object = pickle.loads
