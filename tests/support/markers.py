"""Pictures with a marker, ways to move them, and where the marker is afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import BufferWorker, TurboDataLoader

__all__ = ["GEOMETRIES", "SOURCE", "centroid", "painted", "read"]

SOURCE = (120, 160)  # height and width of the pictures

GEOMETRIES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "longest": {"scale_mode": "longest"},
    "turned": {"angle": 30.0},
    "quarter": {"angle": 90.0},
    "enlarged": {"scale": 1.3, "shift": (0.2, -0.3)},
    "reduced": {"scale": 0.6, "shift": (0.5, 0.5)},
    "mirrored": {"hmirror": True},
    "upside down": {"vmirror": True, "angle": -20.0},
    "wide": {"aspect": 1.3},
    "sheared": {"shear": (0.2, -0.1)},
    "all": {
        "angle": -35.0,
        "scale": 0.9,
        "aspect": 0.8,
        "shift": (-0.3, 0.2),
        "shear": (0.1, 0.15),
        "hmirror": True,
        "vmirror": True,
        "scale_mode": "longest",
    },
}
"""Parameters of the geometry, by name; each keeps the middle of the picture on its target."""


def painted(left: int, top: int, right: int, bottom: int) -> NDArray[np.uint8]:
    """A black picture with a white box, whose edges these are."""
    picture = np.zeros((*SOURCE, 3), np.uint8)
    picture[top:bottom, left:right] = 255
    return picture


def centroid(picture: NDArray[Any]) -> NDArray[np.float64]:
    """(x, y) of the centre of brightness of a picture of shape (H, W)."""
    weights = picture.astype(np.float64)
    rows, columns = np.mgrid[0 : picture.shape[0], 0 : picture.shape[1]]
    total = weights.sum()
    return np.array([(weights * columns).sum() / total, (weights * rows).sum() / total])


def read(worker: BufferWorker, *samples: Any, seed: int = 0) -> dict[str, Any]:
    """The mini-batch of some samples, made in this process."""
    with TurboDataLoader(list(samples), len(samples), worker, 0, seed=seed) as loader:
        ((_, (mini_batch,)),) = list(loader)
    return mini_batch
