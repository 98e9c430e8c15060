"""Boxes, points, masks and maps lie where they belong, in colors that tell them apart."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from crumpets_like.preview.drawing import COLORS, blend_map, blend_mask, draw_boxes, draw_points

GREY = (100, 100, 100)


def blank(width: int = 60, height: int = 40) -> Image.Image:
    return Image.new("RGB", (width, height), GREY)


def changed(picture: Image.Image) -> tuple[int, int, int, int]:
    """Edges (x1, y1, x2, y2) of what is drawn."""
    rows, columns = np.nonzero((np.asarray(picture) != GREY).any(axis=2))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_a_box_has_its_edges_and_the_color_of_its_class(factor: float) -> None:
    picture = blank(120, 80)
    draw_boxes(picture, [[10, 8, 50, 36]], [3], factor)
    assert changed(picture) == tuple(round(factor * x) for x in (10, 8, 50, 36))
    corner = round(50 * factor) - 1, round(36 * factor) - 1
    assert picture.getpixel(corner) == COLORS[3]
    assert picture.getpixel((round(40 * factor), round(30 * factor))) == GREY


def test_a_box_of_the_whole_image_is_seen_on_all_sides() -> None:
    picture = blank()
    draw_boxes(picture, [[0, 0, 60, 40]], [0], 1.0)
    pixels = np.asarray(picture)
    for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (edge != GREY).any(axis=1).all()


def test_boxes_of_no_area_and_none_at_all() -> None:
    picture = blank()
    draw_boxes(picture, np.empty((0, 4)), [], 1.0)
    assert picture.getcolors() == [(2400, GREY)]
    draw_boxes(picture, [[5, 5, 5, 5]], [1], 1.0)
    assert picture.getpixel((5, 5)) == COLORS[1]


@pytest.mark.parametrize(("factor", "center"), [(1.0, (20.0, 10.0)), (5.0, (102.0, 52.0))])
def test_a_point_is_where_the_pixel_is(factor: float, center: tuple[float, float]) -> None:
    picture = blank(120, 80)
    draw_points(picture, [[20, 10]], factor)
    x1, y1, x2, y2 = changed(picture)
    assert ((x1 + x2 - 1) / 2, (y1 + y2 - 1) / 2) == pytest.approx(center, abs=0.5)
    assert picture.getpixel((round(center[0]), round(center[1]))) == COLORS[0]


def test_points_have_the_color_of_their_number_and_nan_is_left_out() -> None:
    picture = blank()
    draw_points(picture, np.array([[10, 10], [np.nan, 3], [30, 20]]), 1.0, [0, 1, 12])
    assert picture.getpixel((10, 10)) == COLORS[0]
    assert picture.getpixel((30, 20)) == COLORS[2]
    assert changed(picture) == (7, 7, 34, 24)


def test_a_mask_shows_its_classes_and_leaves_0_and_255_clear() -> None:
    mask = np.zeros((20, 30), np.uint8)
    mask[:10, :15], mask[10:, :15], mask[:10, 15:] = 1, 2, 255
    pixels = np.asarray(blend_mask(blank(), mask)).astype(int)
    assert (pixels[:, 30:] == GREY).all()
    for rows, number in ((slice(0, 20), 0), (slice(20, 40), 1)):
        expected = np.broadcast_to((np.array(COLORS[number]) + GREY) / 2, (20, 30, 3))
        np.testing.assert_allclose(pixels[rows, :30], expected, atol=2)


def test_a_map_glows_where_it_is_high() -> None:
    values = np.zeros((40, 60), np.float32)
    values[10:20, 30:40] = 0.01
    pixels = np.asarray(blend_map(blank(), values))
    assert (pixels[30:, :] == GREY).all()
    assert pixels[15, 35].min() > 200
    assert (np.asarray(blend_map(blank(), np.zeros((4, 6), np.float32))) == GREY).all()
