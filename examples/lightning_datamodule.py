"""A datamodule for Lightning whose loader goes on in the middle of an epoch.

Run it with ``python examples/lightning_datamodule.py``. Lightning itself is not needed: ``main``
makes the calls that its ``Trainer`` makes, in the same order. With Lightning (2.2 or newer, tried
with 2.6) it is ``trainer.fit(model, datamodule=WavesData(), ckpt_path=...)``.
"""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.broker import BufferWorker

if TYPE_CHECKING:
    LightningDataModule = object
else:
    try:
        from lightning import LightningDataModule
    except ImportError:  # the calls are the same
        LightningDataModule = object


class WaveWorker(BufferWorker):
    """Makes one sine wave with a random phase."""

    def __init__(self) -> None:
        super().__init__()
        self.add_buffer("wave", ((64,), np.float32))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Write one sample's row."""
        phase = self.rng.uniform(0.0, 2.0 * np.pi)
        buffers["wave"][...] = np.sin(np.linspace(0.0, (sample % 8 + 1) * 2.0 * np.pi, 64) + phase)


class WavesData(LightningDataModule):
    """The loader is made here, started when it is asked for, and stopped at the end.

    The trainer saves what `state_dict` returns in its checkpoint. (It saves the state of each
    training loader that has one by itself, too, as part of its loops. Loading a state twice is
    the same as loading it once.)
    """

    def __init__(self, nworkers: int = 2) -> None:
        super().__init__()
        self.loader = TurboDataLoader(range(640), 32, WaveWorker(), nworkers, shuffle=True, seed=0)

    def train_dataloader(self) -> TurboDataLoader:
        """Called once; each epoch is one ``for`` over it."""
        return self.loader.start()

    def teardown(self, stage: str) -> None:
        """Called at the end of ``fit``."""
        self.loader.stop()

    def state_dict(self) -> dict[str, Any]:
        """Called for each checkpoint."""
        return {"loader": self.loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called before training if there is a checkpoint to go on from."""
        self.loader.load_state_dict(state_dict["loader"])


def fit(data: WavesData, checkpoint: str | None, steps: int) -> tuple[list[float], str]:
    """What ``Trainer(max_steps=steps).fit(..., ckpt_path=...)`` calls of a datamodule."""
    if checkpoint is not None:
        data.load_state_dict(json.loads(checkpoint))
    loader = data.train_dataloader()
    seen: list[float] = []
    while len(seen) < steps:
        for _, (batch,) in loader:
            seen.append(float(batch["wave"].sum()))
            if len(seen) == steps:
                break
    saved = json.dumps(data.state_dict())
    data.teardown("fit")
    return seen, saved


def main() -> None:
    """Train 30 steps of 20 an epoch at once, and in two runs."""
    whole, _ = fit(WavesData(), None, 30)
    first, checkpoint = fit(WavesData(), None, 13)
    second, _ = fit(WavesData(nworkers=1), checkpoint, 17)
    print(f"two runs of {len(first)} and {len(second)} steps")
    print(f"the same batches as in one run: {first + second == whole}")


if __name__ == "__main__":
    main()
