"""The warp, against numpy's slicing, Pillow, exact averages and closed forms."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crumpets_like.workers.geometry import (
    crop_parameters,
    decoding_size,
    invert_transform,
    make_transform,
    transform_points,
)
from crumpets_like.workers.warping import _halve, _weights, warp
from tests.support.pictures import GEOMETRY, inverse, noise, smooth

pytest.importorskip("cv2")

BACKGROUND = (9.0, 8.0, 7.0)


def warped(
    image: NDArray[np.uint8],
    size: tuple[int, int],
    interp_method: str = "linear",
    supersampling: int = 0,
    background: Any = BACKGROUND,
    **geometry: Any,
) -> NDArray[np.uint8]:
    matrix = make_transform((image.shape[0], image.shape[1]), size, **geometry)
    return warp(
        image,
        size,
        matrix,
        interp_method=interp_method,
        supersampling=supersampling,
        background=background,
    )


def difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    assert one.shape == other.shape
    return float(np.abs(one.astype(float) - other.astype(float)).max())


def test_rotation_comes_before_mirrors() -> None:
    image = noise(24, 24, 3)
    both = warped(image, (24, 24), hmirror=True, angle=90.0)
    np.testing.assert_array_equal(both, np.rot90(image)[:, ::-1])


# --- exact pictures ---------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos4", "area"])
def test_same_size_turned_and_mirrored_are_exact(channels: int, method: str) -> None:
    image = noise(24, 24, channels)
    size = (24, 24)
    np.testing.assert_array_equal(warped(image, size, method, background=5), image)
    for turns in (1, 2, 3, -1):
        turned = warped(image, size, method, background=5, angle=90.0 * turns)
        np.testing.assert_array_equal(turned, np.rot90(image, turns))
    mirrored = warped(image, size, method, background=5, hmirror=True)
    np.testing.assert_array_equal(mirrored, image[:, ::-1])
    upside_down = warped(image, size, method, background=5, vmirror=True)
    np.testing.assert_array_equal(upside_down, image[::-1])
    both = warped(image, size, method, background=5, hmirror=True, vmirror=True)
    np.testing.assert_array_equal(both, image[::-1, ::-1])


@pytest.mark.parametrize("size", [(20, 30), (31, 17), (64, 64), (427, 640)])
def test_mirror_twice_is_the_identity(size: tuple[int, int]) -> None:
    image = smooth(90, 120)
    for mirror in ("hmirror", "vmirror"):
        once = warped(image, size, scale=1.3, **{mirror: True})
        axis = 1 if mirror == "hmirror" else 0
        assert difference(np.flip(once, axis), warped(image, size, scale=1.3)) <= 1


def test_result_is_never_a_view_of_the_image() -> None:
    image = noise(8, 8, 3)
    for method in ("nearest", "linear"):
        assert not np.shares_memory(warped(image, (8, 8), method), image)


def test_turned_by_90_degrees_of_another_shape() -> None:
    image = noise(20, 40, 3)
    turned = warped(image, (40, 20), angle=90.0, scale=0.5)
    np.testing.assert_array_equal(turned, np.rot90(image))


def test_shortest_covers_and_longest_shows_all() -> None:
    image = noise(20, 40, 3)
    np.testing.assert_array_equal(warped(image, (20, 20)), image[:, 10:30])
    whole = warped(image, (40, 40), scale_mode="longest")
    np.testing.assert_array_equal(whole[10:30], image)
    assert (whole[:10] == BACKGROUND).all()
    assert (whole[30:] == BACKGROUND).all()


def test_background_begins_where_the_image_ends() -> None:
    image = np.full((10, 10, 3), 200, np.uint8)
    for method in ("nearest", "linear", "cubic"):
        small = warped(image, (20, 20), method, scale=0.7)
        expected = np.full((20, 20, 3), BACKGROUND)
        expected[3:17, 3:17] = 200
        np.testing.assert_array_equal(small, expected)


def test_nothing_of_the_image_is_seen() -> None:
    image = np.full((1, 20_000, 3), 200, np.uint8)
    # The line is 224 / 20,000 of a pixel high, and no centre of a pixel lies on it.
    assert (warped(image, (224, 224), scale_mode="longest") == BACKGROUND).all()


@pytest.mark.parametrize("method", ["nearest", "linear", "cubic", "lanczos4", "area"])
@pytest.mark.parametrize("angle", [0.0, 33.0])
def test_one_pixel_and_one_line(method: str, angle: float) -> None:
    one = np.array([[[10, 20, 30]]], np.uint8)
    assert (warped(one, (7, 5), method, angle=angle, scale=9.0) == [10, 20, 30]).all()
    line = np.full((1, 20_000, 3), 200, np.uint8)
    for shape in (line, line.transpose(1, 0, 2)):
        assert (warped(shape, (224, 224), method, angle=angle, scale=9.0) == 200).all()
        assert warped(shape, (3, 5), method, scale_mode="longest", angle=angle).shape == (3, 5, 3)


def test_long_line_keeps_its_ramp() -> None:
    line = np.repeat(np.linspace(0, 255, 20_000)[np.newaxis, :, np.newaxis], 3, axis=2)
    line = np.rint(line).astype(np.uint8)
    params = crop_parameters((1, 20_000), (16, 250), (0, 0, 20_000, 1))
    shown = warped(line, (16, 250), **params)
    expected = np.linspace(0, 255, 20_000).reshape(250, 80).mean(axis=1)
    assert np.abs(shown[8, :, 0] - expected).max() <= 1


# --- ramps stay ramps -------------------------------------------------------------------------


def ramp(height: int, width: int) -> NDArray[np.uint8]:
    """One level per pixel: along x, along y, and against x."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([columns, rows, width - 1 - columns], axis=-1).astype(np.uint8)


