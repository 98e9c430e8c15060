"""A worker with its own augmentation, reproducible for any number of workers.

Run it with ``python examples/own_augmentation.py``. It needs the base install alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker


class CropWorker(BufferWorker):
    """Cuts a random window out of each picture, sometimes mirrors it, and adds noise.

    Parameters
    ----------
    size : int
        Height and width of the window in pixels.
    noise : float
        Standard deviation of the noise, in grey levels.
    """

    def __init__(self, size: int, noise: float) -> None:
        super().__init__()
        self.size = size
        self.noise = noise
        self.add_buffer("image", ((size, size), np.uint8))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Augment one picture; every random number comes from `self.rng`."""
        height, width = sample.shape
        top = int(self.rng.integers(height - self.size + 1))
        left = int(self.rng.integers(width - self.size + 1))
        window = sample[top : top + self.size, left : left + self.size]
        if self.rng.random() < 0.5:
            window = window[:, ::-1]
        noisy = window + self.rng.normal(0.0, self.noise, window.shape)
        buffers["image"][...] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        batch["corner"].append((top, left))


def make_pictures(count: int) -> list[NDArray[np.uint8]]:
    """Return `count` smooth pictures, uint8, shape (48, 64)."""
    rows, columns = np.mgrid[0:48, 0:64]
    waves = [np.sin(rows / (3 + k % 5)) * np.cos(columns / (4 + k % 7)) for k in range(count)]
    return [np.rint(127.5 * (wave + 1.0)).astype(np.uint8) for wave in waves]


def first_epoch(pictures: list[NDArray[np.uint8]], nworkers: int) -> NDArray[np.uint8]:
    """Return one shuffled epoch's augmented pictures, shape (N, 32, 32)."""
    loader = TurboDataLoader(
        pictures, 50, CropWorker(size=32, noise=4.0), nworkers, shuffle=True, seed=7
    )
    with loader:
        images = [mini_batch["image"] for _, mini_batches in loader for mini_batch in mini_batches]
    return np.concatenate(images)


def main() -> None:
    """Augment the same pictures with one and with three workers and compare."""
    pictures = make_pictures(200)
    one, three = first_epoch(pictures, 1), first_epoch(pictures, 3)
    print(f"{len(one)} windows of {one.shape[1]} x {one.shape[2]}, mean grey {one.mean():.1f}")
    print(f"one and three workers agree bit by bit: {np.array_equal(one, three)}")


if __name__ == "__main__":
    main()
