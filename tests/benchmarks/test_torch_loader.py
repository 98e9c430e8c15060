"""torch's DataLoader as a contender."""

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from crumpets_like.benchmarks.cases import CASES
from crumpets_like.benchmarks.torch_datasets import TorchSeededDataset
from crumpets_like.benchmarks.torch_loader import TorchLoader


def test_an_epoch_has_the_stated_number_of_batches() -> None:
    case = CASES["small-seeded"].quick()
    loader = TorchLoader(case, "torch0")
    batches: list[Any] = list(loader.batches())
    assert len(batches) == case.batches["torch0"]
    assert batches[0][0].shape == (256, 32)
    assert batches[0][0].dtype == torch.float32
    assert batches[0][1].tolist() != list(range(256))
    loader.stop()
    with pytest.raises(RuntimeError, match="stopped"):
        loader.batches()


def test_seeded_samples_depend_on_their_index_alone() -> None:
    dataset = TorchSeededDataset(4)
    first = dataset[1][0].tolist()
    assert dataset[2][0].tolist() != first
    assert dataset[1][0].tolist() == first
