"""Stop in the middle of an epoch, and go on in a new process as if nothing had happened.

Run it with ``python examples/resume.py``. It needs the base install alone. It starts itself a
second time to finish what it has begun.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker


class NoisyWorker(BufferWorker):
    """Adds noise to a number, so that the augmentation shows, too."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("x", ((), np.float64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Write one sample's row."""
        buffers["x"][...] = sample + self.rng.normal(0.0, 0.1)


def train(nworkers: int, checkpoint: Path | None = None, stop: int | None = None) -> list[float]:
    """Go on from the checkpoint if there is one; return a number for each batch of the epoch."""
    loader = TurboDataLoader(range(1000), 10, NoisyWorker(), nworkers, shuffle=True, seed=3)
    if checkpoint is not None and checkpoint.exists():
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    sums = []
    with loader:
        for _, mini_batches in loader:
            sums.append(float(mini_batches[0]["x"].sum()))
            if len(sums) == stop:
                break  # the power fails here
    if checkpoint is not None:
        checkpoint.write_text(json.dumps(loader.state_dict()))
    return sums


def main() -> None:
    """Compare a run in two processes, with two workers and one, with a run that never stops."""
    if len(sys.argv) > 1:
        print(json.dumps(train(nworkers=1, checkpoint=Path(sys.argv[1]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "loader.json"
        before = train(nworkers=2, checkpoint=checkpoint, stop=40)
        print(f"stopped after {len(before)} batches, state: {checkpoint.stat().st_size} bytes")
        command = [sys.executable, __file__, str(checkpoint)]
        after = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    whole = train(nworkers=0)
    print(f"a new process went on with {len(after)} batches")
    print(f"the same bits as without a stop: {before + after == whole}")


if __name__ == "__main__":
    main()
