"""The one affine map of an image.

A pixel's coordinates are those of its centre, which are integers, as in OpenCV: pixel (0, 0) covers
[-0.5, 0.5] along both axes. Sizes are (height, width), points are (x, y), y points down.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Affine = tuple[tuple[float, float, float], tuple[float, float, float]]
"""The two rows of a map."""

_EXACT_TURNS = {0.0: (1.0, 0.0), 90.0: (0.0, 1.0), 180.0: (-1.0, 0.0), 270.0: (0.0, -1.0)}


def make_transform(
    source_size: tuple[int, int],
    target_size: tuple[int, int],
    *,
    angle: float = 0.0,
    scale: float = 1.0,
    aspect: float = 1.0,
    shift: Sequence[float] = (0.0, 0.0),
    shear: Sequence[float] = (0.0, 0.0),
    hmirror: bool = False,
    vmirror: bool = False,
    scale_mode: str = "shortest",
) -> NDArray[np.float64]:
    """Return the map from pixels of an image to pixels of its target.

    The image is moved by `shift`, rotated by `angle`, scaled and mirrored, and sheared, in this
    order, all about the centre of what is shown. The order and the meaning of the parameters are
    those of crumpets 3.0.

    Parameters
    ----------
    source_size, target_size : (int, int)
        Height and width in pixels.
    angle : float
        Degrees, counter-clockwise as seen. (In a mirrored image, which is mirrored afterwards, it
        looks clockwise.)
    scale : float
        2.0 shows the image twice as large as `scale_mode` fits it.
    aspect : float
        The part of the image that is shown gets `aspect` times wider and 1 / `aspect` times higher.
    shift : (float, float)
        Along x and y. 1.0 shows the part of the image that is farthest right, or lowest, -1.0 that
        farthest left, or highest: it moves by the difference between the sizes of the image and the
        shown part (before rotation and shear). Where the shown part is larger than the image, the
        image ends up at the opposite edge of the target.
    shear : (float, float)
        Gradient that the shear gives to horizontal edges (rising to the right), and to vertical
        edges (leaning to the right).
    hmirror, vmirror : bool
        Mirrored left to right; upside down.
    scale_mode : {"shortest", "longest"}
        Which side of the image is fitted into the target: with the one that needs the larger
        factor the image covers the target, with the other all of the image is seen.

    Returns
    -------
    numpy.ndarray
        float64, shape (2, 3): ``matrix @ (x, y, 1)`` of the image is ``(x, y)`` of the target.

    Raises
    ------
    ValueError
        If `scale_mode` is unknown, or `shear` makes a line of the image.
    """
    if scale_mode not in ("shortest", "longest"):
        raise ValueError(f"scale_mode must be 'shortest' or 'longest', not {scale_mode!r}")
    if not shear[0] * shear[1] < 1.0:
        raise ValueError(f"shear must have x * y < 1, not {tuple(shear)}: it would show a line")
    geometry = {
        "angle": angle,
        "scale": scale,
        "aspect": aspect,
        "shift": shift,
        "shear": shear,
        "hmirror": hmirror,
        "vmirror": vmirror,
        "scale_mode": scale_mode,
    }
    return np.array(invert(target_to_source(source_size, target_size, geometry)))


def target_to_source(
    source_size: tuple[int, int], target_size: tuple[int, int], geometry: Mapping[str, Any]
) -> Affine:
    """Return the inverse of `make_transform`, of checked and complete arguments, as numbers.

    Plain numbers: between decoders, which empty the caches, numpy takes ten times as long for six.
    """
    (source_height, source_width), (height, width) = source_size, target_size
    aspect, shift, shear = geometry["aspect"], geometry["shift"], geometry["shear"]
    fit = min if geometry["scale_mode"] == "shortest" else max
    ratio = fit(source_height / height, source_width / width) / geometry["scale"]
    stretch_x, stretch_y = ratio * aspect, ratio / aspect
    centre_x = (source_width - 1 + abs(source_width - width * stretch_x) * shift[0]) / 2
    centre_y = (source_height - 1 + abs(source_height - height * stretch_y) * shift[1]) / 2
    if geometry["hmirror"]:
        stretch_x = -stretch_x
    if geometry["vmirror"]:
        stretch_y = -stretch_y
    xx, xy = stretch_x, stretch_x * shear[1]
    yx, yy = stretch_y * shear[0], stretch_y
    turn = geometry["angle"] % 360.0
    if turn:
        cosine, sine = _EXACT_TURNS.get(turn) or (
            math.cos(math.radians(turn)),
            math.sin(math.radians(turn)),
        )
        xx, xy, yx, yy = (
            cosine * xx - sine * yx,
            cosine * xy - sine * yy,
            sine * xx + cosine * yx,
            sine * xy + cosine * yy,
        )
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    return (
        (xx, xy, centre_x - xx * middle_x - xy * middle_y),
        (yx, yy, centre_y - yx * middle_x - yy * middle_y),
    )


def invert(affine: Affine) -> Affine:
    """Return the inverse of a map."""
    (xx, xy, x), (yx, yy, y) = affine
    determinant = xx * yy - xy * yx
    xx, xy, yx, yy = yy / determinant, -xy / determinant, -yx / determinant, xx / determinant
    return (xx, xy, -xx * x - xy * y), (yx, yy, -yx * x - yy * y)


def invert_transform(matrix: ArrayLike) -> NDArray[np.float64]:
    """Return the inverse of a map of shape (2, 3)."""
    (xx, xy, x), (yx, yy, y) = np.asarray(matrix, np.float64).tolist()
    return np.array(invert(((xx, xy, x), (yx, yy, y))))


def transform_points(matrix: NDArray[np.float64], points: ArrayLike) -> NDArray[np.float64]:
    """Map points of the image to the target.

    Parameters
    ----------
    matrix : numpy.ndarray
        Shape (2, 3), from `make_transform`.
    points : array_like
        Shape (n, 2): (x, y).

    Returns
    -------
    numpy.ndarray
        float64, shape (n, 2).
    """
    points = np.asarray(points, np.float64).reshape(-1, 2)
    return points @ matrix[:, :2].T + matrix[:, 2]


def crop_parameters(
    source_size: tuple[int, int],
    target_size: tuple[int, int],
    box: tuple[float, float, float, float],
) -> dict[str, Any]:
    """Return the parameters of `make_transform` that show one box of the image in all the target.

    Parameters
    ----------
    source_size, target_size : (int, int)
        Height and width in pixels.
    box : (float, float, float, float)
        Left, top, right and bottom edge of the box, within (0, 0, width, height) of the image.

    Returns
    -------
    dict
        `scale`, `aspect`, `shift` and `scale_mode`.
    """
    (source_height, source_width), (height, width) = source_size, target_size
    left, top, right, bottom = box
    stretch_x, stretch_y = (right - left) / width, (bottom - top) / height
    fitted = min(source_height / height, source_width / width)

    def shift(low: float, high: float, extent: int) -> float:
        slack = extent - (high - low)
        return min(1.0, max(-1.0, (low + high - extent) / slack)) if slack > 1e-9 * extent else 0.0

    return {
        "scale": fitted / math.sqrt(stretch_x * stretch_y),
        "aspect": math.sqrt(stretch_x / stretch_y),
        "shift": (shift(left, right, source_width), shift(top, bottom, source_height)),
        "scale_mode": "shortest",
    }


def decoding_size(inverse: Affine, source_size: tuple[int, int]) -> tuple[int, int]:
    """Return the least size of the whole image with a pixel for each pixel of the target.

    Parameters
    ----------
    inverse : Affine
        From `target_to_source`.
    source_size : (int, int)
        Height and width of the image.

    Returns
    -------
    (int, int)
        Height and width, never above `source_size`.
    """
    (xx, xy, _), (yx, yy, _) = inverse
    height, width = source_size
    area = abs(xx * yy - xy * yx)
    # Target pixels along one pixel of the image.
    across, down = math.hypot(yy, yx) / area, math.hypot(xx, xy) / area
    return (
        min(height, math.ceil(height * down - 1e-6)),
        min(width, math.ceil(width * across - 1e-6)),
    )