@settings(max_examples=60, deadline=None)
@given(
    geometry=GEOMETRY,
    method=st.sampled_from(["linear", "area", "cubic"]),
    supersampling=st.sampled_from([0, 0, 1, 2, 3]),
    size=st.sampled_from([(64, 64), (40, 90), (301, 223)]),
)
def test_linear_ramp_stays_a_ramp(
    geometry: dict[str, Any], method: str, supersampling: int, size: tuple[int, int]
) -> None:
    height, width = 180, 250
    geometry["aspect"] **= 0.5
    drawn = warped(
        ramp(height, width), size, method, supersampling, background=(255, 255, 255), **geometry
    ).astype(float)
    matrix = make_transform((height, width), size, **geometry)
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    points = np.stack([columns.ravel(), rows.ravel()], axis=-1)
    x, y = transform_points(invert_transform(matrix), points).T.reshape(2, *size)
    # Pixels that lie within the image whole; at its edge the ramp goes on as a plateau.
    shrink = np.hypot(*invert_transform(matrix)[:, :2]).max()
    margin = 1.5 + 4 * shrink
    inside = (x > margin) & (x < width - 1 - margin) & (y > margin) & (y < height - 1 - margin)
    expected = np.stack([x, y, width - 1 - x], axis=-1)
    # Every step rounds; from a factor of 2 on there are up to four.
    limit = 1.0 if shrink < 2 or supersampling > 0 else 2.0
    assert np.abs(drawn - expected)[inside].max(initial=0.0) <= limit


# --- anti-aliasing ----------------------------------------------------------------------------


def area_average(
    image: NDArray[np.uint8], size: tuple[int, int], box: tuple[float, float, float, float]
) -> NDArray[np.float64]:
    """Exact averages over target pixels of an upright box, by sums along each axis."""

    def weights(low: float, high: float, count: int, extent: int) -> NDArray[np.float64]:
        edges = np.linspace(low, high, count + 1)
        pixels = np.arange(extent)
        overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
        overlap = overlap.clip(0.0)
        return np.asarray(overlap / overlap.sum(axis=1, keepdims=True))

    left, top, right, bottom = box
    rows = weights(top, bottom, size[0], image.shape[0])
    columns = weights(left, right, size[1], image.shape[1])
    return np.asarray(np.einsum("ya,xb,abc->yxc", rows, columns, image.astype(float)))


BOXES = pytest.mark.parametrize(
    ("size", "box"),
    [
        ((16, 16), (0, 0, 64, 64)),
        ((20, 30), (3, 5, 90, 61)),
        ((25, 25), (10, 10, 41, 37)),
        ((33, 60), (0, 0, 100, 80)),
        ((50, 10), (7, 0, 57, 80)),
        ((11, 9), (0, 1, 99, 78)),
    ],
)


