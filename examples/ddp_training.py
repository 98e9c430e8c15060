"""Two processes train one network with torch's DistributedDataParallel, on the CPU.

Run it with ``torchrun --nproc-per-node 2 examples/ddp_training.py``, or with ``python``: then it
starts torchrun itself. It needs the extras ``torch`` and ``demo``.
"""

import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker


class DigitWorker(BufferWorker):
    """Scales pixels to [0, 1], a chunk of samples at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("image", ((64,), np.float32))
        self.add_buffer("label", ((), np.int64))

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill the rows of one chunk; an array as dataset gives the chunk in one piece."""
        np.divide(samples["image"], 16.0, out=buffers["image"])
        buffers["label"][...] = samples["label"]


def read_digits() -> NDArray[np.void]:
    """Return 1,797 digits in random order, records of `image`, 64 pixels, and `label`."""
    digits = load_digits()
    records = np.empty(len(digits.data), [("image", np.float32, (64,)), ("label", np.int64)])
    records["image"], records["label"] = digits.data, digits.target
    return np.random.default_rng(0).permutation(records)


def train() -> None:
    """What each process does; rank 0 prints."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    digits = read_digits()
    train, test = digits[:1500], digits[1500:]
    layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    # The loader asks torch.distributed for its rank. All ranks need the same seed.
    with TurboDataLoader(train, 25, DigitWorker(), 1, shuffle=True, seed=0) as loader:
        for _ in range(5):
            for _, (batch,) in loader:
                guesses = model(torch.from_numpy(batch["image"]))
                loss = torch.nn.functional.cross_entropy(guesses, torch.from_numpy(batch["label"]))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        batches = torch.tensor(loader.iterations)
    dist.all_reduce(batches)
    if dist.get_rank() == 0:
        with torch.no_grad():
            guesses = model(torch.from_numpy(test["image"] / 16.0)).argmax(1).numpy()
        print(f"{dist.get_world_size()} processes, {batches.item()} batches of 25 in 5 epochs")
        print(f"test accuracy {(guesses == test['label']).mean():.1%}")
    dist.destroy_process_group()


def main() -> None:
    """Train, or start the processes that do."""
    if "RANK" in os.environ:
        train()
        return
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with tempfile.TemporaryDirectory() as logs:
        options = ["--standalone", "--nproc-per-node", "2", "--log-dir", logs]
        command = [sys.executable, "-m", "torch.distributed.run", *options, __file__]
        subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    main()
