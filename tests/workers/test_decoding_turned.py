"""Reduced decodes of JPEGs that have to be mirrored or turned: never shifted, never too small."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers.decoding import decode_image
from crumpets_like.workers.geometry import make_transform
from crumpets_like.workers.warping import warp

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

# Pillow's own turns, from a stored picture to the upright one, and back.
BACK = {1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}


def turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels as the metadata say, by Pillow."""
    image = Image.fromarray(pixels)
    image.getexif()[0x0112] = orientation
    return np.asarray(ImageOps.exif_transpose(image))


def jpeg(upright: NDArray[np.uint8], orientation: int) -> bytes:
    """Store an upright picture in another orientation."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    stored = Image.fromarray(turned(upright, BACK[orientation]))
    stored.save(stream, "JPEG", quality=98, exif=exif)
    return stream.getvalue()


def marked(height: int, width: int) -> NDArray[np.uint8]:
    """A picture with a soft dot a little off its middle."""
    rows, columns = np.mgrid[:height, :width]
    distance = (rows - height // 2) ** 2 + (columns - width // 2) ** 2
    dot = np.rint(255 * np.exp(-distance / 800)).astype(np.uint8)
    return np.dstack((dot, dot, dot))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(785, 737), (784, 737), (785, 736), (784, 736), (393, 604)])
def test_a_marker_stays_where_the_geometry_says(size: tuple[int, int], orientation: int) -> None:
    height, width = size
    target = (95, 95)
    matrix = make_transform(size, target)
    decoded = decode_image(jpeg(marked(*size), orientation), min_size=(100, 100))
    drawn = warp(decoded, target, matrix, source_size=size)[:, :, 0].astype(float)
    drawn[drawn < 8] = 0  # what JPEG leaves around the dot
    found = [
        (drawn.sum(axis=axis) * np.arange(side)).sum() / drawn.sum()
        for axis, side in ((0, 95), (1, 95))
    ]
    expected = matrix @ (width // 2, height // 2, 1)
    assert np.abs(found - expected).max() < 0.1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_sizes_without_a_rest_are_reduced(orientation: int) -> None:
    rows, columns = np.mgrid[0:240, 0:320]
    upright = np.dstack((rows, columns // 2, rows // 2 + columns // 4)).astype(np.uint8)
    for part in (2, 4, 8):
        least = (240 // part, 320 // part)
        decoded = decode_image(jpeg(upright, orientation), min_size=least)
        shrunk = np.asarray(Image.fromarray(upright).resize(least[::-1], Image.BOX))
        assert decoded.shape == shrunk.shape
        assert np.abs(decoded.astype(int) - shrunk).max() <= 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_pictures_are_never_smaller_than_asked(orientation: int) -> None:
    for size in ((427, 640), (100, 99), (44, 42), (1, 9)):
        data = jpeg(marked(*size), orientation)
        for least in ((1, 1), (size[0] // 2, 1), (1, size[1] // 2), size):
            decoded = decode_image(data, min_size=least)
            assert decoded.shape[0] >= least[0]
            assert decoded.shape[1] >= least[1]


def test_only_sides_that_change_their_direction_need_to_be_without_a_rest() -> None:
    upright = marked(101, 160)
    shapes = [
        decode_image(jpeg(upright, orientation), min_size=(1, 1)).shape[:2]
        for orientation in range(1, 9)
    ]
    reduced, whole = (13, 20), (101, 160)
    # 101 rows leave a rest: they are turned around by a half turn, for one.
    assert shapes == [reduced, reduced, whole, whole, reduced, reduced, whole, whole]
