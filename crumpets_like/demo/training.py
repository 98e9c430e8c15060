"""The demonstration's network, its training, and the same epoch through torch's own loader."""

import copy
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from crumpets_like.dataloader import TurboDataLoader
from crumpets_like.demo.digits import SIZE, DigitFiles, make_worker
from crumpets_like.demo.report import EpochTimes
from crumpets_like.workers import ClassificationWorker

_BATCH_SIZE = 64
_NWORKERS = 2
_LEARNING_RATE = 4e-3
_TORCH_EPOCHS = 4


def make_model() -> nn.Sequential:
    """Return a network for images of shape (B, 1, 32, 32) with output of shape (B, 10)."""
    side = SIZE // 8
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * side * side, 64),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(64, 10),
    )


def train(files: DigitFiles, epochs: int, seed: int) -> tuple[nn.Module, list[EpochTimes]]:
    """Train a network; torch's seed and number of threads are set for good.

    Parameters
    ----------
    files : DigitFiles
        What to train on.
    epochs : int
        Passes over `files`.
    seed : int
        Seed of the network, the order and the augmentation.

    Returns
    -------
    model : torch.nn.Module
        The trained network.
    times : list of EpochTimes
        One entry per epoch.
    """
    # Threads of one small step would mostly wait for each other while workers use the cores.
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    loader = TurboDataLoader(
        files, _BATCH_SIZE, make_worker(augment=True), _NWORKERS, shuffle=True, seed=seed
    )
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=steps)
    times = []
    with _progress(steps, "training") as bar, loader:

        def after_step(loss: Tensor) -> None:
            schedule.step()
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            bar.update()

        for _ in range(epochs):
            pairs = (
                (torch.from_numpy(mini_batch["image"]), torch.from_numpy(mini_batch["label"]))
                for _, mini_batches in loader
                for mini_batch in mini_batches
            )
            times.append(run_epoch(model, optimizer, pairs, after_step))
    return model, times


def _progress(steps: int, description: str) -> "tqdm[NoReturn]":
    """Return a progress bar; none where standard error is a file: there, each step is a line."""
    return tqdm(total=steps, desc=description, unit="batch", disable=None)


def run_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    pairs: Iterable[tuple[Tensor, Tensor]],
    after_step: Callable[[Tensor], None],
) -> EpochTimes:
    """Train for one epoch and time it.

    Parameters
    ----------
    model : torch.nn.Module
        What is trained.
    optimizer : torch.optim.Optimizer
        Holds the parameters of `model`.
    pairs : iterable of (Tensor, Tensor)
        Images of shape (B, 1, 32, 32) and labels of shape (B,).
    after_step : callable
        Gets the loss of each step.

    Returns
    -------
    EpochTimes
        Seconds waited for `pairs` and seconds spent on the steps, `after_step` included.
    """
    model.train()
    wait = step = 0.0
    done = perf_counter()
    for images, labels in pairs:
        got = perf_counter()
        wait += got - done
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        after_step(loss)
        done = perf_counter()
        step += done - got
    return EpochTimes(wait + perf_counter() - done, step)


def count_right(model: nn.Module, files: DigitFiles) -> int:
    """Return how many of `files` the network names rightly, without augmentation."""
    model.eval()
    right = 0
    loader = TurboDataLoader(files, _BATCH_SIZE, make_worker(augment=False), _NWORKERS)
    with loader, torch.no_grad():
        for _, mini_batches in loader:
            for mini_batch in mini_batches:
                guesses = model(torch.from_numpy(mini_batch["image"])).argmax(1).numpy()
                right += int((guesses == mini_batch["label"]).sum())
    return right


class TorchDigits(Dataset[tuple[NDArray[np.float32], int]]):
    """The same samples for torch's DataLoader: the same files, decoding and augmentation.

    Parameters
    ----------
    files : DigitFiles
        Where the samples come from.
    worker : ClassificationWorker
        Whose decoding and augmentation to use.
    """

    def __init__(self, files: DigitFiles, worker: ClassificationWorker) -> None:
        self.files = files
        self.worker = worker
        self._generator: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        if self._generator is None:
            # First sample in this worker process: torch has given each its own seed.
            self._generator = np.random.default_rng(torch.initial_seed())
            self.worker.setup()
        sample = self.files[index]
        image = np.empty((1, SIZE, SIZE), np.float32)
        rows: dict[str, NDArray[Any]] = {"image": image}
        pixels, params = self.worker.draw(sample["image"], rows, self._generator)
        self.worker.prepare_image(pixels, rows, params, "image")
        return image, sample["label"]


def time_torch(model: nn.Module, files: DigitFiles) -> list[EpochTimes]:
    """Time a few epochs of the same training through `torch.utils.data.DataLoader`.

    Parameters
    ----------
    model : torch.nn.Module
        The network; a copy of it is trained on.
    files : DigitFiles
        What to train on.

    Returns
    -------
    list of EpochTimes
        One entry per epoch. Workers persist, so that only the first has to start them.
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters())
    loader: Any = DataLoader(
        TorchDigits(files, make_worker(augment=True)),
        _BATCH_SIZE,
        shuffle=True,
        num_workers=_NWORKERS,
        persistent_workers=True,
    )
    with _progress(_TORCH_EPOCHS * len(loader), "torch DataLoader") as bar:

        def after_step(loss: Tensor) -> None:
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
            bar.update()

        return [run_epoch(model, optimizer, loader, after_step) for _ in range(_TORCH_EPOCHS)]