@BOXES
def test_area_is_the_exact_average(size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    image = noise(80, 100, 3)
    params = crop_parameters((80, 100), size, box)
    drawn = warped(image, size, "area", **params)
    assert difference(drawn, area_average(image, size, box)) <= 1.0
    mirrored = warped(image, size, "area", hmirror=True, **params)
    np.testing.assert_array_equal(mirrored, drawn[:, ::-1])


@BOXES
def test_linear_is_close_to_pillow(size: tuple[int, int], box: tuple[int, int, int, int]) -> None:
    pil = pytest.importorskip("PIL.Image")
    for image, most, usual in ((noise(80, 100, 3), 90, 14), (smooth(80, 100, shortest=50), 8, 1.5)):
        drawn = warped(image, size, **crop_parameters((80, 100), size, box))
        expected = pil.fromarray(image).resize(size[::-1], pil.Resampling.BILINEAR, box)
        gap = np.abs(drawn.astype(float) - np.asarray(expected))
        assert gap.max() <= most
        assert gap.mean() <= usual


@pytest.mark.parametrize("angle", [0.0, 0.01, 90.0, 17.0])
@pytest.mark.parametrize("factor", [1.5, 2.0, 3.3, 8.0, 25.0])
def test_fine_patterns_become_grey_at_any_angle(angle: float, factor: float) -> None:
    image = np.zeros((400, 400, 3), np.uint8)
    image[::2, ::2] = image[1::2, 1::2] = 255
    side = round(280 / factor)
    drawn = warped(image, (side, side), angle=angle, scale=400 / 280)
    assert np.abs(drawn.astype(float) - 127.5).max() <= (90 if factor < 2 else 4)
    assert drawn.std() <= (30 if factor < 2 else 2)
    assert drawn.mean() == pytest.approx(127.5, abs=3)


@pytest.mark.parametrize("factor", [1.3, 2.6, 5.7, 11.0])
@pytest.mark.parametrize("angle", [0.0, 25.0])
def test_pictures_are_close_to_the_average_of_many_samples(factor: float, angle: float) -> None:
    image = smooth(300, 301, shortest=12 * factor)
    side = round(200 / factor)
    arguments: dict[str, Any] = {"angle": angle, "scale": 1.47}
    drawn = warped(image, (side, side), **arguments)
    many = warped(image, (side, side), supersampling=12, **arguments)
    assert np.abs(drawn.astype(float) - many).mean() < 4


def test_odd_sizes_are_halved_in_whole() -> None:
    image = noise(9, 7, 3)
    half = _halve(image)
    assert half.shape == (5, 4, 3)
    padded = np.pad(image, ((0, 1), (0, 1), (0, 0)), "edge").astype(float)
    assert difference(half, padded.reshape(5, 2, 4, 2, 3).mean(axis=(1, 3))) <= 0.5
    assert difference(_halve(image[:1, :1]), image[:1, :1]) == 0


def test_supersampling_is_what_it_says() -> None:
    image = noise(60, 60, 3)
    drawn = warped(image, (20, 20), "nearest", supersampling=3)
    expected = image.reshape(20, 3, 20, 3, 3).mean(axis=(1, 3))
    assert difference(drawn, expected) <= 1.0
    skipped = warped(image, (20, 20), "linear", supersampling=1)
    np.testing.assert_array_equal(skipped, image[1::3, 1::3])


def test_nearest_never_averages() -> None:
    labels = np.random.default_rng(0).choice(np.array([3, 200], np.uint8), (90, 70, 1))
    for angle in (0.0, 40.0):
        drawn = warped(labels, (31, 12), "nearest", background=3, angle=angle)
        assert set(np.unique(drawn)) <= {3, 200}


# --- a reduced decode -------------------------------------------------------------------------


@pytest.mark.parametrize("denominator", [2, 4, 8])
def test_a_reduced_decode_is_whole_eighths(denominator: int) -> None:
    # 8 n + 1 pixels: the last pixel of the decode stands for one of them alone.
    height, width = 8 * 10 + 1, 8 * 30 + 1
    columns = np.arange(denominator * -(-width // denominator)).clip(0, width - 1)
    line = columns.reshape(-1, denominator).mean(axis=1)
    rows = -(-height // denominator)
    reduced = np.rint(np.tile(line[None, :, None], (rows, 1, 3))).astype(np.uint8)
    shown = 8 * 29  # where the ramp is one
    matrix = np.array([[29 / shown, 0, 29 / shown / 2 - 0.5], [0, 0.125, -0.4375]])
    drawn = warp(reduced, (10, 29), matrix, source_size=(height, width))
    assert difference(drawn[5, :, 0], 8 * np.arange(29) + 3.5) <= 1.0


@settings(max_examples=30, deadline=None)
@given(geometry=GEOMETRY, denominator=st.sampled_from([2, 4]))
def test_a_reduced_image_gives_the_same_picture(geometry: dict[str, Any], denominator: int) -> None:
    import cv2

    image = smooth(240, 320)
    geometry["scale"] = 1.0 + abs(geometry["scale"] - 1.0) / 9
    size = (48, 40)
    matrix = make_transform((240, 320), size, **geometry)
    reduced = cv2.resize(
        image, (320 // denominator, 240 // denominator), interpolation=cv2.INTER_AREA
    )
    least = decoding_size(inverse(matrix), (240, 320))
    if reduced.shape[0] < least[0] or reduced.shape[1] < least[1]:
        return
    small = warp(np.asarray(reduced), size, matrix, source_size=(240, 320), background=BACKGROUND)
    large = warp(image, size, matrix, background=BACKGROUND)
    same = np.abs(small.astype(float) - large).max(axis=2)
    # Where the background begins, one of them may see the image and the other not.
    assert np.quantile(same, 0.9) <= 16


# --- markers ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    geometry=GEOMETRY,
    x=st.floats(0.2, 0.8),
    y=st.floats(0.2, 0.8),
    size=st.sampled_from([(128, 128), (90, 200), (300, 260)]),
)
def test_a_marker_is_found_where_its_point_goes(
    geometry: dict[str, Any], x: float, y: float, size: tuple[int, int]
) -> None:
    height, width = 200, 260
    centre = np.array([x * width, y * height])
    rows, columns = np.mgrid[0:height, 0:width]
    spot = np.exp(-((columns - centre[0]) ** 2 + (rows - centre[1]) ** 2) / (2 * 6.0**2))
    image = np.rint(255 * spot)[:, :, np.newaxis].astype(np.uint8)
    geometry["scale"] = min(geometry["scale"], 4.0)
    matrix = make_transform((height, width), size, **geometry)
    (point,) = transform_points(matrix, [centre])
    reach = 25 * np.linalg.norm(matrix[:, :2], 2)
    if not (reach < point).all() or not (point < np.array(size[::-1]) - reach).all():
        return
    if np.linalg.norm(invert_transform(matrix)[:, :2], 2) > 4:
        return  # less than two pixels of it are left
    drawn = warp(image, size, matrix, background=0.0)[:, :, 0].astype(float)
    down, across = np.mgrid[0 : size[0], 0 : size[1]]
    found = np.array([(drawn * across).sum(), (drawn * down).sum()]) / drawn.sum()
    np.testing.assert_allclose(found, point, atol=0.5)


@pytest.mark.parametrize("geometry", [{"scale": 1e-6}, {"scale": 1e-6, "angle": 30.0}, {}])
@pytest.mark.parametrize("aspect", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("shape", [(50, 70, 3), (1, 2000, 3), (3000, 2, 3)])
def test_filters_stay_small(
    shape: tuple[int, ...], aspect: float, geometry: dict[str, Any], monkeypatch: Any
) -> None:
    taps = []

    def counting(half: int) -> NDArray[np.float32]:
        taps.append(len(weights := _weights(half)))
        return weights

    monkeypatch.setattr("crumpets_like.workers.warping._weights", counting)
    drawn = warped(np.full(shape, 200, np.uint8), (64, 48), aspect=aspect, **geometry)
    assert ((drawn == 200) | (drawn == BACKGROUND)).all()
    assert max(taps, default=0) <= 20


def test_all_of_an_image_in_one_pixel_is_its_average() -> None:
    image = np.zeros((64, 64, 1), np.uint8)
    image[:, :32] = 200
    drawn = warped(image, (9, 9), scale=1e-3, scale_mode="longest", background=7)
    expected = np.full((9, 9, 1), 7)
    expected[4, 4] = 100
    np.testing.assert_array_equal(drawn, expected)


def test_lanczos_of_too_many_pixels_is_named() -> None:
    line = np.full((1, 40_000, 3), 200, np.uint8)
    for supersampling in (1, 2):
        with pytest.raises(ValueError, match=r"'lanczos4' takes at most 32,766 .* and 40,000 are"):
            warped(line, (4, 64), "lanczos4", supersampling, scale_mode="longest")
    assert (warped(line[:, :32_766], (1, 64), "lanczos4", 2, scale=2.0) == 200).all()
    assert warped(line[:, :32_766], (4, 64), "lanczos4", 2, scale_mode="longest").any()
