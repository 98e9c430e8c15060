"""RandAugment, TrivialAugment, MixUp and CutMix from kornia.

Run it with ``python examples/kornia_augmentation.py``. It needs the extras ``torch``, ``image``,
``demo`` and ``kornia``. The first two change single images, in the workers; the others mix the
images of a mini-batch, after the loader, on whatever device it is.
"""

import sys
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.workers import TransformWorker

try:
    from kornia.augmentation import RandomCutMixV2, RandomMixUpV2
    from kornia.augmentation.auto import RandAugment, TrivialAugment
except ImportError:
    sys.exit("This example needs kornia: pip install 'crumpets-like[kornia]'")

SIZE = 64


class OnOneImage:
    """Resizes an image, and applies one of kornia's policies to it.

    The worker seeds torch's generator for each image, and kornia draws from that one: so the
    results do not depend on the number of workers.
    """

    def __init__(self, policy: Callable[[Tensor], Tensor]) -> None:
        self.policy = policy

    def __call__(self, image: Tensor) -> Tensor:
        """Return float32, shape (1, 3, SIZE, SIZE), of uint8, shape (3, H, W)."""
        batch = image[None] / 255
        return self.policy(interpolate(batch, (SIZE, SIZE), mode="bilinear", antialias=True))


def first_batches(policy: Callable[[Tensor], Tensor], nworkers: int) -> list[dict[str, Tensor]]:
    """Return one epoch of 32 samples in mini-batches of 8."""
    photos: list[NDArray[np.uint8]] = load_sample_images().images
    dataset = [{"image": photos[number % 2], "label": number % 2} for number in range(32)]
    worker = TransformWorker(
        ((3, SIZE, SIZE), np.float32), OnOneImage(policy), ((), np.int64), image_as="tensor"
    )
    loader = TorchTurboDataLoader(dataset, 8, worker, nworkers, device="cpu", shuffle=True, seed=0)
    with loader:
        return [batch for _, batches in loader for batch in batches]


def mixed_loss(scores: Tensor, first: Tensor, second: Tensor, part: Tensor) -> Tensor:
    """Cross entropy for images that have `part` of the second label, and the rest of the first."""
    losses = cross_entropy(scores, first.long(), reduction="none") * (1 - part)
    return (losses + cross_entropy(scores, second.long(), reduction="none") * part).mean()


def main() -> None:
    """Augment two photographs in all four ways."""
    for name, policy in (
        ("RandAugment", RandAugment(n=2, m=10)),
        ("TrivialAugment", TrivialAugment()),
    ):
        alone, two = first_batches(policy, 0), first_batches(policy, 2)
        same = all(torch.equal(a["image"], b["image"]) for a, b in zip(alone, two, strict=True))
        print(f"{name}: {len(two)} mini-batches, none and two workers agree bit by bit: {same}")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 2))
    image, label = two[0]["image"], two[0]["label"]

    mixed, labels = RandomMixUpV2(data_keys=["input", "class"])(image, label)
    first, second, part = labels.T  # part: of the second image
    loss = mixed_loss(model(mixed), first, second, part)
    print(f"MixUp: {(mixed != image).flatten(1).any(1).sum()} of 8 images mixed, loss {loss:.2f}")

    cutmix = RandomCutMixV2(data_keys=["input", "class"], use_correct_lambda=True)
    mixed, labels = cutmix(image, label)
    first, second, rest = labels[0].T  # rest: of the first image
    loss = mixed_loss(model(mixed), first, second, 1 - rest)
    print(f"CutMix: {(mixed != image).flatten(1).any(1).sum()} of 8 images mixed, loss {loss:.2f}")


if __name__ == "__main__":
    main()
