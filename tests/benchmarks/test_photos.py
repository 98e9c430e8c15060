"""Made-up photographs decode, and look like photographs to the codec."""

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

from crumpets_like.benchmarks import photos


def test_sample() -> None:
    dataset = photos.PhotoDataset(3)
    image, label = dataset[2]
    assert image.shape == (224, 224, 3)
    assert image.dtype == np.uint8
    assert image.std() > 5
    assert label == 2
    assert len(set(dataset.files)) == 3
    assert all(30_000 < len(file) < 120_000 for file in dataset.files)


def test_crop_is_a_view_of_at_least_half_of_each_side() -> None:
    image = np.zeros((375, 500, 3), np.uint8)
    for _ in range(50):
        crop = photos.random_crop(image)
        assert np.shares_memory(crop, image)
        assert 187 <= crop.shape[0] <= 375
        assert 250 <= crop.shape[1] <= 500
