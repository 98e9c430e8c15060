"""Training crops out of photographs: our worker, and what one writes for torch's DataLoader.

All of them decode a JPEG, cut out a random part as torchvision's ``RandomResizedCrop`` does, make
it 224 x 224 pixels and mirror every other one: uint8 (224, 224, 3), as a model on a device takes
it. OpenCV, simplejpeg and Pillow are imported where they are used.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .datasets import Sample
from .photos import CROP, make_photos

if TYPE_CHECKING:
    from crumpets_like.broker import BufferWorker

#: Whether pixel operations are left out, left to the device, or applied.
Pixels = Literal["geometry", "device", "pixels"]

#: Height and width of the photographs, and how many distinct ones serve all samples.
SMALL = (427, 640, 128)
LARGE = (1500, 2000, 16)


class Photos:
    """Encoded photographs with a label, as our worker takes them.

    Parameters
    ----------
    samples : int
        Number of samples.
    kind : (int, int, int)
        `SMALL` or `LARGE`.
    """

    def __init__(self, samples: int, kind: tuple[int, int, int] = SMALL) -> None:
        import cv2

        cv2.setNumThreads(0)  # before a fork: the threads would not be there afterwards
        height, width, distinct = kind
        self.samples = samples
        self.files = make_photos(min(distinct, samples), height, width, "420")

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return {"image": self.files[index % len(self.files)], "label": index}


class PillowCrops(Photos):
    """Decoded, cut out and resized by Pillow."""

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        top, left, height, width = random_resized_crop(image.height, image.width)
        image = image.crop((left, top, left + width, top + height))
        image = image.resize((CROP, CROP), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.array(image), index


class OpenCVCrops(Photos):
    """Decoded by simplejpeg, cut out without a copy, resized by OpenCV.

    Shrunk by averaging, as Pillow and our worker do in their own ways.
    """

    smooth = True

    def __getitem__(self, index: int) -> Sample:
        import cv2
        import simplejpeg

        # Per call, since the process that reads need not be a fork of the one that built this.
        cv2.setNumThreads(0)
        image = simplejpeg.decode_jpeg(self.files[index % len(self.files)], colorspace="RGB")
        top, left, height, width = random_resized_crop(*image.shape[:2])
        image = image[top : top + height, left : left + width]
        shrinks = self.smooth and max(height, width) > CROP
        method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        image = cv2.resize(image, (CROP, CROP), interpolation=method)
        return cv2.flip(image, 1) if random.random() < 0.5 else image, index


class CoarseOpenCVCrops(OpenCVCrops):
    """The same, but pixels are skipped where the image is shrunk: faster, and it aliases."""

    smooth = False


class PreparedCrops(Photos):
    """Filled in by a worker of ours that no loader runs: the least that its work can take.

    Parameters
    ----------
    samples, kind
        As for `Photos`.
    worker : callable
        Makes the worker.
    """

    def __init__(
        self, samples: int, kind: tuple[int, int, int], worker: Callable[[], BufferWorker]
    ) -> None:
        super().__init__(samples, kind)
        self.worker = worker()
        # Draws in sequence instead of reseeding for each sample.
        self.worker.__class__ = type(
            "Bare", (type(self.worker),), {"rng": np.random.default_rng(0)}
        )

    def fill(self, indices: range, x: NDArray[Any], y: NDArray[Any]) -> None:
        """Prepare one sample after another in its row."""
        self.worker.setup()
        for row, index in enumerate(indices):
            batch: dict[str, list[Any]] = {"augmentation": []}
            self.worker.prepare(self[index], batch, {"image": x[row], "label": y[row, ...]})


def imagenet_worker() -> BufferWorker:
    """Build the worker with the preset that is meant for this."""
    from crumpets_like.workers import ClassificationWorker, presets

    return ClassificationWorker(
        image=((CROP, CROP, 3), np.uint8),
        label=((), np.int64),
        image_rng=presets.random_resized_crop(hmirror=0.5),
        layout="HWC",
    )


def random_resized_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Draw the part that torchvision's ``RandomResizedCrop`` would, with its defaults.

    Parameters
    ----------
    height, width : int
        Of the whole image in pixels.

    Returns
    -------
    (int, int, int, int)
        Top, left, height, width: 8 to 100 % of the area, 3:4 to 4:3; after ten tries that do not
        fit, the largest part in the middle that has one of these ratios.
    """
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w = round(math.sqrt(area * ratio))
        h = round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w


def augmenting_worker(pixels: Pixels) -> BufferWorker:
    """Build a worker that warps each image; all of them draw alike."""
    from crumpets_like.workers import ClassificationWorker, MixtureRNG

    none = {"gamma_gray": None, "gamma_color": None, "contrast": 0.0, "noise": 0.0, "blur": 0.0}
    return ClassificationWorker(
        image=((CROP, CROP, 3), np.uint8),
        label=((), np.int64),
        image_params=none if pixels == "geometry" else None,
        image_rng=MixtureRNG(
            scale_range=(1.0, 2.0),
            shift_range=(-1.0, 1.0),
            rotation_sigma=5.0,
            hmirror=0.5,
            noise_range=(0.01, 0.1),
            brightness_range=(-0.3, 0.3),
            color_range=(-0.2, 0.2),
            contrast_range=(-0.3, 0.3),
            blur_range=(0.002, 0.01),
        ),
        gpu_augmentation=pixels == "device",
        layout="HWC",
    )
