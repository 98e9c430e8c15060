"""Photographs and parameters for tests of pixel operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import BufferWorker
from crumpets_like.workers.parameters import PIXELS
from crumpets_like.workers.pixels import apply_pixels

__all__ = ["NEUTRAL", "Pictures", "draw", "photos"]

NEUTRAL: dict[str, Any] = {name: known.default for name, known in PIXELS.items()}
"""Parameters that change nothing."""


def photos(count: int, size: tuple[int, int] = (96, 128), channels: int = 3) -> NDArray[np.uint8]:
    """Parts of a photograph, shape (count, *size, channels)."""
    import pytest

    datasets = pytest.importorskip("sklearn.datasets")
    photo = datasets.load_sample_image("flower.jpg")
    height, width = size
    parts = [
        photo[7 * n : 7 * n + height, 11 * n : 11 * n + width, :channels] for n in range(count)
    ]
    return np.stack(parts)


def draw(count: int) -> list[dict[str, Any]]:
    """Parameters in which any operation may be there, in any order."""
    rng = np.random.default_rng(0)
    return [_draw(rng) for _ in range(count)]


def _draw(rng: np.random.Generator) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.6 else None

    return {
        "gamma_gray": maybe(float(np.exp(rng.uniform(-0.7, 0.7)))),
        "gamma_color": maybe(np.exp(rng.uniform(-0.3, 0.3, 3)).tolist()),
        "contrast": maybe(rng.uniform(-1, 1)) or 0.0,
        "noise": maybe(rng.uniform(0, 0.2)) or 0.0,
        "noise_seed": int(rng.integers(2**63)),
        "blur": maybe(rng.uniform(0, 0.02)) or 0.0,
        "order": tuple(rng.permutation(["gamma", "noise", "blur"]).tolist()),
    }


class Pictures(BufferWorker):
    """Pictures of stripes with drawn pixel operations; a sample is the picture's number.

    Parameters
    ----------
    params : dict
        What is not to be drawn.
    """

    gpu_augmentation = False

    def __init__(self, **params: Any) -> None:
        super().__init__()
        self.fixed = params
        self.add_buffer("image", ((3, 24, 32), np.uint8))
        self.add_buffer("label", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        if sample < 0:
            raise ValueError("no such picture")
        y, x, c = np.mgrid[:24, :32, :3]
        image = ((sample + 1) * (3 * x + 5 * y + 50 * c) % 256).astype(np.uint8)
        params = {**_draw(self.rng), "gpu_augmentation": self.gpu_augmentation, **self.fixed}
        if not self.gpu_augmentation:
            image = apply_pixels(image, params, True)
        buffers["image"][...] = image.transpose(2, 0, 1)
        buffers["label"][...] = sample
        batch["augmentation"].append(params)
