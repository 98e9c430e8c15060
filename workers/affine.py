"""One affine warp from an image into a row of a buffer, and the randomness that steers it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

AFFINE_DEFAULTS: Mapping[str, Any] = {
    "angle": 0.0,
    "scale": 1.0,
    "shift": (0.0, 0.0),
    "hmirror": False,
    "scale_mode": "shortest",
}
"""Parameters of a warp and the values that change nothing but the size; see `warp`."""

_SCALE_MODES = ("shortest", "longest")


class ImageRNG(Protocol):
    """Draws the parameters of one image's augmentation.

    Implementations are copied to the workers, so they must be picklable, and they must draw from
    the generator they are given alone: it is what makes results reproducible.
    """

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> Mapping[str, Any]:
        """Return parameters for `image`, uint8 (H, W, 3) or (H, W), on its way to `buffer`.

        Any subset of the keys of `AFFINE_DEFAULTS`; those left out keep their fixed value.
        """


class RandomAffine:
    """Random rotation, shift, scale and mirroring.

    Always draws five numbers per image, so that changing one range leaves the others' values.

    Parameters
    ----------
    angle : float
        Largest rotation in degrees; uniform in [-angle, angle].
    shift : float
        Largest shift along each axis, as a fraction of the buffer's width and height; uniform in
        [-shift, shift].
    scale : (float, float)
        Smallest and largest factor on the fitted size; its logarithm is uniform, so that shrinking
        and enlarging by the same factor are as likely.
    hmirror : float
        Probability of a left-right mirror image.

    Raises
    ------
    ValueError
        If a range is negative or empty, or `hmirror` is no probability.
    """

    def __init__(
        self,
        angle: float = 0.0,
        shift: float = 0.0,
        scale: tuple[float, float] = (1.0, 1.0),
        hmirror: float = 0.0,
    ) -> None:
        for name, value in (("angle", angle), ("shift", shift)):
            if not 0.0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number >= 0, not {value!r}")
        low, high = scale
        if not 0.0 < low <= high < math.inf:
            raise ValueError(f"scale must be (low, high) with 0 < low <= high, not {scale!r}")
        if not 0.0 <= hmirror <= 1.0:
            raise ValueError(f"hmirror must be a probability in [0, 1], not {hmirror!r}")
        self.angle = angle
        self.shift = shift
        self.scale = (low, high)
        self.hmirror = hmirror

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Draw one image's parameters from `generator`."""
        angle, x, y, scale, mirror = generator.random(5).tolist()
        low, high = self.scale
        return {
            "angle": self.angle * (2.0 * angle - 1.0),
            "shift": (self.shift * (2.0 * x - 1.0), self.shift * (2.0 * y - 1.0)),
            "scale": low * (high / low) ** scale,
            "hmirror": mirror < self.hmirror,
        }


def check_affine(params: Mapping[str, Any], source: str) -> None:
    """Raise unless `params` holds known keys with values that a warp can use.

    Parameters
    ----------
    params : mapping
        A subset of the keys of `AFFINE_DEFAULTS`.
    source : str
        What gave the parameters, for the error text.

    Raises
    ------
    ValueError
        If a key is unknown or a value is out of range.
    """
    unknown = sorted(map(str, params.keys() - AFFINE_DEFAULTS.keys()))
    if unknown:
        raise ValueError(
            f"{source} has unknown parameters {', '.join(unknown)}; "
            f"known are {', '.join(sorted(AFFINE_DEFAULTS))}"
        )
    merged = {**AFFINE_DEFAULTS, **params}
    if merged["scale_mode"] not in _SCALE_MODES:
        raise ValueError(
            f"{source}: scale_mode must be one of {_SCALE_MODES}, not {merged['scale_mode']!r}"
        )
    if not 0.0 < merged["scale"] < math.inf:
        raise ValueError(f"{source}: scale must be a finite factor > 0, not {merged['scale']!r}")
    if len(merged["shift"]) != 2:
        raise ValueError(f"{source}: shift must be (right, down), not {merged['shift']!r}")
    if not all(map(math.isfinite, (merged["angle"], *merged["shift"]))):
        raise ValueError(
            f"{source}: angle and shift must be finite, "
            f"not {merged['angle']!r} and {merged['shift']!r}"
        )


