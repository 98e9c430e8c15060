"""DetectionWorker: boxes move with their images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers import DetectionWorker
from crumpets_like.workers.detection import transform_boxes
from tests.support.markers import GEOMETRIES, SOURCE, centroid, painted, read

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

BOX = (60, 40, 84, 64)
UPRIGHT = [name for name, params in GEOMETRIES.items() if not {"angle", "shear"} & params.keys()]


def make_worker(max_boxes: int = 4, **options: Any) -> DetectionWorker:
    return DetectionWorker(((3, 96, 96), np.uint8), max_boxes, **options)


def sample_of(*boxes: Any, classes: Any = None) -> dict[str, Any]:
    picture = painted(*BOX)
    return {
        "image": picture,
        "boxes": np.array(boxes, np.float64).reshape(-1, 4),
        "classes": np.arange(len(boxes)) if classes is None else classes,
    }


def edges(picture: NDArray[Any]) -> NDArray[np.float64]:
    """Left, top, right and bottom edge of a bright upright box on black, to parts of a pixel."""
    brightness = picture.astype(np.float64) / 255.0
    found = []
    for profile in (brightness.max(axis=0), brightness.max(axis=1)):
        middle = int(np.rint((profile * np.arange(len(profile))).sum() / profile.sum()))
        found.append((middle - profile[:middle].sum(), middle + profile[middle:].sum()))
    (left, right), (top, bottom) = found
    return np.array([left, top, right, bottom])


@pytest.mark.parametrize("name", UPRIGHT)
def test_the_edges_are_those_of_the_box_that_is_seen(name: str) -> None:
    mini_batch = read(make_worker(image_params=GEOMETRIES[name]), sample_of(BOX))
    assert mini_batch["count"].tolist() == [1]
    np.testing.assert_allclose(
        mini_batch["boxes"][0, 0], edges(mini_batch["image"][0, 0]), atol=0.5
    )


@pytest.mark.parametrize("name", GEOMETRIES)
def test_the_upright_box_is_around_what_is_seen(name: str) -> None:
    mini_batch = read(make_worker(image_params=GEOMETRIES[name]), sample_of(BOX))
    picture = mini_batch["image"][0, 0]
    left, top, right, bottom = mini_batch["boxes"][0, 0]
    middle = np.array([left + right - 1, top + bottom - 1]) / 2  # of edges, as centres of pixels
    np.testing.assert_allclose(middle, centroid(picture), atol=0.5)
    rows, columns = np.nonzero(picture > 127)
    seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    # A corner that is no right angle to the axes fills less than half of its pixel.
    np.testing.assert_allclose([left, top, right, bottom], seen, atol=1.6)


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.4, 2.0])
def test_area_under_a_scale_is_its_square(scale: float) -> None:
    unscaled = read(make_worker(), sample_of((70, 50, 82, 62)))["boxes"][0, 0]
    worker = make_worker(image_params={"scale": scale})
    left, top, right, bottom = read(worker, sample_of((70, 50, 82, 62)))["boxes"][0, 0]
    area = (unscaled[2] - unscaled[0]) * (unscaled[3] - unscaled[1])
    assert (right - left) * (bottom - top) == pytest.approx(scale**2 * area, rel=1e-5)


def test_boxes_against_their_corners() -> None:
    generator = np.random.default_rng(0)
    low = generator.uniform(-20, 20, (50, 2))
    boxes = np.hstack((low, low + generator.uniform(0, 30, (50, 2))))
    matrix = generator.normal(size=(2, 3))
    found = transform_boxes(matrix, boxes)
    for box, (left, top, right, bottom) in zip(found, boxes, strict=True):
        corners = np.array([(x, y, 1) for x in (left, right) for y in (top, bottom)])
        moved = (corners - (0.5, 0.5, 0)) @ matrix.T + 0.5
        np.testing.assert_allclose(box, [*moved.min(axis=0), *moved.max(axis=0)])


def test_boxes_are_clipped_and_padded() -> None:
    # 120 x 160 pixels become 96 x 128, of which the middle 96 columns are seen: x from 20 to 140.
    mini_batch = read(
        make_worker(),
        sample_of((0, 0, 160, 120), (10, 0, 40, 60), classes=[7, 8]),
        sample_of(),
    )
    np.testing.assert_allclose(
        mini_batch["boxes"][0], [(0, 0, 96, 96), (0, 0, 16, 48), (0,) * 4, (0,) * 4], atol=1e-4
    )
    np.testing.assert_array_equal(mini_batch["classes"], [[7, 8, -1, -1], [-1] * 4])
    np.testing.assert_array_equal(mini_batch["count"], [2, 0])
    assert not mini_batch["boxes"][1].any()
    assert (mini_batch["boxes"].dtype, mini_batch["classes"].dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    ("min_visible", "kept"), [(0.0, [0, 1, 2, 4]), (0.3, [0, 1, 4]), (0.6, [0, 4]), (1.0, [0, 4])]
)
def test_boxes_that_are_hardly_visible_are_dropped(min_visible: float, kept: list[int]) -> None:
    # The middle 120 columns of 160 are seen: all of these boxes, a half, an eighth, nothing, all
    # that is on the source image; the last one has no area.
    boxes = (
        (20, 0, 140, 120),
        (10, 0, 30, 10),
        (6, 10, 22, 20),
        (0, 0, 20, 20),
        (50, 100, 60, 500),
        (50, 50, 50, 60),
    )
    mini_batch = read(make_worker(6, min_visible=min_visible), sample_of(*boxes))
    count = int(mini_batch["count"][0])
    assert mini_batch["classes"][0, :count].tolist() == kept
    assert (mini_batch["boxes"][0, :count, 2:] > mini_batch["boxes"][0, :count, :2]).all()


def test_a_box_without_area_is_dropped_at_every_limit() -> None:
    sample = sample_of((50, 50, 50, 60), (50, 50, 60, 50), (200, 0, 220, 50))
    assert read(make_worker(min_visible=0.0), sample)["count"].tolist() == [0]


@pytest.mark.parametrize(
    ("boxes", "classes", "reason"),
    [
        ([(1, 2, 3, 4), (9, 2, 3, 4)], [0, 1], r"box 1 is \(9.0, 2.0, 3.0, 4.0\)"),
        ([(1, 9, 3, 4)], [0], "left <= right and top <= bottom"),
        ([(1, 2, float("nan"), 4)], [0], "all finite, but box 0"),
        ([(1, 2, float("inf"), 4)], [0], "all finite, but box 0"),
        ([(1, 2, 3)], [0], r"shape \(n, 4\), not \(1, 3\)"),
        ([(1, 2, 3, 4)], [0, 1], r"1 boxes, but classes of shape \(2,\)"),
        ([(1, 2, 3, 4)] * 5, [0] * 5, "5 boxes, but there is room for 4: set max_boxes"),
    ],
)
def test_boxes_that_cannot_be_used(boxes: Any, classes: Any, reason: str) -> None:
    sample = {"image": np.zeros((*SOURCE, 3), np.uint8), "boxes": boxes, "classes": classes}
    with pytest.raises(ValueError, match=reason):
        read(make_worker(), sample)


@pytest.mark.parametrize("key", ["boxes", "classes"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    sample = sample_of(BOX)
    del sample[key]
    with pytest.raises(ValueError, match=f"no '{key}'; its keys are 'image'"):
        read(make_worker(), sample)


@pytest.mark.parametrize("wrong", [1.5, -0.5, float("nan")])
def test_classes_must_be_integers(wrong: float) -> None:
    with pytest.raises(ValueError, match=f"classes must be integers, .* box 1 is {wrong}"):
        read(make_worker(), sample_of(BOX, BOX, classes=[2.0, wrong]))
    with pytest.raises(ValueError, match="inf"):
        read(make_worker(), sample_of(BOX, classes=[float("inf")]))


def test_whole_numbers_of_another_type_are_classes() -> None:
    mini_batch = read(make_worker(), sample_of(BOX, classes=np.array([3.0], np.float32)))
    assert mini_batch["classes"][0, 0] == 3


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"max_boxes": 0}, ValueError, "max_boxes must be at least 1"),
        ({"max_boxes": 2.5}, TypeError, "max_boxes must be an integer"),
        ({"min_visible": 1.5}, ValueError, r"min_visible must be a part in \[0, 1\], not 1.5"),
        ({"min_visible": float("nan")}, ValueError, "min_visible"),
    ],
)
def test_wrong_arguments_are_named(options: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        make_worker(**options)
