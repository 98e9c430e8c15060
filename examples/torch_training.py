"""A torch training loop on scikit-learn's handwritten digits.

Run it with ``python examples/torch_training.py``. It needs the extras ``torch`` and ``demo``.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker


def read_digits() -> NDArray[np.void]:
    """Return 1,797 digits in random order, records of `image`, 8 x 8 from 0 to 16, and `label`."""
    digits = load_digits()
    records = np.empty(len(digits.images), [("image", np.float32, (8, 8)), ("label", np.int64)])
    records["image"], records["label"] = digits.images, digits.target
    # Neighbours come from the same writer.
    return np.random.default_rng(0).permutation(records)


class DigitWorker(BufferWorker):
    """Scales pixels to [0, 1], a chunk of samples at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("image", ((1, 8, 8), np.float32))
        self.add_buffer("label", ((), np.int64))

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill the rows of one chunk; an array as dataset gives the chunk in one piece."""
        np.divide(samples["image"][:, np.newaxis], 16.0, out=buffers["image"])
        buffers["label"][...] = samples["label"]


def main() -> None:
    """Train a small network for a few epochs and print its accuracy."""
    torch.manual_seed(0)
    digits = read_digits()
    train, test = digits[:1500], digits[1500:]
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with TurboDataLoader(train, 50, DigitWorker(), 2, shuffle=True, seed=0) as loader:
        for epoch in range(5):
            total = 0.0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    # No copy: the tensors look at the bytes that the workers wrote.
                    images = torch.from_numpy(mini_batch["image"])
                    labels = torch.from_numpy(mini_batch["label"])
                    loss = torch.nn.functional.cross_entropy(model(images), labels)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    total += loss.item()
            print(f"epoch {epoch}: loss {total / len(loader):.3f}")

    with torch.no_grad():
        guesses = model(torch.from_numpy(test["image"] / 16.0)).argmax(1).numpy()
        right = (guesses == test["label"]).mean()
    print(f"test accuracy {right:.1%}")


if __name__ == "__main__":
    main()
