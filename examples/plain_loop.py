"""The plain loop: a dataset, a worker, `with loader:`.

Run it with ``python examples/plain_loop.py``. It needs the base install alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker


class Waves:
    """1,000 sine waves of 128 points; the label is the number of periods."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Any]:
        periods = index % 8 + 1
        points = np.linspace(0.0, 2.0 * np.pi * periods, 128, endpoint=False)
        return {"wave": np.sin(points), "periods": periods, "name": f"wave {index}"}


class WaveWorker(BufferWorker):
    """Writes each sample's arrays into its rows of the mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("wave", ((128,), np.float32))
        self.add_buffer("periods", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill one sample's rows; other objects become lists."""
        buffers["wave"][...] = sample["wave"]
        buffers["periods"][...] = sample["periods"]
        batch["name"].append(sample["name"])


def main() -> None:
    """Read two shuffled epochs and print what came."""
    loader = TurboDataLoader(Waves(), 64, WaveWorker(), 2, shuffle=True, seed=0)
    with loader:
        for epoch in range(2):
            energy = 0.0
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    # Views of shared memory: kept as long as you like, never overwritten.
                    energy += float(np.square(mini_batch["wave"]).sum())
                    last = mini_batch["name"][-1]
            print(f"epoch {epoch}: energy {energy:.0f}, {last} came last")


if __name__ == "__main__":
    main()
