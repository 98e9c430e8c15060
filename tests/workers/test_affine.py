"""The warp, compared with what numpy does by slicing, and the parameters that steer it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crumpets_like.workers.affine import (
    AFFINE_DEFAULTS,
    RandomAffine,
    affine_matrix,
    check_affine,
    warp,
)


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def warped(
    image: NDArray[np.uint8],
    size: tuple[int, int],
    background: tuple[float, ...] = (9.0, 8.0, 7.0),
    dtype: Any = np.uint8,
    **params: Any,
) -> NDArray[Any]:
    """The warped image, shape (H, W, 3) or (H, W) as the source."""
    pytest.importorskip("cv2")
    channels = 1 if image.ndim == 2 else 3
    buffer = np.full((channels, *size), 77, dtype)
    warp(image, buffer, {**AFFINE_DEFAULTS, **params}, background[:channels])
    return buffer[0] if image.ndim == 2 else buffer.transpose(1, 2, 0)


@pytest.mark.parametrize("shape", [(24, 24, 3), (24, 24)])
def test_same_size_turned_and_mirrored_are_exact(shape: tuple[int, ...]) -> None:
    image = noise(*shape)
    np.testing.assert_array_equal(warped(image, (24, 24)), image)
    np.testing.assert_array_equal(warped(image, (24, 24), angle=90.0), np.rot90(image))
    np.testing.assert_array_equal(warped(image, (24, 24), angle=-90.0), np.rot90(image, -1))
    np.testing.assert_array_equal(warped(image, (24, 24), hmirror=True), image[:, ::-1])
    # Mirrored first, turned then.
    both = warped(image, (24, 24), hmirror=True, angle=90.0)
    np.testing.assert_array_equal(both, np.rot90(image[:, ::-1]))


def test_shift_moves_right_and_down_and_shows_the_background() -> None:
    image = noise(20, 20, 3)
    expected = np.broadcast_to(np.array([9, 8, 7], np.uint8), (20, 20, 3)).copy()
    expected[5:, 2:] = image[:-5, :-2]
    np.testing.assert_array_equal(warped(image, (20, 20), shift=(0.1, 0.25)), expected)


def test_shortest_covers_and_longest_shows_all() -> None:
    image = noise(20, 40, 3)
    np.testing.assert_array_equal(warped(image, (20, 20)), image[:, 10:30])
    whole = warped(image, (40, 40), scale_mode="longest")
    np.testing.assert_array_equal(whole[10:30], image)
    assert (whole[:10] == [9, 8, 7]).all()
    assert (whole[30:] == [9, 8, 7]).all()


def test_scale_enlarges_about_the_centre() -> None:
    image = np.zeros((21, 21), np.uint8)
    image[8:13, 8:13] = 200
    large = warped(image, (21, 21), scale=3.0)
    assert (large[4:17, 4:17] == 200).all()
    assert (large[:2] == 0).all()
    assert warped(image, (21, 21), background=(50.0,), scale=0.5)[0, 0] == 50


def test_much_too_large_images_are_averaged_not_skipped() -> None:
    image = np.zeros((64, 64), np.uint8)
    image[::2, ::2] = 255  # bilinear interpolation at every eighth pixel would miss or hit them all
    np.testing.assert_allclose(warped(image, (8, 8)), 255 / 4, atol=1)
    blocks = noise(64, 64)
    means = blocks.reshape(16, 4, 16, 4).mean(axis=(1, 3))
    np.testing.assert_allclose(warped(blocks, (16, 16)), means, atol=0.51)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_scaled_to_one(dtype: Any) -> None:
    image = np.arange(256, dtype=np.uint8).reshape(16, 16)
    result = warped(image, (16, 16), dtype=dtype)
    np.testing.assert_allclose(result, image / 255, rtol=1e-3 if dtype == np.float16 else 1e-6)
    assert (result.min(), result.max()) == (0.0, 1.0)


def test_wide_integers_keep_the_levels() -> None:
    image = noise(16, 16, 3)
    np.testing.assert_array_equal(warped(image, (16, 16), dtype=np.int32), image)


@given(
    source=st.tuples(st.integers(1, 500), st.integers(1, 500)),
    target=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    angle=st.floats(-180, 180),
    scale=st.floats(0.1, 10),
    shift=st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    hmirror=st.booleans(),
    mode=st.sampled_from(["shortest", "longest"]),
)
def test_matrix_keeps_centre_shape_and_side(
    source: tuple[int, int],
    target: tuple[int, int],
    angle: float,
    scale: float,
    shift: tuple[float, float],
    hmirror: bool,
    mode: str,
) -> None:
    params = {
        "angle": angle,
        "scale": scale,
        "shift": shift,
        "hmirror": hmirror,
        "scale_mode": mode,
    }
    matrix = affine_matrix(source, target, params)
    middle = matrix @ [(source[1] - 1) / 2, (source[0] - 1) / 2, 1.0]
    wanted = [(target[k] - 1) / 2 + shift[1 - k] * target[k] for k in (1, 0)]
    np.testing.assert_allclose(middle, wanted, atol=1e-6)
    fits = [target[0] / source[0], target[1] / source[1]]
    factor = scale * (max(fits) if mode == "shortest" else min(fits))
    linear = matrix[:, :2]
    np.testing.assert_allclose(linear @ linear.T, factor**2 * np.eye(2), atol=1e-6 * factor**2)
    assert (np.linalg.det(linear) < 0) == hmirror


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"rotation": 3, "zoom": 2}, "unknown parameters rotation, zoom; known are angle,"),
        ({"scale_mode": "fit"}, "scale_mode must be one of .* not 'fit'"),
        ({"scale": 0.0}, "scale must be a finite factor > 0, not 0.0"),
        ({"scale": float("nan")}, "not nan"),
        ({"shift": (1.0,)}, r"shift must be \(right, down\), not \(1.0,\)"),
        ({"angle": float("inf")}, "must be finite"),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"image_params.*{reason}"):
        check_affine(params, "image_params")


def draw(rng: RandomAffine, count: int, seed: int = 0) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    image, buffer = noise(4, 4), np.zeros((1, 4, 4))
    return [rng(image, buffer, generator) for _ in range(count)]


def test_random_parameters_fill_their_ranges_evenly() -> None:
    drawn = draw(RandomAffine(angle=10.0, shift=0.2, scale=(0.5, 2.0), hmirror=0.25), 4000)
    for params in drawn:
        check_affine(params, "drawn")
    angles = np.array([params["angle"] for params in drawn])
    shifts = np.array([params["shift"] for params in drawn])
    scales = np.log2([params["scale"] for params in drawn])
    for values, limit in ((angles, 10.0), (shifts[:, 0], 0.2), (shifts[:, 1], 0.2), (scales, 1.0)):
        counts, _ = np.histogram(values, bins=8, range=(-limit, limit))
        assert counts.sum() == 4000
        assert abs(counts - 500).max() < 100  # five standard deviations
    assert abs(sum(params["hmirror"] for params in drawn) - 1000) < 140


def test_random_parameters_are_plain_and_reproducible() -> None:
    rng = RandomAffine(angle=10.0, shift=0.2, scale=(0.5, 2.0), hmirror=0.5)
    assert draw(rng, 5) == draw(rng, 5)
    assert draw(rng, 5) != draw(rng, 5, seed=1)
    types = {key: type(value) for key, value in draw(rng, 1)[0].items()}
    assert types == {"angle": float, "shift": tuple, "scale": float, "hmirror": bool}
    assert draw(RandomAffine(), 1)[0] == {
        "angle": 0.0,
        "shift": (0.0, 0.0),
        "scale": 1.0,
        "hmirror": False,
    }


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"angle": -1.0}, "angle must be a finite number >= 0, not -1.0"),
        ({"shift": float("nan")}, "shift must be"),
        ({"scale": (2.0, 1.0)}, r"not \(2.0, 1.0\)"),
        ({"scale": (0.0, 1.0)}, r"not \(0.0, 1.0\)"),
        ({"hmirror": 1.5}, "hmirror must be a probability"),
    ],
)
def test_wrong_ranges_are_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RandomAffine(**arguments)
