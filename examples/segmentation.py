"""Segmentation: image and mask go through the same augmentation.

Run it with ``python examples/segmentation.py``. It needs the extras ``torch``, ``image`` and
``demo``. The images are scikit-learn's two photographs. Nobody has drawn masks for them, so these
are made by a rule: what is orange, the sky, and the rest.
"""

import io
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import nn

from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.workers import SegmentationWorker
from crumpets_like.workers.presets import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    SEGMENTATION_TRAIN,
    resize,
)

SIZE = (72, 96)
REST, ORANGE, SKY, NOTHING = 0, 1, 2, 255
NAMES = ("rest", "orange", "sky")


def make_mask(photo: NDArray[np.uint8]) -> bytes:
    """Return a mask as people store them: a PNG whose palette shows the classes in colours."""
    red, green, blue = np.moveaxis(photo.astype(int), -1, 0)
    labels = np.full(photo.shape[:2], REST, np.uint8)
    labels[(red > 130) & (red > green + 30)] = ORANGE
    labels[(blue > 130) & (blue > red - 10) & (green > 110)] = SKY
    picture = Image.fromarray(labels).convert("P")
    picture.putpalette([90, 90, 90, 220, 60, 30, 120, 180, 240])
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()


class Photos:
    """Samples: the path of a photograph and its mask, encoded; each photograph many times."""

    def __init__(self, repeats: int) -> None:
        photos = load_sample_images()
        self.samples = [
            {"image": path, "target_image": make_mask(photo)}
            for path, photo in zip(photos.filenames, photos.images, strict=True)
        ] * repeats

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples[index]


def make_worker(image_rng: Any) -> SegmentationWorker:
    """Images for a network, and masks of the same size; beside the photograph is nothing."""
    return SegmentationWorker(
        ((3, *SIZE), np.float32),
        (SIZE, np.int64, NOTHING),
        image_rng=image_rng,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )


def main() -> None:
    """Train on augmented parts of the photographs, and look at all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, len(NAMES), 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    worker = make_worker(SEGMENTATION_TRAIN)
    with TorchTurboDataLoader(
        Photos(64), 16, worker, 2, device="cpu", shuffle=True, seed=0
    ) as loader:
        for epoch in range(4):
            total = 0.0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    scores, masks = model(mini_batch["image"]), mini_batch["target_image"]
                    loss = nn.functional.cross_entropy(scores, masks, ignore_index=NOTHING)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.3f}")

    with TorchTurboDataLoader(Photos(1), 2, make_worker(resize()), 0, device="cpu") as loader:
        for _, (photos,) in loader:
            with torch.no_grad():
                guesses, masks = model(photos["image"]).argmax(1), photos["target_image"]
            for label, name in enumerate(NAMES):
                both = ((guesses == label) & (masks == label)).sum()
                either = ((guesses == label) | (masks == label)).sum()
                print(f"{name}: intersection over union {both / either:.0%}")


if __name__ == "__main__":
    main()