def affine_matrix(
    source: tuple[int, int], target: tuple[int, int], params: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Return the map from pixels of the source image to pixels of the target.

    Both images' centres coincide before the shift; a pixel's coordinates are those of its centre,
    so that pixel (0, 0) covers [-0.5, 0.5] along both axes.

    Parameters
    ----------
    source, target : (int, int)
        Height and width in pixels.
    params : mapping
        All keys of `AFFINE_DEFAULTS`, with the meaning that `warp` gives them.

    Returns
    -------
    numpy.ndarray
        float64, shape (2, 3): ``matrix @ (x, y, 1)`` of the source is ``(x, y)`` of the target.
    """
    (source_height, source_width), (height, width) = source, target
    fit = max if params["scale_mode"] == "shortest" else min
    scale = params["scale"] * fit(height / source_height, width / source_width)
    radians = math.radians(params["angle"])
    # y points down, so this turns counter-clockwise as seen.
    cosine, sine = scale * math.cos(radians), scale * math.sin(radians)
    flip = -1.0 if params["hmirror"] else 1.0
    linear = np.array([[flip * cosine, sine], [flip * -sine, cosine]])
    shift_x, shift_y = params["shift"]
    centre = np.array([(width - 1) / 2 + shift_x * width, (height - 1) / 2 + shift_y * height])
    origin = np.array([(source_width - 1) / 2, (source_height - 1) / 2])
    return np.column_stack((linear, centre - linear @ origin))


def warp(
    image: NDArray[np.uint8],
    buffer: NDArray[Any],
    params: Mapping[str, Any],
    background: Sequence[float],
) -> None:
    """Resize, mirror, scale, rotate and shift `image` into `buffer`, by one interpolation.

    The image is fitted to the buffer centre on centre, then

    - `scale_mode`: ``"shortest"`` fits the side that needs the larger factor, so that the image
      covers the buffer and what sticks out is cut off; ``"longest"`` fits the other, so that all of
      the image is seen with the background beside it;
    - `hmirror`: mirrored left to right if true;
    - `scale`: enlarged by this factor;
    - `angle`: rotated by so many degrees, counter-clockwise;
    - `shift`: moved right and down by these fractions of the buffer's width and height.

    Interpolation is bilinear. An image more than twice too large is first reduced by a whole factor
    with area averaging: bilinear interpolation alone would skip pixels.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, 3) or (H, W).
    buffer : numpy.ndarray
        Written, shape (3, H', W') or (1, H', W'). Integers get 0 to 255, floats 0.0 to 1.0.
    params : mapping
        All keys of `AFFINE_DEFAULTS`.
    background : sequence of float
        One value in 0 to 255 per channel, for pixels outside the image.
    """
    import cv2

    height, width = buffer.shape[1:]
    matrix = affine_matrix(image.shape[:2], (height, width), params)
    reduction = int(1.0 / math.hypot(matrix[0, 0], matrix[1, 0]))
    if reduction >= 2:
        size = (max(1, image.shape[1] // reduction), max(1, image.shape[0] // reduction))
        image = np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)
        matrix = affine_matrix(image.shape[:2], (height, width), params)
    warped = cv2.warpAffine(
        image,
        matrix,
        (width, height),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=tuple(background),
    )
    planes = warped[np.newaxis] if warped.ndim == 2 else warped.transpose(2, 0, 1)
    if np.issubdtype(buffer.dtype, np.floating):
        # Half precision would lose bits in the division itself.
        dtype = np.result_type(buffer.dtype, np.float32)
        np.divide(planes, 255.0, out=buffer, dtype=dtype, casting="same_kind")
    else:
        buffer[...] = planes
