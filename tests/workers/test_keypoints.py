"""KeypointWorker: keypoints move with their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from crumpets_like.workers import KeypointWorker
from tests.support.markers import GEOMETRIES, SOURCE, centroid, painted, read

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")


def make_worker(num_keypoints: int = 3, **options: Any) -> KeypointWorker:
    return KeypointWorker(((3, 96, 96), np.uint8), num_keypoints, **options)


def sample_of(*keypoints: Any) -> dict[str, Any]:
    return {"image": np.zeros((*SOURCE, 3), np.uint8), "keypoints": keypoints}


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize(("x", "y"), [(72, 52), (100, 64), (62, 80)])
def test_a_keypoint_is_where_its_marker_is(name: str, x: int, y: int) -> None:
    # A box of 5 x 5 pixels around the centre of pixel (x, y).
    sample = {"image": painted(x - 2, y - 2, x + 3, y + 3), "keypoints": [(x, y)]}
    mini_batch = read(make_worker(1, image_params=GEOMETRIES[name]), sample)
    assert mini_batch["visibility"].tolist() == [[2]]
    found = centroid(mini_batch["image"][0, 0])
    np.testing.assert_allclose(mini_batch["keypoints"][0, 0], found, atol=0.5)


def test_visibility_is_that_of_the_sample_unless_out_of_sight() -> None:
    # 120 x 160 pixels become 96 x 128, of which the middle 96 columns are seen: x from 20 to 140.
    nan, inf = float("nan"), float("inf")
    mini_batch = read(
        make_worker(6),
        sample_of(
            (80, 60, 2), (80, 60, 1), (inf, -inf, 0), (nan, nan, 0), (10, 60, 2), (150, 60, 1)
        ),
    )
    assert mini_batch["visibility"].tolist() == [[2, 1, 0, 0, 0, 0]]
    middle = (80.5 * 0.8 - 16 - 0.5, 60.5 * 0.8 - 0.5)
    expected = [middle, middle, (0, 0), (0, 0), (0, 0), (0, 0)]
    np.testing.assert_allclose(mini_batch["keypoints"][0], expected, atol=1e-4)
    dtypes = {key: mini_batch[key].dtype for key in ("keypoints", "visibility")}
    assert dtypes == {"keypoints": np.float32, "visibility": np.uint8}


def test_pixels_reach_half_a_pixel_around_their_centres() -> None:
    worker = KeypointWorker(((1, 120, 160), np.uint8), 4)
    edges = [(-0.5, -0.5), (-0.51, 0), (159.49, 119.49), (159.5, 0)]
    assert read(worker, sample_of(*edges))["visibility"].tolist() == [[2, 0, 2, 0]]


def test_what_is_not_labelled_is_at_the_origin_in_a_mirrored_image_too() -> None:
    worker = KeypointWorker(((1, 120, 160), np.uint8), 2, image_params={"hmirror": True})
    mini_batch = read(worker, sample_of((3, 4, 0), (3, 4, 1)))
    np.testing.assert_allclose(mini_batch["keypoints"][0], [(0, 0), (156, 4)], atol=1e-4)


@pytest.mark.parametrize(
    ("params", "swapped"),
    [
        ({}, False),
        ({"hmirror": True}, True),
        ({"vmirror": True}, True),
        ({"hmirror": True, "vmirror": True}, False),
        ({"angle": 170.0}, False),
    ],
)
def test_left_and_right_change_places_in_a_mirrored_image(params: Any, swapped: bool) -> None:
    sample = sample_of((60, 50, 1), (80, 60, 2), (90, 70, 2))
    plain = read(make_worker(image_params=params), sample)
    paired = read(make_worker(image_params=params, swap=[(0, 2)]), sample)
    order = [2, 1, 0] if swapped else [0, 1, 2]
    for key in ("keypoints", "visibility"):
        np.testing.assert_array_equal(paired[key][0], plain[key][0, order])


@pytest.mark.parametrize(
    ("keypoints", "reason"),
    [
        ([(1, 2)] * 4, r"shape \(3, 2\) or \(3, 3\), not \(4, 2\)"),
        ([(1, 2, 3, 4)] * 3, r"not \(3, 4\)"),
        ([(1, 2, 2), (1, 2, 3), (1, 2, 2)], r"visibility of 0, 1 or 2, but keypoint 1 is \(1.0"),
        ([(1, 2, 2), (1, 2, 1), (float("nan"), 2, 1)], "finite x and y, .* keypoint 2"),
        ([(1, 2), (1, float("inf")), (3, 2)], "finite x and y, .* keypoint 1"),
    ],
)
def test_keypoints_that_cannot_be_used(keypoints: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read(make_worker(), sample_of(*keypoints))


def test_a_sample_without_keypoints() -> None:
    with pytest.raises(ValueError, match="no 'keypoints'; its keys are 'image'"):
        read(make_worker(), {"image": np.zeros((*SOURCE, 3), np.uint8)})


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"num_keypoints": 0}, ValueError, "num_keypoints must be at least 1"),
        ({"swap": [(0, 3)]}, ValueError, r"from 0 to 2, .* not \[\(0, 3\)\]"),
        ({"swap": [(0, 1), (1, 2)]}, ValueError, "each in one pair at most"),
        ({"swap": [(0, 0)]}, ValueError, "pairs of different keypoints"),
        ({"swap": [(0, 1, 2)]}, ValueError, "pairs of different keypoints"),
        ({"swap": [(-1, 1)]}, ValueError, "from 0 to 2"),
        ({"swap": [1, 2]}, ValueError, r"pairs .* not \[1, 2\]"),
        ({"swap": [(0.5, 2)]}, ValueError, "pairs of different keypoints"),
    ],
)
def test_wrong_arguments_are_named(options: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make_worker(**options)
