"""The states of the drop-in loaders: runs that stop, and runs that go on."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

__all__ = ["receive", "tell", "through_json"]


def tell(batch: Any) -> Any:
    """A batch as JSON has it."""
    if isinstance(batch, list | tuple):
        return [tell(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def receive(loader: Any, most: int | None = None) -> list[Any]:
    """The next pass, or the first `most` batches of it."""
    return [tell(batch) for batch in islice(loader, most)]


def through_json(loader: Any) -> dict[str, Any]:
    """A loader's state as it comes out of a file."""
    text = json.dumps(loader.state_dict())
    loaded: dict[str, Any] = json.loads(text)
    assert json.dumps(loaded) == text
    return loaded
