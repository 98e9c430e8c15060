"""The benchmark of workers that leave pixel operations to the device."""

import pytest

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

import numpy as np

from crumpets_like.benchmarks.crops import CROP, SMALL, Pixels, PreparedCrops, augmenting_worker
from crumpets_like.benchmarks.requirements import MEASURES
from crumpets_like.benchmarks.worker_time import measure


def test_measures() -> None:
    measures = measure(2)
    assert all(value > 0 for value in measures.values())
    assert set(measures) <= set(MEASURES)


def test_only_one_of_the_workers_changes_pixels_and_all_draw_the_same_geometry() -> None:
    images = {}
    names: tuple[Pixels, ...] = ("geometry", "device", "pixels")
    for name in names:
        images[name] = np.zeros((1, CROP, CROP, 3), np.uint8)
        crops = PreparedCrops(1, SMALL, lambda name=name: augmenting_worker(name))
        crops.fill(range(1), images[name], np.zeros(1, np.int64))
    np.testing.assert_array_equal(images["device"], images["geometry"])
    assert (images["pixels"] != images["geometry"]).mean() > 0.5
