"""Scikit-learn's handwritten digits as a folder of JPEG files."""

from pathlib import Path
from typing import Any

import numpy as np

from crumpets_like.workers import ClassificationWorker, UniformRNG

SIZE = 32
"""Height and width in pixels of the stored scans and of what the network sees."""

_TEST_SHARE = 5


class DigitFiles:
    """Reads one JPEG file per sample.

    Parameters
    ----------
    paths : list of pathlib.Path
        The files.
    labels : list of int
        The digit that each file shows.
    """

    def __init__(self, paths: list[Path], labels: list[int]) -> None:
        self.paths = paths
        self.labels = labels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the file's bytes as `image`, and its `label`."""
        return {"image": self.paths[index].read_bytes(), "label": self.labels[index]}


def write_digits(folder: Path, seed: int) -> tuple[DigitFiles, DigitFiles]:
    """Write the 1,797 scans to `folder` and split them.

    Parameters
    ----------
    folder : pathlib.Path
        Where the files go; must exist.
    seed : int
        Seed of the random split.

    Returns
    -------
    train, test : DigitFiles
        Four fifths and one fifth of the scans.
    """
    import cv2
    import simplejpeg
    from sklearn.datasets import load_digits

    digits = load_digits()
    paths = [folder / f"{index:04d}.jpg" for index in range(len(digits.images))]
    for path, scan in zip(paths, digits.images, strict=True):
        # The scans have 8 x 8 pixels from 0 to 16, too few for rotations by a few degrees.
        large = cv2.resize(scan * (255.0 / 16.0), (SIZE, SIZE), interpolation=cv2.INTER_CUBIC)
        grey = np.clip(np.rint(large), 0, 255).astype(np.uint8)[:, :, np.newaxis]
        path.write_bytes(simplejpeg.encode_jpeg(grey, quality=95, colorspace="GRAY"))

    order = np.random.default_rng(seed).permutation(len(paths))
    cut = len(paths) // _TEST_SHARE
    train, test = (
        DigitFiles([paths[i] for i in part], [int(digits.target[i]) for i in part])
        for part in (order[cut:], order[:cut])
    )
    return train, test


def make_worker(augment: bool) -> ClassificationWorker:
    """Return the worker for `DigitFiles`.

    Parameters
    ----------
    augment : bool
        Whether to shift, rotate and scale the digits at random.

    Returns
    -------
    ClassificationWorker
        Gives `image`, float32 of shape (B, 1, 32, 32), and `label`, int64 of shape (B,).
    """
    rng = (
        UniformRNG(angle=(-12.0, 12.0), shift=(-1.0, 1.0), scale=(0.85, 1.15)) if augment else None
    )
    return ClassificationWorker(
        image=((1, SIZE, SIZE), np.float32), label=((), np.int64), image_rng=rng
    )
