"""Datasets of the benchmark: every way of reading gives the same samples."""

import time

import numpy as np
import pytest

from crumpets_like.benchmarks import datasets


def test_bulk_reads_what_single_reads_give() -> None:
    indices = [5, 0, 3]
    plain = datasets.VectorDataset(8)
    x, y = datasets.BulkVectorDataset(8).__getitems__(indices)
    listed = datasets.ListedVectorDataset(8).__getitems__(indices)
    records = datasets.vector_records(8)[indices]
    for row, index in enumerate(indices):
        for own_x, own_y in (plain[index], listed[row], (records["x"][row], records["y"][row])):
            np.testing.assert_array_equal(own_x, x[row])
            assert own_y == y[row] == index
    assert x.shape == (3, 32)
    assert x.dtype == np.float32


def test_a_draw_scales_the_sample() -> None:
    plain, _ = datasets.VectorDataset(4)[2]
    drawn, label = datasets.DrawingVectorDataset(4)[2]
    ratio = drawn / plain
    assert label == 2
    assert drawn.dtype == np.float32
    assert np.ptp(ratio) < 1e-4
    assert 0.9 <= ratio[0] <= 1.1


def test_images_have_the_stated_shape() -> None:
    image, index = datasets.ImageDataset(100)[99]
    assert image.shape == (3, 224, 224)
    assert image.dtype == np.float32
    assert index == 99


def test_every_sixteenth_sample_waits_longer() -> None:
    dataset = datasets.WaitingDataset(32, seconds=0.0, slow_seconds=0.05)
    begin = time.monotonic()
    dataset[16]
    assert time.monotonic() - begin >= 0.05
    assert len(dataset) == 32


@pytest.mark.parametrize("index", [0, 10**9 - 1])
def test_the_endless_dataset_stores_nothing(index: int) -> None:
    dataset = datasets.EndlessDataset(10**9)
    assert len(dataset) == 10**9
    assert dataset[index][1] == index
