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


def mixed_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy for labels (B, 3): of one image, of the other, and how much that one has."""
    first, second, part = labels[:, 0].long(), labels[:, 1].long(), labels[:, 2]
    losses = cross_entropy(scores, first, reduction="none") * (1 - part)
    return (losses + cross_entropy(scores, second, reduction="none") * part).mean()


def main() -> None:
    """Augment two photographs in all four ways."""
    for name, policy in (
        ("RandAugment", RandAugment(n=2, m=10)),
        ("TrivialAugment", TrivialAugment()),
    ):
        one, two = first_batches(policy, 1), first_batches(policy, 2)
        same = all(torch.equal(a["image"], b["image"]) for a, b in zip(one, two, strict=True))
        print(f"{name}: {len(one)} mini-batches, one and two workers agree bit by bit: {same}")

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE * SIZE, 2))
    batch = one[0]
    for name, mix in (
        ("MixUp", RandomMixUpV2(p=1.0, data_keys=["input", "class"])),
        ("CutMix", RandomCutMixV2(p=1.0, data_keys=["input", "class"])),
    ):
        images, labels = mix(batch["image"], batch["label"])
        loss = mixed_loss(model(images), labels.reshape(-1, 3))
        changed = (images != batch["image"]).flatten(1).any(1).sum()
        print(f"{name}: {changed} of {len(images)} images mixed, loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
