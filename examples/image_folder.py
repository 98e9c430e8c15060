"""A classifier trained on a folder of images, with one subfolder per class.

Run it with ``python examples/image_folder.py``. It needs the extras ``torch``, ``image`` and
``demo``: scikit-learn's handwritten digits are written to such folders first, as PNG files.
``crumpets-like preview FOLDER`` shows what a network would see of a folder of your own.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.workers import ClassificationWorker, ImageFolder, MixtureRNG

SIZE = 16
EPOCHS = 5


def write_folders(root: Path) -> None:
    """Write every digit to ``train/LABEL/NUMBER.png``, each fifth one to ``test`` instead."""
    digits = load_digits()
    for number, (scan, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = root / ("train" if number % 5 else "test") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((scan * (255 / 16)).astype(np.uint8))
        picture.save(folder / f"{number}.png")


def make_worker(augment: bool) -> ClassificationWorker:
    """Grey images of 16 x 16, normalised; for training turned, moved and scaled a little."""
    rng = MixtureRNG(
        prob=1.0, scale_range=(0.85, 1.15), shift_range=(-0.5, 0.5), rotation_sigma=6.0
    )
    return ClassificationWorker(
        ((1, SIZE, SIZE), np.float32),
        ((), np.int64),
        image_params={"color": False},
        image_rng=rng if augment else None,
        mean=0.3,
        std=0.4,
    )


def make_model(classes: int) -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, classes),
    )  # fmt: skip


def train(model: nn.Module, dataset: ImageFolder) -> None:
    """Train for some epochs; mini-batches are tensors that look at the workers' own bytes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with TorchTurboDataLoader(
        dataset, 64, make_worker(augment=True), 2, device="cpu", shuffle=True, seed=0
    ) as loader:
        for epoch in range(EPOCHS):
            total = 0.0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    scores = model(mini_batch["image"])
                    loss = nn.functional.cross_entropy(scores, mini_batch["label"])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.3f}")


def count_right(model: nn.Module, dataset: ImageFolder) -> int:
    """Return how many images the network names rightly, without augmentation."""
    right = 0
    worker = make_worker(augment=False)
    with TorchTurboDataLoader(dataset, 64, worker, 2, device="cpu") as loader, torch.no_grad():
        for _, mini_batches in loader:
            for mini_batch in mini_batches:
                guesses = model(mini_batch["image"]).argmax(1)
                right += int((guesses == mini_batch["label"]).sum())
    return right


def main() -> None:
    """Write the folders, train, and test."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the workers use the other cores
    with tempfile.TemporaryDirectory() as root:
        write_folders(Path(root))
        train_set, test_set = ImageFolder(Path(root, "train")), ImageFolder(Path(root, "test"))
        print(f"{len(train_set)} and {len(test_set)} images, {len(train_set.classes)} classes")
        model = make_model(len(train_set.classes))
        train(model, train_set)
        print(f"test accuracy {count_right(model, test_set) / len(test_set):.1%}")


if __name__ == "__main__":
    main()
