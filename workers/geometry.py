"""The one affine map of an image, and the warp that draws the image through it.

A pixel's coordinates are those of its centre, which are integers, as in OpenCV: pixel (0, 0) covers
[-0.5, 0.5] along both axes. Sizes are (height, width), points are (x, y), y points down.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_EXACT_TURNS = {0.0: (1.0, 0.0), 90.0: (0.0, 1.0), 180.0: (-1.0, 0.0), 270.0: (0.0, -1.0)}
_TAPS = {"nearest": 1, "linear": 1, "cubic": 2, "lanczos4": 4}
_SNAP = 1 / 32  # of a target pixel: a crop so near to whole pixels is taken as whole


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
    (source_height, source_width), (height, width) = source_size, target_size
    if scale_mode not in ("shortest", "longest"):
        raise ValueError(f"scale_mode must be 'shortest' or 'longest', not {scale_mode!r}")
    fit = min if scale_mode == "shortest" else max
    ratio = fit(source_height / height, source_width / width) / scale
    shown_width, shown_height = width * ratio * aspect, height * ratio / aspect
    # What follows maps the target to the image.
    stretch_x = -ratio * aspect if hmirror else ratio * aspect
    stretch_y = -ratio / aspect if vmirror else ratio / aspect
    if not shear[0] * shear[1] < 1.0:
        raise ValueError(f"shear must have x * y < 1, not {tuple(shear)}: it would show a line")
    turn = angle % 360.0
    cosine, sine = _EXACT_TURNS.get(turn) or (
        math.cos(math.radians(turn)),
        math.sin(math.radians(turn)),
    )
    xx, xy = stretch_x, stretch_x * shear[1]
    yx, yy = stretch_y * shear[0], stretch_y
    xx, xy, yx, yy = (
        cosine * xx - sine * yx,
        cosine * xy - sine * yy,
        sine * xx + cosine * yx,
        sine * xy + cosine * yy,
    )
    centre_x = (source_width - 1 + abs(source_width - shown_width) * shift[0]) / 2
    centre_y = (source_height - 1 + abs(source_height - shown_height) * shift[1]) / 2
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    return invert_transform(
        [
            [xx, xy, centre_x - xx * middle_x - xy * middle_y],
            [yx, yy, centre_y - yx * middle_x - yy * middle_y],
        ]
    )


def invert_transform(matrix: ArrayLike) -> NDArray[np.float64]:
    """Return the inverse of a map of shape (2, 3)."""
    (xx, xy, x), (yx, yy, y) = np.asarray(matrix, np.float64).tolist()
    determinant = xx * yy - xy * yx
    xx, xy, yx, yy = (
        yy / determinant,
        -xy / determinant,
        -yx / determinant,
        xx / determinant,
    )
    return np.array([[xx, xy, -xx * x - xy * y], [yx, yy, -yx * x - yy * y]])


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


def decoding_size(matrix: NDArray[np.float64], source_size: tuple[int, int]) -> tuple[int, int]:
    """Return the least size of the whole image with a pixel for each pixel of the target.

    Parameters
    ----------
    matrix : numpy.ndarray
        Shape (2, 3), from `make_transform`.
    source_size : (int, int)
        Height and width of the image.

    Returns
    -------
    (int, int)
        Height and width, never above `source_size`.
    """
    height, width = source_size
    across = math.hypot(matrix[0, 0], matrix[1, 0])
    down = math.hypot(matrix[0, 1], matrix[1, 1])
    return (
        min(height, math.ceil(height * down - 1e-6)),
        min(width, math.ceil(width * across - 1e-6)),
    )


def warp(
    image: NDArray[np.uint8],
    out_size: tuple[int, int],
    matrix: NDArray[np.float64],
    *,
    source_size: tuple[int, int] | None = None,
    interp_method: str = "linear",
    supersampling: int = 0,
    background: float | Sequence[float] = 0.0,
) -> NDArray[np.uint8]:
    """Draw an image through an affine map.

    A pixel of the target whose centre lies outside of the image gets the background; the image
    reaches to the edges of its outer pixels, and near them its outermost pixels are continued.

    Where the image shrinks, target pixels are averages: of the image's pixels that they cover,
    exactly so for upright crops of whole pixels, which are most of all; otherwise the shown part is
    first averaged over blocks of n by m whole pixels, with what remains of the factor (less than 2)
    left to 2 by 2 samples per target pixel. A `supersampling` above 0 takes that many samples along
    each axis instead. No temporary is larger than the shown part reduced in this way.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C): all of the image, or a reduced decode of it.
    out_size : (int, int)
        Height and width of the target.
    matrix : numpy.ndarray
        Shape (2, 3), from `make_transform`.
    source_size : (int, int), optional
        Height and width of the image that `matrix` is for, if `image` is a reduced one.
    interp_method : {"linear", "nearest", "cubic", "lanczos4", "area"}
        Between pixels. "area" is "linear" where the image is enlarged. "nearest" takes the
        image's own values, never averages, unless `supersampling` is above 1.
    supersampling : int
        Samples along each axis of a target pixel; 0 chooses, 1 skips pixels.
    background : float or sequence of float
        One value, or one per channel, in [0, 255].

    Returns
    -------
    numpy.ndarray
        uint8, shape (height, width, C).
    """
    method = "linear" if interp_method == "area" else interp_method
    inverse = invert_transform(matrix)
    size = image.shape[0], image.shape[1]
    extents = float(size[0]), float(size[1])
    if source_size is not None and tuple(source_size) != size:
        down, across = _decode_factors(source_size, size)
        inverse = _in_reduced(inverse, down, across)
        extents = source_size[0] * down, source_size[1] * across
    drawn = None
    if supersampling == 0 and method != "nearest":
        drawn = _resize_crop(image, out_size, inverse, method)
    if drawn is None:
        drawn = _sample(image, out_size, inverse, method, supersampling)
        _fill_outside(drawn, inverse, extents, background)
    return drawn


def _decode_factors(size: tuple[int, int], reduced: tuple[int, int]) -> tuple[float, float]:
    """Return the factors of height and width that a reduced decode was made with.

    A JPEG is reduced to so many eighths, and its size rounded up: the last pixels stick out.
    """
    for eighths in range(1, 8):
        if all(-(-full * eighths // 8) == part for full, part in zip(size, reduced, strict=True)):
            return eighths / 8, eighths / 8
    return reduced[0] / size[0], reduced[1] / size[1]


def _in_reduced(inverse: NDArray[np.float64], down: float, across: float) -> NDArray[np.float64]:
    """Turn a map into an image into one into the same image, reduced by factors below 1."""
    factors = np.array([[across], [down]])
    result: NDArray[np.float64] = inverse * factors
    result[:, 2] += (factors[:, 0] - 1.0) / 2
    return result


def _resize_crop(
    image: NDArray[np.uint8],
    out_size: tuple[int, int],
    inverse: NDArray[np.float64],
    method: str,
) -> NDArray[np.uint8] | None:
    """Draw an upright crop of whole pixels; None if it is none, or not within the image.

    OpenCV resizes several times as fast as it warps, and averages exactly.
    """
    import cv2

    (xx, xy, x), (yx, yy, y) = inverse.tolist()
    height, width = out_size
    if abs(xy) * height > _SNAP * abs(xx) or abs(yx) * width > _SNAP * abs(yy):
        return None
    columns = _whole_pixels(xx, x, width, image.shape[1])
    rows = _whole_pixels(yy, y, height, image.shape[0])
    if columns is None or rows is None:
        return None
    crop = image[rows[0] : rows[1], columns[0] : columns[1]]
    drawn = _resize(crop, out_size, method)
    if xx < 0.0 or yy < 0.0:
        drawn = cv2.flip(drawn, -1 if xx < 0.0 and yy < 0.0 else int(xx < 0.0))
    return _with_channels(drawn)


def _whole_pixels(
    stretch: float, offset: float, count: int, extent: int
) -> tuple[int, int] | None:
    """Return where `count` target pixels begin and end along one axis of the image."""
    first = stretch * -0.5 + offset + 0.5
    low, high = sorted((first, first + stretch * count))
    begin, end = round(low), round(high)
    if not 0 <= begin < end <= extent:
        return None
    near = max(abs(low - begin), abs(high - end)) <= _SNAP * abs(stretch)
    return (begin, end) if near else None


def _resize(image: NDArray[np.uint8], size: tuple[int, int], method: str) -> NDArray[Any]:
    """Average along the axes that shrink, then interpolate along those that grow."""
    import cv2

    smaller = min(image.shape[0], size[0]), min(image.shape[1], size[1])
    drawn: NDArray[Any] = image
    if smaller != image.shape[:2]:
        drawn = cv2.resize(drawn, smaller[::-1], interpolation=cv2.INTER_AREA)
    if smaller != size:
        drawn = cv2.resize(drawn, size[::-1], interpolation=_flag(method))
    return drawn.copy() if drawn is image else drawn


def _sample(
    image: NDArray[np.uint8],
    out_size: tuple[int, int],
    inverse: NDArray[np.float64],
    method: str,
    supersampling: int,
) -> NDArray[np.uint8]:
    """Draw any affine map, with the image's outermost pixels continued."""
    import cv2

    height, width = out_size
    region, inverse = _shown_part(image, out_size, inverse, _TAPS[method])
    if supersampling == 0:
        supersampling = 1
        if method != "nearest":
            region, inverse, left = _average_blocks(region, inverse)
            supersampling = 2 if left > 1.0 + 1e-6 else 1
    if supersampling > 1:
        inverse = inverse.copy()
        inverse[:, 2] += inverse[:, :2].sum(axis=1) * (0.5 / supersampling - 0.5)
        inverse[:, :2] /= supersampling
    drawn = cv2.warpAffine(
        region,
        inverse,
        (width * supersampling, height * supersampling),
        flags=_flag(method) | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    if supersampling > 1:
        drawn = cv2.resize(drawn, (width, height), interpolation=cv2.INTER_AREA)
    return _with_channels(drawn)


def _shown_part(
    image: NDArray[np.uint8], out_size: tuple[int, int], inverse: NDArray[np.float64], taps: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Cut off what cannot be seen, at least one pixel stays; also the map into what is left."""
    height, width = out_size
    ends = np.array([[-0.5, width - 0.5, -0.5, width - 0.5], [-0.5, -0.5, height - 0.5, height - 0.5]])
    corners = inverse[:, :2] @ ends + inverse[:, 2:]
    extents = image.shape[1], image.shape[0]
    (left, right), (top, bottom) = (
        (
            min(extent - 1, max(0, math.floor(along.min()) - taps)),
            max(1, min(extent, math.ceil(along.max()) + taps + 1)),
        )
        for along, extent in zip(corners, extents, strict=True)
    )
    moved = inverse.copy()
    moved[:, 2] -= (left, top)
    return image[top:bottom, left:right], moved


def _average_blocks(
    region: NDArray[np.uint8], inverse: NDArray[np.float64]
) -> tuple[NDArray[np.uint8], NDArray[np.float64], float]:
    """Reduce by whole factors; also the map into the result, and by what it still shrinks."""
    import cv2

    shrinks = np.hypot(inverse[:, 0], inverse[:, 1])  # image pixels per target pixel, x and y
    factors = np.maximum(1, (shrinks + 1e-6).astype(np.int64))
    if factors.max() == 1:
        return region, inverse, float(shrinks.max())
    rows, columns = region.shape[:2]
    # Rounded up, so that the blocks at the end are a little smaller than the others.
    size = -(-rows // int(factors[1])), -(-columns // int(factors[0]))
    reduced = cv2.resize(region, size[::-1], interpolation=cv2.INTER_AREA)
    inverse = _in_reduced(inverse, size[0] / rows, size[1] / columns)
    return _with_channels(reduced), inverse, float((shrinks / factors).max())


def _fill_outside(
    drawn: NDArray[np.uint8],
    inverse: NDArray[np.float64],
    extents: tuple[float, float],
    background: float | Sequence[float],
) -> None:
    """Give the background to pixels whose centre is outside of an image of `extents`."""
    height, width = drawn.shape[:2]
    ends = np.array([[0, width - 1, 0, width - 1], [0, 0, height - 1, height - 1]])
    limits = np.array([[extents[1] - 0.5], [extents[0] - 0.5]]) + 1e-6
    corners = inverse[:, :2] @ ends + inverse[:, 2:]
    if ((corners >= -0.5 - 1e-6) & (corners <= limits)).all():
        return
    columns, rows = np.arange(width), np.arange(height)[:, np.newaxis]
    outside = np.zeros((height, width), np.bool_)
    for (across, down, offset), (limit,) in zip(inverse.tolist(), limits.tolist(), strict=True):
        place = across * columns + (down * rows + offset)
        outside |= (place < -0.5 - 1e-6) | (place > limit)
    drawn[outside] = np.rint(background).astype(np.uint8)


def _flag(method: str) -> int:
    import cv2

    return {
        "nearest": cv2.INTER_NEAREST,
        "linear": cv2.INTER_LINEAR,
        "cubic": cv2.INTER_CUBIC,
        "lanczos4": cv2.INTER_LANCZOS4,
    }[method]


def _with_channels(image: Any) -> NDArray[np.uint8]:
    """Give back the last axis, which OpenCV drops for one channel."""
    return np.asarray(image[:, :, np.newaxis] if image.ndim == 2 else image, np.uint8)
