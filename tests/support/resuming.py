"""Loaders that tell each sample and what it draws, and their states."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import numpy as np

from crumpets_like import TurboDataLoader
from tests.support.loading import Items

__all__ = ["Drawing", "all_of", "make", "receive", "through_json"]


class Drawing(Items):
    """Tells each sample, its epoch, and what it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("draw", ((), np.float64))
        self.add_buffer("epoch", ((), np.int64))

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        super().prepare(sample, batch, buffers)
        buffers["draw"][...] = self.rng.random()
        buffers["epoch"][...] = self.epoch


def make(
    iterable: Any = range(100), batch_size: int = 4, nworkers: int = 0, **options: Any
) -> TurboDataLoader:
    options = {"seed": 7, "start_method": "fork", **options}
    return TurboDataLoader(iterable, batch_size, Drawing(), nworkers, **options)


def tell(batch: tuple[int, list[dict[str, Any]]]) -> list[Any]:
    """What there is to see of one iteration."""
    iteration, mini_batches = batch
    rows = [
        row for mb in mini_batches for row in zip(mb["item"], mb["draw"], mb["epoch"], strict=True)
    ]
    return [iteration, [[int(item), float(draw), int(epoch)] for item, draw, epoch in rows]]


def receive(loader: TurboDataLoader, most: int | None = None) -> list[Any]:
    """The next epoch, or the first `most` batches of it."""
    return [tell(batch) for batch in islice(loader, most)]


def through_json(loader: TurboDataLoader) -> dict[str, Any]:
    state = loader.state_dict()
    text = json.dumps(state)
    assert len(text) < 600
    loaded: dict[str, Any] = json.loads(text)
    assert json.dumps(loaded) == text
    return loaded


def all_of(epochs: int, **options: Any) -> list[list[Any]]:
    """Epochs of a run that never stops."""
    with make(**options) as loader:
        return [receive(loader) for _ in range(epochs)]
