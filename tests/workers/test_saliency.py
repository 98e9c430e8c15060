"""SaliencyWorker: maps of gaze points."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crumpets_like.workers import SaliencyWorker
from crumpets_like.workers.saliency import draw_points
from tests.support.markers import GEOMETRIES, SOURCE, centroid, painted, read

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

NAN = float("nan")


def make_worker(
    shape: tuple[int, ...] = (96, 96), image: Any = ((3, 96, 96), np.uint8), **options: Any
) -> SaliencyWorker:
    names = ("sample_ratio", "jitter", "interpolate", "blur", "maxnorm")
    params = {name: options.pop(name) for name in names if name in options}
    return SaliencyWorker(image, (shape, np.float32), target_image_params=params, **options)


def sample_of(*experiments: Any, key: str = "fixations") -> dict[str, Any]:
    return {
        "image": np.zeros((*SOURCE, 3), np.uint8),
        "experiments": [{key: points} for points in experiments],
    }


def same_size(**options: Any) -> SaliencyWorker:
    """A worker that moves nothing: coordinates in the image are those in the map."""
    return make_worker(SOURCE, ((3, *SOURCE), np.uint8), **options)


def map_of(worker: SaliencyWorker, *experiments: Any) -> NDArray[np.float32]:
    gaze_map: NDArray[np.float32] = read(worker, sample_of(*experiments))["target_image"][0]
    return gaze_map


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("interpolate", [False, True])
def test_a_point_is_where_its_marker_is(name: str, interpolate: bool) -> None:
    x, y = 72, 52
    sample = sample_of([(x, y)])
    sample["image"] = painted(x - 2, y - 2, x + 3, y + 3)
    worker = make_worker(image_params=GEOMETRIES[name], interpolate=interpolate)
    mini_batch = read(worker, sample)
    found = centroid(mini_batch["target_image"][0])
    distance = np.abs(found - centroid(mini_batch["image"][0, 0])).max()
    # Without interpolation the centre of a pixel is up to half a pixel from its point.
    assert distance <= (0.5 if interpolate else 0.5 + 0.15)


@pytest.mark.parametrize("shape", [(24, 24), (48, 96), (1, 31, 57)], ids=str)
def test_a_map_of_another_resolution_shows_the_same(shape: tuple[int, ...]) -> None:
    params = GEOMETRIES["turned"]
    small = read(make_worker(shape, image_params=params, interpolate=True), sample_of([(72, 52)]))
    full = map_of(make_worker(image_params=params, interpolate=True), [(72, 52)])
    ratio = np.array([shape[-1] / 96, shape[-2] / 96])
    found = centroid(small["target_image"][0].reshape(shape[-2:]))
    np.testing.assert_allclose(found, (centroid(full) + 0.5) * ratio - 0.5, atol=1e-4)


def test_each_point_adds_one_to_its_pixel() -> None:
    found = map_of(same_size(), [(3.4, 2.6), (3.0, 3.0)], [(-0.5, -0.5), (159.4, 119.4)])
    expected = np.zeros(SOURCE)
    expected[3, 3] = 2
    expected[0, 0] = expected[119, 159] = 1
    np.testing.assert_array_equal(found, expected)


def test_interpolation_divides_a_point_among_four_pixels() -> None:
    found = map_of(same_size(interpolate=True), [(3.25, 2.5), (-0.3, 119.2)])
    expected = np.zeros(SOURCE)
    expected[2:4, 3:5] = np.array([[0.75, 0.25], [0.75, 0.25]]) / 2
    expected[119, 0] = 1
    np.testing.assert_allclose(found, expected, atol=1e-6)


POINTS = st.lists(st.tuples(st.floats(-3, 13), st.floats(-3, 8)), max_size=20)


@given(POINTS, st.booleans())
def test_a_map_sums_to_its_number_of_points(
    points: list[tuple[float, float]], interpolate: bool
) -> None:
    gaze_map, seen = draw_points(np.array(points).reshape(-1, 2), (6, 11), interpolate)
    assert seen == sum(-0.5 <= x < 10.5 and -0.5 <= y < 5.5 for x, y in points)
    assert float(gaze_map.sum()) == pytest.approx(seen, abs=1e-5)
    assert (gaze_map >= 0).all()


def test_blur_of_one_point_is_the_gaussian() -> None:
    sigma = 0.025 * 160
    found = map_of(same_size(blur=0.025), [(80, 60)])
    rows, columns = np.mgrid[0:120, 0:160]
    square = (rows - 60.0) ** 2 + (columns - 80.0) ** 2
    expected = np.exp(-square / (2 * sigma**2)) / (2 * math.pi * sigma**2)
    np.testing.assert_allclose(found, expected, atol=0.01 * expected.max())
    assert float(found.sum()) == pytest.approx(1.0, abs=1e-4)


def test_blur_at_the_border_keeps_the_sum() -> None:
    found = map_of(same_size(blur=0.05), [(0, 0), (159, 30), (40, 118)])
    assert float(found.sum()) == pytest.approx(3.0, abs=1e-4)


def test_maximum_norm() -> None:
    found = map_of(same_size(maxnorm=True), [(3, 3), (3, 3), (9, 9)])
    assert (found.max(), found[9, 9]) == (1.0, 0.5)
    blurred = map_of(same_size(maxnorm=True, blur=0.02, interpolate=True), [(3.5, 3), (50, 60)])
    assert blurred.max() == 1.0
    # Points that are out of sight leave an empty map, not NaN.
    beside = read(make_worker(maxnorm=True), sample_of([(5, 60)]))
    assert not beside["target_image"].any()
    assert beside["gaze"] == [{"points": 0, "nan": 0, "outside": 0}]


def test_jitter_is_normal_and_relative_to_the_width() -> None:
    points = np.tile((80.0, 60.0), (4000, 1))
    found = map_of(same_size(jitter=0.05, interpolate=True), points)
    rows, columns = np.mgrid[0:120, 0:160]
    for grid, middle in ((columns, 80), (rows, 60)):
        deviations = (grid - middle) * found
        assert abs(deviations.sum() / found.sum()) < 0.5
        deviation = math.sqrt((found * (grid - middle) ** 2.0).sum() / found.sum())
        assert deviation == pytest.approx(8.0, rel=0.04)


def test_a_ratio_of_the_experiments_is_drawn_rounded_up() -> None:
    experiments = [[(x, 10), (x, 20)] for x in range(5)]
    for ratio, count in ((1.0, 5), (0.5, 3), (0.2, 1), (0.01, 1)):
        found = map_of(same_size(sample_ratio=ratio), *experiments)
        # Whole experiments, each once.
        np.testing.assert_array_equal(found[10], found[20])
        assert (found[10].sum(), found.max()) == (count, 1)
    worker = same_size(sample_ratio=0.2)
    maps = read(worker, *[sample_of(*experiments)] * 40)["target_image"]
    assert len(set(maps[:, 10].argmax(axis=1))) == 5


def test_draws_are_those_of_the_sample() -> None:
    worker = same_size(sample_ratio=0.5, jitter=0.02)
    samples = [sample_of([(80, 60)], [(60, 40)])] * 8
    one, other = read(worker, *samples, seed=3), read(worker, *samples, seed=3)
    np.testing.assert_array_equal(one["target_image"], other["target_image"])
    assert len({row.tobytes() for row in one["target_image"]}) == 8
    assert not np.array_equal(one["target_image"], read(worker, *samples)["target_image"])


def test_points_with_nan_and_outside_of_the_image_are_dropped_and_counted() -> None:
    mini_batch = read(
        same_size(),
        sample_of(
            [(NAN, 3), (3, NAN), (NAN, NAN), (5, 6)],
            [(160, 3), (3, -1), (float("inf"), 3), (7, 8), (7, 8)],
            [],
        ),
    )
    assert mini_batch["gaze"] == [{"points": 3, "nan": 3, "outside": 3}]
    found = mini_batch["target_image"][0]
    assert (found[6, 5], found[8, 7], found.sum()) == (1, 2, 3)


def test_a_sample_without_a_point_on_its_image_is_an_error() -> None:
    for experiments in ([], [[]], [[(NAN, 1), (2, 500)]]):
        with pytest.raises(ValueError, match=r"no gaze point on its image of 120 x 160"):
            read(same_size(), sample_of(*experiments))
    with pytest.raises(ValueError, match="1 have NaN as a coordinate, 2 are outside"):
        read(same_size(), sample_of([(NAN, 1), (2, 500)], [(-9, 3)]))


def test_fixations_come_before_locations() -> None:
    fixations, locations = sample_of([(3, 4)]), sample_of([(5, 6)], key="locations")
    both = sample_of([(3, 4)])
    both["experiments"][0]["locations"] = [(5, 6)]
    maps = read(same_size(), fixations, locations, both)["target_image"]
    assert (maps[0, 4, 3], maps[1, 6, 5], maps[2, 4, 3], maps[2, 6, 5]) == (1, 1, 1, 0)


def test_further_columns_are_left_alone_and_samples_may_be_packed() -> None:
    sample = sample_of(np.array([(3, 4, 0.2, NAN)], np.float32), [(5.0, 6.0, 1.0)])
    packed = msgpack.packb(sample, default=msgpack_numpy.encode)
    for form in (sample, packed):
        found = read(same_size(), form)["target_image"][0]
        assert (found[4, 3], found[6, 5], found.sum()) == (1, 1, 2)


@pytest.mark.parametrize(
    ("experiments", "reason"),
    [
        ([{"gaze": [(1, 2)]}], "no 'locations'; its keys are 'gaze'"),
        ([{"fixations": [(1, 2)]}, {"fixations": [1, 2]}], r"fixations of experiment 1 .* \(2,\)"),
        ([{"locations": [[1], [2]]}], r"locations of experiment 0 .* \(2, 1\)"),
    ],
)
def test_experiments_that_cannot_be_used(experiments: Any, reason: str) -> None:
    sample = {"image": np.zeros((*SOURCE, 3), np.uint8), "experiments": experiments}
    with pytest.raises(ValueError, match=reason):
        read(same_size(), sample)


@pytest.mark.parametrize(
    ("target", "params", "reason"),
    [
        (((96, 96), np.uint8), {}, "floating dtype, not uint8"),
        (((3, 96, 96), np.float32), {}, r"shape \(H, W\) or \(1, H, W\)"),
        (((96, 96), np.float32, 0.5), {}, "no fill value but 0.*0.5"),
        (((96, 96), np.float32), {"angle": 3}, "unknown parameter 'angle'; known are sample_ratio"),
        (((96, 96), np.float32), {"sample_ratio": 0.0}, r"sample_ratio must be in \(0, 1\]"),
        (((96, 96), np.float32), {"sample_ratio": 1.5}, "not 1.5"),
        (((96, 96), np.float32), {"jitter": -1.0}, "jitter must be finite and >= 0"),
        (((96, 96), np.float32), {"blur": NAN}, r"blur must be in \[0, 1\]"),
        (((96, 96), np.float32), {"blur": 1.01}, r"blur must be in \[0, 1\] .*, not 1.01"),
        (((96, 96), np.float32), {"jitter": NAN}, "jitter must be finite and >= 0"),
        (((96, 96), np.float32), {"blur": "much"}, "blur must be .*not 'much'"),
        (((96, 96), np.float32), {"maxnorm": "yes"}, "maxnorm must be true or false, not 'yes'"),
    ],
)
def test_wrong_arguments_are_named(target: Any, params: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SaliencyWorker(((3, 96, 96), np.uint8), target, target_image_params=params)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floating_dtypes(dtype: Any) -> None:
    worker = SaliencyWorker(
        ((3, *SOURCE), np.uint8), (SOURCE, dtype, 0), target_image_params={"blur": 0.01}
    )
    found = read(worker, sample_of([(80, 60)]))["target_image"]
    assert found.dtype == dtype
    assert float(found.astype(float).sum()) == pytest.approx(1.0, abs=1e-2)
