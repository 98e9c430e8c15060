"""Saliency: where people look, learned from gaze points.

Run it with ``python examples/saliency.py``. It needs the extras ``torch``, ``image`` and ``demo``.
The images are scikit-learn's two photographs. The people are made up: they look at bright colours,
and sometimes blink.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.workers import NoRNG, SaliencyWorker, UniformRNG

SIZE = (72, 96)
MAP_SIZE = (18, 24)
PEOPLE, POINTS, BLINKS = 20, 25, 2


def look_at(photo: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.float64]:
    """Return gaze points of one person, (x, y) in pixels; NaN while the eyes are closed."""
    colour = np.ptp(photo.astype(float), axis=2) ** 3
    places = generator.choice(colour.size, POINTS, p=(colour / colour.sum()).ravel())
    points = np.column_stack((places % colour.shape[1], places // colour.shape[1]))
    gaze = points + generator.uniform(-0.5, 0.5, points.shape)
    gaze[generator.choice(POINTS, BLINKS, replace=False)] = np.nan
    return gaze


class Photos:
    """Samples: the path of a photograph and the gaze of some people; each photograph many times."""

    def __init__(self, repeats: int) -> None:
        photos = load_sample_images()
        generator = np.random.default_rng(0)
        self.samples = [
            {
                "image": path,
                "experiments": [{"locations": look_at(photo, generator)} for _ in range(PEOPLE)],
            }
            for path, photo in zip(photos.filenames, photos.images, strict=True)
        ] * repeats

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples[index]


def make_worker(image_rng: Any, sample_ratio: float) -> SaliencyWorker:
    """Images, and smooth maps of a quarter of their size."""
    return SaliencyWorker(
        ((3, *SIZE), np.float32),
        (MAP_SIZE, np.float32),
        target_image_params={
            "sample_ratio": sample_ratio, "jitter": 0.01, "interpolate": True, "blur": 0.04,
        },
        image_rng=image_rng,
    )  # fmt: skip


def divergence(scores: Tensor, maps: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the guessed maps from the maps, both as distributions."""
    wanted = maps.flatten(1) / maps.flatten(1).sum(1, keepdim=True).clamp_min(1e-6)
    guessed = scores.flatten(1).log_softmax(1)
    return nn.functional.kl_div(guessed, wanted, reduction="batchmean")


def main() -> None:
    """Train on augmented parts of the photographs, and look at all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 16, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    rng = UniformRNG(angle=(-10, 10), scale=(1.0, 1.6), shift=(-1, 1), hmirror=0.5)
    worker = make_worker(rng, sample_ratio=0.5)
    with TorchTurboDataLoader(
        Photos(64), 16, worker, 2, device="cpu", shuffle=True, seed=0
    ) as loader:
        for epoch in range(4):
            total, points, blinks = 0.0, 0, 0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    loss = divergence(model(mini_batch["image"]), mini_batch["target_image"])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += loss.item()
                    points += sum(gaze["points"] for gaze in mini_batch["gaze"])
                    blinks += sum(gaze["nan"] for gaze in mini_batch["gaze"])
            print(f"epoch {epoch}: loss {total / len(loader):.3f}, {points} points, {blinks} NaN")

    with TorchTurboDataLoader(
        Photos(1), 2, make_worker(NoRNG(), sample_ratio=1.0), 0, device="cpu"
    ) as loader:
        for _, (photos,) in loader:
            with torch.no_grad():
                guessed = model(photos["image"]).flatten(1).softmax(1)
            for guess, gaze_map in zip(guessed, photos["target_image"].flatten(1), strict=True):
                correlation = torch.corrcoef(torch.stack((guess, gaze_map)))[0, 1]
                print(f"correlation with the map of all people: {correlation:.2f}")


if __name__ == "__main__":
    main()
