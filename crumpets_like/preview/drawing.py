"""What belongs to an image, drawn over its picture.

A picture may be smaller or larger than the image: `factor` is its pixels per pixel of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

__all__ = ["COLORS", "blend_map", "blend_mask", "draw_boxes", "draw_points", "inset"]

COLORS = (
    *((230, 60, 50), (40, 120, 220), (250, 180, 20), (40, 170, 90), (150, 80, 200)),
    *((20, 185, 195), (245, 120, 30), (225, 90, 165), (130, 150, 30), (120, 90, 60)),
)
"""Of classes, and of keypoints: number n has color n modulo 10."""

_MASK = 0.5  # how much of a mask's color is seen
_DOT = 3.0  # radius of a point


def draw_boxes(
    picture: Image.Image, boxes: ArrayLike, classes: Sequence[Any], factor: float
) -> None:
    """Draw boxes, with the number of their class in the corner.

    Parameters
    ----------
    picture : PIL.Image.Image
        Changed.
    boxes : array_like, shape (n, 4)
        Edges (x1, y1, x2, y2); (0, 0, W, H) is the whole image.
    classes : sequence, length n
        Of int.
    factor : float
        Size of the picture relative to the image.
    """
    draw = ImageDraw.Draw(picture)
    font = ImageFont.load_default(10)
    for box, number in zip(np.asarray(boxes, np.float64).reshape(-1, 4), classes, strict=True):
        x1, y1, x2, y2 = np.rint(box * factor).astype(int).tolist()
        color = COLORS[int(number) % len(COLORS)]
        draw.rectangle((x1, y1, max(x2 - 1, x1), max(y2 - 1, y1)), outline=color, width=2)
        text = str(int(number))
        label = (x1, y1, x1 + int(draw.textlength(text, font)) + 5, y1 + 12)
        draw.rectangle(label, fill=color)
        draw.text((x1 + 3, y1), text, (255, 255, 255), font)


def draw_points(
    picture: Image.Image, points: ArrayLike, factor: float, numbers: Sequence[int] | None = None
) -> None:
    """Draw points as dots with a light rim.

    Parameters
    ----------
    picture : PIL.Image.Image
        Changed.
    points : array_like, shape (n, 2)
        (x, y) in pixels of the image; (0, 0) is the centre of its first pixel. Those that are not
        finite are left out.
    factor : float
        Size of the picture relative to the image.
    numbers : sequence of int, optional
        Of each point, for its color. Default: the first color for all.
    """
    draw = ImageDraw.Draw(picture)
    for row, point in enumerate(np.asarray(points, np.float64).reshape(-1, 2)):
        if not np.isfinite(point).all():
            continue
        x, y = ((point + 0.5) * factor - 0.5).tolist()
        color = COLORS[numbers[row] % len(COLORS) if numbers is not None else 0]
        draw.ellipse((x - _DOT, y - _DOT, x + _DOT, y + _DOT), color, (255, 255, 255))


def blend_mask(picture: Image.Image, mask: NDArray[Any]) -> Image.Image:
    """Return the picture under the colors of a mask's classes.

    Parameters
    ----------
    picture : PIL.Image.Image
    mask : ndarray of int, shape (h, w)
        Class of each pixel, resized to the picture. 0 and 255 (commonly background, and what is
        ignored) are left clear.
    """
    numbers = np.asarray(mask).astype(np.int64)
    shown = (numbers != 0) & (numbers != 255)
    colors = np.array(COLORS, np.uint8)[(numbers - 1) % len(COLORS)]
    layer = Image.fromarray(colors).resize(picture.size, Image.Resampling.NEAREST)
    alpha = Image.fromarray(np.where(shown, round(255 * _MASK), 0).astype(np.uint8))
    alpha = alpha.resize(picture.size, Image.Resampling.NEAREST)
    return Image.composite(layer, picture, alpha)


def blend_map(picture: Image.Image, values: NDArray[Any]) -> Image.Image:
    """Return the picture with a map glowing over it, black and clear where it is 0.

    Parameters
    ----------
    picture : PIL.Image.Image
    values : ndarray of float, shape (h, w)
        Not negative; the largest is the brightest.
    """
    top = float(values.max(initial=0.0))
    heat = np.clip(np.asarray(values, np.float32) / (top or 1.0), 0.0, 1.0)
    colors = np.stack([np.minimum(255, 765 * heat - offset) for offset in (0, 255, 510)], axis=-1)
    layer = Image.fromarray(np.clip(colors, 0, 255).astype(np.uint8))
    alpha = Image.fromarray(np.rint(255 * np.minimum(0.75, 1.5 * heat)).astype(np.uint8))
    layer, alpha = (x.resize(picture.size, Image.Resampling.BILINEAR) for x in (layer, alpha))
    return Image.composite(layer, picture, alpha)


def inset(picture: Image.Image, other: Image.Image) -> Image.Image:
    """Return the picture with another one, smaller, in its lower right corner."""
    framed = picture.copy()
    size = (max(1, picture.width * 2 // 5), max(1, picture.height * 2 // 5))
    small = ImageOps.expand(ImageOps.contain(other, size), 1, (255, 255, 255))
    framed.paste(small, (picture.width - small.width, picture.height - small.height))
    return framed
