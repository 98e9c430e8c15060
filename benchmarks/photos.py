"""JPEG photographs made from noise, and the dataset that decodes, crops and resizes them.

OpenCV and simplejpeg are imported where they are used: the other cases run without them.
"""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from .datasets import Sample

HEIGHT, WIDTH = 375, 500
CROP = 224
QUALITY = 90
DISTINCT = 128


def make_scene(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Make a large picture whose spectrum falls off as that of a photograph does.

    Noise is added up over octaves, each twice as fine and 0.6 times as strong as the last.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the content comes from.

    Returns
    -------
    ndarray of uint8, shape (1500, 2000, 3)
    """
    import cv2

    height, width = 4 * HEIGHT, 4 * WIDTH
    image = np.full((height, width, 3), 120.0, np.float32)
    for octave in range(2, 10):
        noise = rng.standard_normal((2**octave, 2**octave, 3), dtype=np.float32)
        noise *= np.float32(80.0 * 0.6**octave)
        image += cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC)
    image += rng.standard_normal((height, width, 1), dtype=np.float32) * np.float32(4.0)
    return np.clip(image, 0, 255).astype(np.uint8)


def make_photos(
    count: int, height: int = HEIGHT, width: int = WIDTH, subsampling: str = "444"
) -> list[bytes]:
    """Encode `count` different parts of one scene.

    Parameters
    ----------
    count : int
    height, width : int
        Of each part, at most that of the scene.
    subsampling : str
        Of the colours, as in ``"420"``: half as many along both axes.

    Returns
    -------
    list of bytes
        JPEG files, about as large as real photographs of that size (50 to 100 kB for 500 x 375
        pixels).
    """
    import simplejpeg

    rng = np.random.default_rng(0)
    scene = make_scene(rng)
    files = []
    for _ in range(count):
        # Rolled, since a part may be as large as the scene.
        start = rng.integers(scene.shape[:2])
        pixels = np.ascontiguousarray(np.roll(scene, start, (0, 1))[:height, :width])
        files.append(
            simplejpeg.encode_jpeg(
                pixels, quality=QUALITY, colorspace="RGB", colorsubsampling=subsampling
            )
        )
    return files


class PhotoDataset:
    """Decode, crop at random, resize: the classic first half of training on photographs.

    A sample is ``(uint8 image of shape (224, 224, 3), int label)``.

    Parameters
    ----------
    samples : int
        Number of samples; some hundred distinct files serve them all.
    """

    def __init__(self, samples: int) -> None:
        import cv2

        cv2.setNumThreads(1)
        self.samples = samples
        self.files = make_photos(min(DISTINCT, samples))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        import cv2
        import simplejpeg

        # Per call, since the process that reads is not the one that built the dataset.
        cv2.setNumThreads(1)
        image = simplejpeg.decode_jpeg(self.files[index % len(self.files)], colorspace="RGB")
        return cv2.resize(random_crop(image), (CROP, CROP)), index


def random_crop(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a view of a random part that spans 50 to 100 % of each side.

    Parameters
    ----------
    image : ndarray of uint8, shape (H, W, C)

    Returns
    -------
    ndarray of uint8, shape (h, w, C)
    """
    height, width = image.shape[:2]
    h = random.randint(height // 2, height)
    w = random.randint(width // 2, width)
    top = random.randint(0, height - h)
    left = random.randint(0, width - w)
    return image[top : top + h, left : left + w]
