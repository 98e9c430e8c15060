"""Datasets that need torch, imported at the top on purpose: the case ``start`` is about that."""

from __future__ import annotations

import torch

from .datasets import Sample, VectorDataset


class TorchImportingDataset(VectorDataset):
    """Rows of numbers in a module that pulls in torch, as datasets in training code do."""


class TorchSeededDataset(VectorDataset):
    """Scales each row by one draw that depends on (seed, epoch, index) alone.

    Reseeding one ``torch.Generator`` is the fastest way found on torch's side (about 6
    microseconds a sample; a new NumPy generator takes 17 to 22). Persistent workers never learn
    of the next epoch; the epoch here stays 0, which costs the same.
    """

    def __init__(self, samples: int, seed: int = 0) -> None:
        super().__init__(samples)
        self.seed = seed
        self.epoch = 0
        self.generator: torch.Generator | None = None

    def __getitem__(self, index: int) -> Sample:
        generator = self.generator
        if generator is None:
            generator = self.generator = torch.Generator()
        generator.manual_seed((self.seed << 48) + (self.epoch << 32) + index)
        draw = torch.rand((), generator=generator).item()
        return self.x[index] * (0.9 + 0.2 * draw), self.y[index]
