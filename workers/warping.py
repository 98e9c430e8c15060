"""The warp that draws an image through an affine map, with anti-aliasing."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.geometry import Affine, invert

_TAPS = {"nearest": 1, "linear": 1, "cubic": 2, "lanczos4": 4, "area": 1}
_SNAP = 1 / 32  # of a target pixel: a crop so near to whole pixels is taken as whole
_LEAST_VARIANCE = 0.2  # that a filter is worth its time for: a factor of 1.5
_LONGEST_LANCZOS = 2**15 - 2  # pixels that OpenCV can tell apart


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

    Where the image shrinks, the shown part is smoothed first: by halving it, in averages of 2 x 2
    pixels, until less than a factor of 2 is left along one axis, and, from a factor of 1.5 on, by a
    small filter. Its variance brings that of the whole to what a triangle of twice the width of a
    target pixel has (the filter of Pillow, and of torchvision with ``antialias=True``); linear
    interpolation itself averages over 1.4 pixels, and is enough up to a factor of 1.5. A
    `supersampling` above 0 takes so many samples along each axis of a target pixel instead.

    Temporaries have the size of the shown part or of the target, never of the whole image. In
    colour, a fourth channel can make one of them 4/3 of that: OpenCV warps four channels faster
    than three. With `supersampling` the target is first drawn at so many times its height and
    width.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C): all of the image, or a reduced decode of it.
    out_size : (int, int)
        Height and width of the target.
    matrix : numpy.ndarray
        Shape (2, 3), from `geometry.make_transform`.
    source_size : (int, int), optional
        Height and width of the image that `matrix` is for, if `image` is a reduced one.
    interp_method : {"linear", "nearest", "cubic", "lanczos4", "area"}
        Between pixels. "area" gives exact averages of upright crops of whole pixels, for three to
        ten times the time, and is "linear" otherwise. "nearest" takes the image's own values and
        is never smoothed. "cubic" and "lanczos4" overshoot: next to an edge they are darker and
        brighter than both of its sides, as far as 0 and 255 allow.
    supersampling : int
        Samples along each axis of a target pixel; 0 chooses, 1 skips pixels.
    background : float or sequence of float
        One value, or one per channel, in [0, 255].

    Returns
    -------
    numpy.ndarray
        uint8, shape (height, width, C); never a view of `image`.
    """
    (xx, xy, x), (yx, yy, y) = np.asarray(matrix, np.float64).tolist()
    return warp_inverse(
        image,
        out_size,
        invert(((xx, xy, x), (yx, yy, y))),
        (image.shape[0], image.shape[1])
        if source_size is None
        else (source_size[0], source_size[1]),
        interp_method,
        supersampling,
        background,
    )


def warp_inverse(
    image: NDArray[np.uint8],
    out_size: tuple[int, int],
    inverse: Affine,
    source_size: tuple[int, int],
    method: str,
    supersampling: int,
    background: float | Sequence[float],
) -> NDArray[np.uint8]:
    """Draw an image as `warp` does, by the inverse map: see `geometry.target_to_source`."""
    size = image.shape[0], image.shape[1]
    extents = float(size[0]), float(size[1])
    across = down = 1.0
    if source_size != size:
        down, across = _decode_factors(source_size, size)
        inverse = _in_reduced(inverse, down, across)
        extents = source_size[0] * down, source_size[1] * across
    shown, shown_inverse = _shown_part(image, out_size, inverse, _TAPS[method])
    drawn = None
    if supersampling > 0 or method == "nearest":
        drawn = _sample(shown, out_size, shown_inverse, method, max(1, supersampling))
    elif method == "area":
        drawn = _resize_crop(shown, out_size, shown_inverse, method)
    if drawn is None:
        shown, shown_inverse = _smooth(shown, shown_inverse, across, down)
        drawn = _resize_crop(shown, out_size, shown_inverse, method)
        if drawn is not None:
            return drawn
        drawn = _sample(shown, out_size, shown_inverse, method, 1)
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


def _in_reduced(inverse: Affine, down: float, across: float) -> Affine:
    """Turn a map into an image into one into the same image, reduced by factors below 1."""
    (xx, xy, x), (yx, yy, y) = inverse
    return (
        (xx * across, xy * across, x * across + (across - 1.0) / 2),
        (yx * down, yy * down, y * down + (down - 1.0) / 2),
    )


def _shrinks(inverse: Affine) -> tuple[float, float]:
    """Image pixels per target pixel along the image's x axis and y axis."""
    (xx, xy, _), (yx, yy, _) = inverse
    return math.hypot(xx, xy), math.hypot(yx, yy)


