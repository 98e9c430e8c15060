"""Images out of encoded bytes, files and arrays."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Two bytes start every JPEG stream (SOI), the third every marker that can follow it.
_JPEG_START = b"\xff\xd8\xff"


def image_size(image: Any) -> tuple[int, int]:
    """Return height and width of an image."""
    height, width = decode_image(image).shape[:2]
    return height, width


def decode_image(
    image: Any,
    color: bool = True,
    *,
    min_size: tuple[int, int] | None = None,
    max_pixels: int = 2**28,
    background: tuple[float, ...] = (0, 0, 0),
) -> NDArray[np.uint8]:
    """Stand-in: see `_decode_channels`."""
    pixels = _decode_channels(image, 3 if color else 1)
    return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


def _decode_channels(image: Any, channels: int) -> NDArray[np.uint8]:
    """Turn what a sample calls its image into pixels.

    JPEG is decoded by simplejpeg, every other format by OpenCV, 16-bit images to 8 bits, without
    their alpha channel. An orientation noted in the file's metadata is not applied.

    Parameters
    ----------
    image : bytes-like, path or array
        An encoded image (``bytes``, ``bytearray``, ``memoryview`` or a one-dimensional uint8
        array), the path of its file (``str`` or ``os.PathLike``), or a decoded uint8 array of
        shape (H, W), (H, W, 1) or, in the order red, green, blue, (H, W, 3).
    channels : {1, 3}
        Channels of the result: 1 for grey, 3 for red, green, blue.

    Returns
    -------
    numpy.ndarray
        uint8, shape (H, W, 3) or, with one channel, (H, W). A decoded array that already has the
        wanted channels is returned as it is, not copied.

    Raises
    ------
    TypeError
        If `image` is of no such type.
    ValueError
        If `image` is empty, broken, of an unknown format, or an array of another shape or dtype.
    OSError
        If the file cannot be read.
    """
    if isinstance(image, np.ndarray) and image.ndim != 1:
        return _as_channels(image, channels)
    if isinstance(image, str | os.PathLike):
        path = Path(image)
        try:
            return _decode(path.read_bytes(), channels)
        except ValueError as error:
            raise ValueError(f"{error} (file {str(path)!r})") from error
    if isinstance(image, bytes | bytearray | memoryview):
        return _decode(image, channels)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8:
            raise ValueError(
                f"a one-dimensional image array holds encoded bytes, so its dtype must be uint8, "
                f"not {image.dtype} (shape {image.shape})"
            )
        return _decode(np.ascontiguousarray(image).data, channels)
    raise TypeError(
        f"image must be encoded bytes, a path or a uint8 array of shape (H, W) or (H, W, 3), "
        f"not {type(image).__name__}"
    )


def _decode(data: bytes | bytearray | memoryview, channels: int) -> NDArray[np.uint8]:
    view = memoryview(data).cast("B")
    if len(view) == 0:
        raise ValueError("the encoded image is empty (0 bytes)")
    if bytes(view[:3]) == _JPEG_START:
        return _decode_jpeg(view, channels)
    return _decode_other(view, channels)


def _decode_jpeg(view: memoryview, channels: int) -> NDArray[np.uint8]:
    import simplejpeg

    try:
        # Strict is the default: a truncated stream raises instead of giving a half grey image.
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            view, colorspace="GRAY" if channels == 1 else "RGB"
        )
    except ValueError as error:
        raise ValueError(f"broken JPEG of {len(view):,} bytes: {error}") from error
    return pixels[:, :, 0] if channels == 1 else pixels


def _decode_other(view: memoryview, channels: int) -> NDArray[np.uint8]:
    import cv2

    flags = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
    try:
        # simplejpeg leaves the orientation alone, so all formats do.
        pixels = cv2.imdecode(np.frombuffer(view, np.uint8), flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ValueError(f"broken image of {len(view):,} bytes: {error}") from error
    if pixels is None:
        raise ValueError(
            f"cannot decode an image of {len(view):,} bytes that starts with "
            f"{bytes(view[:8])!r}: broken, or in a format that OpenCV does not know"
        )
    if channels == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return np.asarray(pixels, np.uint8)


def _as_channels(pixels: NDArray[Any], channels: int) -> NDArray[np.uint8]:
    import cv2

    deep = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or deep not in (1, 3):
        raise ValueError(
            f"a decoded image must be uint8 of shape (H, W), (H, W, 1) or (H, W, 3), "
            f"not {pixels.dtype} of shape {pixels.shape}"
        )
    if pixels.size == 0:
        raise ValueError(f"the decoded image has no pixels: its shape is {pixels.shape}")
    if deep == channels:
        return pixels[:, :, 0] if pixels.ndim == 3 and channels == 1 else pixels
    code = cv2.COLOR_RGB2GRAY if channels == 1 else cv2.COLOR_GRAY2RGB
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), code), np.uint8)
