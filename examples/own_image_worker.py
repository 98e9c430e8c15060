"""An image worker with transforms of your own, written as one writes them for albumentations.

Run it with ``python examples/own_image_worker.py``. It needs the extras ``image`` and ``demo``.
The worker decodes, warps and writes; the transforms get what it has made, and draw from its
generator, so that the pictures are the same for any number of workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from crumpets_like import TurboDataLoader
from crumpets_like.workers import ClassificationWorker
from crumpets_like.workers.presets import IMAGENET_TRAIN

Picture = NDArray[np.uint8]


class Transform:
    """Something done to an image (H, W, C), in `p` of all cases."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Picture, rng: np.random.Generator) -> Picture:
        """Apply it or not."""
        return self.apply(image, rng) if rng.random() < self.p else image

    def apply(self, image: Picture, rng: np.random.Generator) -> Picture:
        """Apply it."""
        raise NotImplementedError


class Compose(Transform):
    """One transform after the other."""

    def __init__(self, transforms: Sequence[Transform], p: float = 1.0) -> None:
        super().__init__(p)
        self.transforms = transforms

    def apply(self, image: Picture, rng: np.random.Generator) -> Picture:
        """Apply all of them."""
        for transform in self.transforms:
            image = transform(image, rng)
        return image


class Solarize(Transform):
    """Inverts all pixels above a threshold."""

    def apply(self, image: Picture, rng: np.random.Generator) -> Picture:
        """Invert them."""
        return np.where(image < 128, image, 255 - image).astype(np.uint8)


class CoarseDropout(Transform):
    """Blackens some square holes."""

    def __init__(self, holes: int, size: int, p: float) -> None:
        super().__init__(p)
        self.holes = holes
        self.size = size

    def apply(self, image: Picture, rng: np.random.Generator) -> Picture:
        """Blacken up to `holes` squares of `size` pixels."""
        image = image.copy()
        for _ in range(int(rng.integers(1, self.holes + 1))):
            top, left = rng.integers(0, np.subtract(image.shape[:2], self.size) + 1)
            image[top : top + self.size, left : left + self.size] = 0
        return image


class TransformingWorker(ClassificationWorker):
    """A classification worker whose images go through a transform behind the warp."""

    def __init__(self, transform: Transform, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.transform = transform

    def prepare_image(
        self, image: Any, buffers: dict[str, NDArray[Any]], params: Mapping[str, Any], key: str
    ) -> dict[str, Any]:
        """Let the base class fill the row, and change it there."""
        used = super().prepare_image(image, buffers, params, key)
        row = buffers[key]
        row[...] = self.transform(row, self.rng)
        return used


def first_epoch(nworkers: int) -> Picture:
    """Return one shuffled epoch's pictures, shape (N, 96, 96, 3)."""
    photos = load_sample_images().images
    dataset = [{"image": photos[number % 2], "label": number % 2} for number in range(40)]
    worker = TransformingWorker(
        Compose([Solarize(p=0.3), CoarseDropout(holes=4, size=16, p=0.5)]),
        ((96, 96, 3), np.uint8),
        ((), np.int64),
        image_rng=IMAGENET_TRAIN,
        layout="HWC",
    )
    with TurboDataLoader(dataset, 8, worker, nworkers, shuffle=True, seed=0) as loader:
        return np.concatenate([batch["image"] for _, batches in loader for batch in batches])


def main() -> None:
    """Augment the same photographs with one and with three workers and compare."""
    one, three = first_epoch(1), first_epoch(3)
    holes = (one.reshape(len(one), -1, 3) == 0).all(2).mean(1) > 0.02
    print(f"{len(one)} pictures of {one.shape[1]} x {one.shape[2]}, {holes.sum()} with holes")
    print(f"one and three workers agree bit by bit: {np.array_equal(one, three)}")


if __name__ == "__main__":
    main()