def _shown_part(
    image: NDArray[np.uint8], out_size: tuple[int, int], inverse: Affine, taps: int
) -> tuple[NDArray[np.uint8], Affine]:
    """Cut off what cannot be seen, at least one pixel stays; also the map into what is left."""
    (xx, xy, x), (yx, yy, y) = inverse
    shrink_x, shrink_y = _shrinks(inverse)
    columns = _seen(xx, xy, x, out_size, (taps + 2) * max(1.0, shrink_x), image.shape[1])
    rows = _seen(yx, yy, y, out_size, (taps + 2) * max(1.0, shrink_y), image.shape[0])
    return image[rows, columns], ((xx, xy, x - columns.start), (yx, yy, y - rows.start))


def _seen(
    across: float,
    down: float,
    offset: float,
    out_size: tuple[int, int],
    around: float,
    extent: int,
) -> slice:
    """Return what is seen along one axis of the image, with so many pixels on either side."""
    height, width = out_size
    middle = across * (width - 1) / 2 + down * (height - 1) / 2 + offset
    reach = (abs(across) * width + abs(down) * height) / 2 + around
    first = min(extent - 1, max(0, math.floor(middle - reach)))
    return slice(first, max(first + 1, min(extent, math.ceil(middle + reach) + 1)))


def _smooth(
    image: NDArray[np.uint8], inverse: Affine, across: float, down: float
) -> tuple[NDArray[np.uint8], Affine]:
    """Reduce and filter, so that one sample per target pixel is enough; also the map into that."""
    import cv2

    shrink_x, shrink_y = _shrinks(inverse)
    while min(shrink_x, shrink_y) >= 2.0:
        image, inverse = _halve(image), _in_reduced(inverse, 0.5, 0.5)
        across, down, shrink_x, shrink_y = across / 2, down / 2, shrink_x / 2, shrink_y / 2
    if max(shrink_x, shrink_y) >= 4.0:  # one axis much more than the other
        columns = -(-image.shape[1] // int(max(1.0, shrink_x / 2)))
        rows = -(-image.shape[0] // int(max(1.0, shrink_y / 2)))
        part_x, part_y = columns / image.shape[1], rows / image.shape[0]
        image = _with_channels(cv2.resize(image, (columns, rows), interpolation=cv2.INTER_AREA))
        inverse = _in_reduced(inverse, part_y, part_x)
        across, down = across * part_x, down * part_y
        shrink_x, shrink_y = _shrinks(inverse)
    # A single pixel is the average of all, however far a target pixel reaches beyond it.
    x = _variance(shrink_x, across) if image.shape[1] > 1 else 0.0
    y = _variance(shrink_y, down) if image.shape[0] > 1 else 0.0
    if x > _LEAST_VARIANCE or y > _LEAST_VARIANCE:
        filtered = cv2.sepFilter2D(
            image, -1, _kernel(x), _kernel(y), borderType=cv2.BORDER_REPLICATE
        )
        image = _with_channels(filtered)
    return image, inverse


def _halve(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average blocks of 2 x 2 pixels, and of 1 x 2 and 2 x 1 where they are left over at the end.

    OpenCV is quick at this for whole blocks alone.
    """
    import cv2

    rows, columns = image.shape[0] // 2, image.shape[1] // 2
    odd_row, odd_column = image.shape[0] % 2, image.shape[1] % 2
    half = np.empty((rows + odd_row, columns + odd_column, image.shape[2]), np.uint8)
    end = slice(-1, None)
    for down, height, into_rows in ((slice(2 * rows), rows, slice(rows)), (end, odd_row, end)):
        for right, width, into in (
            (slice(2 * columns), columns, slice(columns)),
            (end, odd_column, end),
        ):
            if height and width:
                part = cv2.resize(image[down, right], (width, height), interpolation=cv2.INTER_AREA)
                half[into_rows, into] = part.reshape(height, width, -1)
    return half


def _variance(shrink: float, reduced: float) -> float:
    """Return the variance that a filter lacks, in squared pixels of an image `reduced` before.

    A triangle from -s to s has the variance s^2 / 6. Averages of n pixels have (1 - 1 / n^2) / 12
    of a block, and linear interpolation between those has 1 / 6.
    """
    return (shrink**2 - 1.0) / 6 - (1.0 - reduced**2) / 12


def _kernel(variance: float) -> NDArray[np.float32]:
    """Return a symmetric filter of the given variance, in squared pixels; 0 if it is negative."""
    return _weights(max(0, round(128 * variance)))


@lru_cache(maxsize=256)
def _weights(half: int) -> NDArray[np.float32]:
    """Return a filter with a variance of `half` / 128.

    Its weights are whole 256ths, as OpenCV takes them for bytes: their sum must stay 1. There are
    never fewer than three: OpenCV takes twice as long for one by three.
    """
    import cv2

    if half <= 64:
        weights = np.array([half, 256 - 2 * half, half])
    else:
        sigma = math.sqrt(half / 128)
        weights = np.rint(256 * cv2.getGaussianKernel(2 * math.ceil(3 * sigma) + 1, sigma).ravel())
        weights[len(weights) // 2] += 256 - weights.sum()
    return (weights / 256).astype(np.float32)


def _resize_crop(
    image: NDArray[np.uint8], out_size: tuple[int, int], inverse: Affine, method: str
) -> NDArray[np.uint8] | None:
    """Draw an upright crop of whole pixels; None if it is none, or not within the image.

    OpenCV resizes faster than it warps.
    """
    import cv2

    (xx, xy, x), (yx, yy, y) = inverse
    height, width = out_size
    if abs(xy) * height > _SNAP * abs(xx) or abs(yx) * width > _SNAP * abs(yy):
        return None
    columns = _whole_pixels(xx, x, width, image.shape[1])
    rows = _whole_pixels(yy, y, height, image.shape[0])
    if columns is None or rows is None:
        return None
    crop: NDArray[Any] = image[rows, columns]
    drawn = crop
    if method == "area":
        smaller = min(crop.shape[0], height), min(crop.shape[1], width)
        if smaller != crop.shape[:2]:
            drawn = cv2.resize(drawn, smaller[::-1], interpolation=cv2.INTER_AREA)
    if drawn.shape[:2] != out_size:
        drawn = cv2.resize(drawn, (width, height), interpolation=_flag(method))
    if xx < 0.0 or yy < 0.0:
        drawn = cv2.flip(drawn, -1 if xx < 0.0 and yy < 0.0 else int(xx < 0.0))
    return _with_channels(drawn.copy() if drawn is crop else drawn)


def _whole_pixels(stretch: float, offset: float, count: int, extent: int) -> slice | None:
    """Return where `count` target pixels lie along one axis of the image."""
    first = stretch * -0.5 + offset + 0.5
    low, high = sorted((first, first + stretch * count))
    begin, end = round(low), round(high)
    if not 0 <= begin < end <= extent:
        return None
    near = max(abs(low - begin), abs(high - end)) <= _SNAP * abs(stretch)
    return slice(begin, end) if near else None


def _sample(
    image: NDArray[np.uint8],
    out_size: tuple[int, int],
    inverse: Affine,
    method: str,
    supersampling: int,
) -> NDArray[np.uint8]:
    """Draw any affine map, with the image's outermost pixels continued."""
    import cv2

    if method == "lanczos4" and max(image.shape[:2]) > _LONGEST_LANCZOS:
        raise ValueError(
            f"interp_method 'lanczos4' takes at most {_LONGEST_LANCZOS:,} pixels of an image along "
            f"an axis, and {max(image.shape[:2]):,} are seen here: use 'cubic'"
        )
    height, width = out_size
    if supersampling > 1:
        shift = 0.5 / supersampling - 0.5
        (xx, xy, x), (yx, yy, y) = inverse
        inverse = (
            (xx / supersampling, xy / supersampling, x + (xx + xy) * shift),
            (yx / supersampling, yy / supersampling, y + (yx + yy) * shift),
        )
    fourth = image.shape[2] == 3 and method != "nearest"
    if fourth:
        # OpenCV warps four channels in 40 % of the time of three.
        image = np.asarray(cv2.cvtColor(image, cv2.COLOR_RGB2RGBA), np.uint8)
    drawn = cv2.warpAffine(
        image,
        np.array(inverse),
        (width * supersampling, height * supersampling),
        flags=_flag(method) | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_REPLICATE,
    )
    if supersampling > 1:
        drawn = cv2.resize(drawn, (width, height), interpolation=cv2.INTER_AREA)
    return _with_channels(cv2.cvtColor(drawn, cv2.COLOR_RGBA2RGB) if fourth else drawn)


def _fill_outside(
    drawn: NDArray[np.uint8],
    inverse: Affine,
    extents: tuple[float, float],
    background: float | Sequence[float],
) -> None:
    """Give the background to pixels whose centre is outside of an image of `extents`."""
    height, width = drawn.shape[:2]
    columns, rows = np.arange(width), np.arange(height)[:, np.newaxis]
    outside: NDArray[np.bool_] | None = None
    for (across, down, offset), extent in zip(inverse, extents[::-1], strict=True):
        low, high = -0.5 - 1e-6, extent - 0.5 + 1e-6
        corners = [
            across * column + down * row + offset
            for column in (0, width - 1)
            for row in (0, height - 1)
        ]
        if low <= min(corners) and max(corners) <= high:
            continue
        place = across * columns + (down * rows + offset)
        beyond = (place < low) | (place > high)
        outside = beyond if outside is None else outside | beyond
    if outside is not None:
        drawn[outside] = np.rint(background).astype(np.uint8)


def _flag(method: str) -> int:
    import cv2

    return {
        "nearest": cv2.INTER_NEAREST,
        "linear": cv2.INTER_LINEAR,
        "area": cv2.INTER_LINEAR,
        "cubic": cv2.INTER_CUBIC,
        "lanczos4": cv2.INTER_LANCZOS4,
    }[method]


def _with_channels(image: Any) -> NDArray[np.uint8]:
    """Give back the last axis, which OpenCV drops for one channel."""
    return np.asarray(image[:, :, np.newaxis] if image.ndim == 2 else image, np.uint8)
