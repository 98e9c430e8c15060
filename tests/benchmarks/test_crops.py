"""What the cases about photographs load."""

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pytest.importorskip("PIL")

from crumpets_like.benchmarks import crops


@pytest.mark.parametrize("kind", [crops.PillowCrops, crops.OpenCVCrops, crops.CoarseOpenCVCrops])
def test_peers_give_crops(kind: Any) -> None:
    dataset = kind(3, crops.SMALL)
    assert len(dataset) == 3
    image, label = dataset[2]
    assert image.shape == (224, 224, 3)
    assert image.dtype == np.uint8
    assert image.std() > 5
    assert label == 2


def test_a_worker_fills_rows_without_a_loader() -> None:
    dataset = crops.PreparedCrops(2, crops.SMALL, crops.imagenet_worker)
    x, y = np.zeros((2, 224, 224, 3), np.uint8), np.zeros(2, np.int64)
    dataset.fill(range(2), x, y)
    assert y.tolist() == [0, 1]
    assert x[0].std() > 5
    assert x[1].std() > 5
    first = x.copy()
    dataset.fill(range(2), x, y)
    assert (x != first).any()  # other draws


def test_parts_are_those_of_random_resized_crop() -> None:
    random.seed(0)
    areas = []
    for _ in range(500):
        top, left, height, width = crops.random_resized_crop(427, 640)
        assert 0 <= top <= 427 - height
        assert 0 <= left <= 640 - width
        assert 0.74 < width / height < 1.35
        areas.append(height * width / (427 * 640))
    assert 0.07 < min(areas) < 0.12
    assert 0.85 < max(areas) <= 1.0


def test_what_never_fits_is_cut_out_of_the_middle() -> None:
    assert crops.random_resized_crop(100, 10_000) == (0, 4933, 100, 133)
    assert crops.random_resized_crop(10_000, 99) == (4934, 0, 132, 99)
