"""A short torch training loop whose mini-batches come as tensors on the device.

Run it with ``python examples/torch_turbo.py``. It needs the extra ``torch``. The same code trains
on a GPU where there is one: with ``device=None`` the loader takes it.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crumpets_like.broker import BufferWorker
from crumpets_like.torch import TorchTurboDataLoader


class Spirals:
    """Points on two spirals that wind around each other, and which of them each is on."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[float, int]:
        return index / len(self), index % 2


class SpiralWorker(BufferWorker):
    """Writes point and label straight into the mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("point", ((2,), np.float32))
        self.add_buffer("label", ((), np.int64))

    def prepare(
        self, sample: tuple[float, int], batch: dict[str, Any], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill one row, with noise that is the same for every number of workers."""
        way, label = sample
        angle = 7 * way + np.pi * label
        buffers["point"][...] = way * np.array([np.cos(angle), np.sin(angle)])
        buffers["point"][...] += 0.02 * self.rng.standard_normal(2)
        buffers["label"][...] = label


def main() -> None:
    """Train a small network for a few epochs."""
    torch.manual_seed(0)
    with TorchTurboDataLoader(Spirals(), 50, SpiralWorker(), 2, shuffle=True, seed=0) as loader:
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
            torch.nn.Linear(64, 2),
        ).to(loader.devices[0])  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(6):
            right = 0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    labels = mini_batch["label"]
                    scores = model(mini_batch["point"])
                    loss = torch.nn.functional.cross_entropy(scores, labels)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    right += int((scores.argmax(1) == labels).sum())
            print(f"epoch {epoch}: {right / len(Spirals()):.0%} right")


if __name__ == "__main__":
    main()
