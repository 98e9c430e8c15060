"""The affine map, against closed forms."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like.workers.geometry import (
    crop_parameters,
    decoding_size,
    invert_transform,
    make_transform,
    transform_points,
)
from tests.support.pictures import GEOMETRY, inverse


def test_angle_is_counter_clockwise_as_seen() -> None:
    matrix = make_transform((11, 11), (11, 11), angle=90)
    np.testing.assert_array_equal(transform_points(matrix, [[10, 5]]), [[5, 0]])
    matrix = make_transform((11, 11), (11, 11), angle=-30)
    expected = [[5 + 5 * math.cos(math.radians(30)), 5 + 5 * math.sin(math.radians(30))]]
    np.testing.assert_allclose(transform_points(matrix, [[10, 5]]), expected)


def test_scale_is_relative_to_the_fit() -> None:
    for mode, factor in (("shortest", 0.5), ("longest", 0.25)):
        matrix = make_transform((20, 40), (10, 10), scale=2.0, scale_mode=mode)
        np.testing.assert_allclose(matrix[:, :2], 2 * factor * np.eye(2))


def test_aspect_widens_the_shown_part() -> None:
    matrix = make_transform((40, 40), (20, 20), aspect=2.0, scale=2.0)
    edges = transform_points(invert_transform(matrix), [[-0.5, -0.5], [19.5, 19.5]])
    np.testing.assert_allclose(edges[1] - edges[0], [40.0, 10.0])


@pytest.mark.parametrize(("x", "left"), [(-1.0, 0.0), (0.0, 10.0), (1.0, 20.0), (0.5, 15.0)])
def test_shift_moves_the_shown_part_within_the_image(x: float, left: float) -> None:
    # 20 of 40 columns and 10 of 30 rows are shown.
    matrix = make_transform((30, 40), (10, 20), scale=2.0, shift=(x, -1.0))
    edges = transform_points(invert_transform(matrix), [[-0.5, -0.5], [19.5, 9.5]]) + 0.5
    np.testing.assert_allclose(edges, [[left, 0.0], [left + 20.0, 10.0]])


def test_shift_moves_a_smaller_image_to_the_opposite_edge() -> None:
    matrix = make_transform((10, 10), (20, 20), scale=0.5, shift=(1.0, -1.0))
    corners = transform_points(matrix, [[-0.5, -0.5], [9.5, 9.5]]) + 0.5
    np.testing.assert_allclose(corners, [[0.0, 10.0], [10.0, 20.0]])


def test_shear_is_the_gradient_of_edges() -> None:
    matrix = make_transform((11, 11), (11, 11), shear=(0.25, 0.0))
    (left, right) = transform_points(matrix, [[0, 5], [10, 5]])
    assert -(right - left)[1] / (right - left)[0] == pytest.approx(0.25)  # rises to the right
    matrix = make_transform((11, 11), (11, 11), shear=(0.0, 0.25))
    (bottom, top) = transform_points(matrix, [[5, 10], [5, 0]])
    assert (top - bottom)[0] / -(top - bottom)[1] == pytest.approx(0.25)  # leans to the right


SIZES = st.tuples(st.integers(1, 500), st.integers(1, 500))


@given(source=SIZES, target=SIZES, geometry=GEOMETRY)
def test_area_and_inverse(
    source: tuple[int, int], target: tuple[int, int], geometry: dict[str, Any]
) -> None:
    matrix = make_transform(source, target, **geometry)
    fits = [target[0] / source[0], target[1] / source[1]]
    factor = geometry["scale"] * (max if geometry["scale_mode"] == "shortest" else min)(fits)
    shear = 1 - geometry["shear"][0] * geometry["shear"][1]
    area = np.linalg.det(matrix[:, :2])
    mirrored = geometry["hmirror"] != geometry["vmirror"]
    assert area == pytest.approx((-1 if mirrored else 1) * factor**2 / shear, rel=1e-9)
    points = np.array([[0.0, 0.0], [source[1] - 1, source[0] - 1], [3.0, -4.0]])
    there = transform_points(matrix, points)
    np.testing.assert_allclose(transform_points(invert_transform(matrix), there), points, atol=1e-6)


@given(
    source=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    target=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    data=st.data(),
)
def test_crop_parameters_show_their_box(
    source: tuple[int, int], target: tuple[int, int], data: st.DataObject
) -> None:
    top, left = (data.draw(st.integers(0, extent - 1)) for extent in source)
    bottom = data.draw(st.integers(top + 1, source[0]))
    right = data.draw(st.integers(left + 1, source[1]))
    params = crop_parameters(source, target, (left, top, right, bottom))
    matrix = make_transform(source, target, **params)
    ends = transform_points(invert_transform(matrix), [[-0.5, -0.5], np.array(target[::-1]) - 0.5])
    np.testing.assert_allclose(ends + 0.5, [[left, top], [right, bottom]], atol=1e-6)


def test_unknown_mode_and_singular_shear() -> None:
    with pytest.raises(ValueError, match="scale_mode must be 'shortest' or 'longest', not 'fit'"):
        make_transform((4, 4), (4, 4), scale_mode="fit")
    with pytest.raises(ValueError, match=r"shear must have x \* y < 1, not \(2.0, 0.5\)"):
        make_transform((4, 4), (4, 4), shear=(2.0, 0.5))


def test_decoding_size_leaves_a_pixel_for_each_of_the_target() -> None:
    whole = make_transform((1500, 2000), (224, 224))
    assert decoding_size(inverse(whole), (1500, 2000)) == (224, 299)
    half = make_transform((1500, 2000), (224, 224), scale=2.0)
    assert decoding_size(inverse(half), (1500, 2000)) == (448, 598)
    assert decoding_size(inverse(make_transform((100, 100), (224, 224))), (100, 100)) == (100, 100)
    turned = make_transform((1500, 2000), (224, 224), angle=90.0, aspect=2.0)
    height, width = decoding_size(inverse(turned), (1500, 2000))
    assert (height, width) == (math.ceil(1500 * 224 / 3000), 598)


@pytest.mark.parametrize("angle", [90.0, 30.0, 0.0])
def test_decoding_size_along_each_axis_of_a_turned_and_stretched_image(angle: float) -> None:
    matrix = make_transform((1000, 1000), (100, 100), angle=angle, aspect=0.5)
    (left, right) = transform_points(matrix, [[0, 500], [1000, 500]])
    (top, bottom) = transform_points(matrix, [[500, 0], [500, 1000]])
    expected = np.linalg.norm(bottom - top), np.linalg.norm(right - left)
    np.testing.assert_allclose(decoding_size(inverse(matrix), (1000, 1000)), expected, atol=1.0)
    assert expected[0] != expected[1]
