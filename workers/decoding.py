"""Images out of encoded bytes, files and arrays.

JPEG is decoded by simplejpeg, everything else by OpenCV. A JPEG can come out smaller at once
(`min_size`): its blocks of 8 x 8 coefficients become blocks of 4 x 4, 2 x 2 or 1 x 1 pixels, so
that pixels which would only be averaged afterwards are never made.

A decoder of a part alone is not to be had. libjpeg-turbo has one since version 3.0
(``tj3SetCroppingRegion``), but no Python package that brings the library along lets it be called:
not simplejpeg 1.9, OpenCV 5.0, Pillow 13.0, imagecodecs 2026.3 or kornia-rs 0.2. PyTurboJPEG 2.6
needs a library of the system, and cuts the file before it decodes what is left. libvips (pyvips
3.2) stops after a part's last row, and still takes longer than simplejpeg for all of them. So a
JPEG is decoded whole. Of libjpeg-turbo's faster ways, coarse colours (``fastupsample``) and a
coarse transform (``fastdct``), none is used: they save 3 to 6 % each, and are up to 30 levels off.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.headers import (
    Header,
    netpbm_white,
    png_transparent_grey,
    read_header,
    tiff_tags,
)

MAX_PIXELS = 2**28
"""Largest image that is decoded unless told otherwise, in pixels: 805 MB of memory in RGB."""

# Orientations that turn the last row, and the last column, into the first row or column.
_BOTTOM_TO_START = (3, 4, 6, 7)
_RIGHT_TO_START = (2, 3, 7, 8)


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image that was read but not decoded yet; made by `read_image`.

    Attributes
    ----------
    data : memoryview
        The encoded bytes.
    header : Header
        Format, size and orientation.
    path : str or None
        The file they come from.
    """

    data: memoryview
    header: Header
    path: str | None = None


def read_image(image: Any) -> "EncodedImage | NDArray[np.uint8]":
    """Read what a sample calls its image, without decoding it.

    The other functions take the result as well: so a file is read once.

    Parameters
    ----------
    image : bytes-like, path or array
        An encoded image (``bytes``, ``bytearray``, ``memoryview`` or a one-dimensional uint8
        array), the path of its file (``str`` or ``os.PathLike``), or a decoded uint8 array of
        shape (H, W), (H, W, 1) for grey, (H, W, 3) for red, green, blue, or (H, W, 4) with alpha.

    Returns
    -------
    EncodedImage or numpy.ndarray
        Decoded arrays are returned as they are.

    Raises
    ------
    TypeError
        If `image` is of no such type.
    ValueError
        If it is empty, of an unknown format, its header is broken, or an array is of another
        shape or dtype. The text names the file, if there is one.
    OSError
        If the file cannot be read.
    """
    if isinstance(image, EncodedImage):
        return image
    path = None
    if isinstance(image, np.ndarray):
        if image.ndim != 1:
            _check_pixels(image)
            return image
        if image.dtype != np.uint8:
            raise ValueError(
                f"a one-dimensional image array holds encoded bytes, so its dtype must be uint8, "
                f"not {image.dtype} (shape {image.shape})"
            )
        image = np.ascontiguousarray(image)
    elif isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        with open(path, "rb") as file:
            image = file.read()
    elif not isinstance(image, bytes | bytearray | memoryview):
        raise TypeError(
            f"image must be encoded bytes, a path or a uint8 array of shape (H, W), (H, W, 1), "
            f"(H, W, 3) or (H, W, 4), not {type(image).__name__}"
        )
    with naming_file(path):
        data = memoryview(image)
        data = (data if data.c_contiguous else memoryview(bytes(data))).cast("B")
        return EncodedImage(data, read_header(data), path)


def image_size(image: Any) -> tuple[int, int]:
    """Return height and width of an image in pixels, once upright, without decoding it.

    Parameters
    ----------
    image : bytes-like, path, array or EncodedImage
        See `read_image`, which also tells what is raised.
    """
    source = read_image(image)
    return source.header.size if isinstance(source, EncodedImage) else source.shape[:2]


def decode_image(
    image: Any,
    color: bool = True,
    *,
    min_size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    background: float | Sequence[float] = (0, 0, 0),
) -> NDArray[np.uint8]:
    """Turn what a sample calls its image into pixels.

    The result is upright: the orientation in an encoded image's metadata is applied. Of animated
    images it is the first frame. Palettes are resolved, CMYK becomes RGB the way Adobe writes it
    (as Pillow does it, without colour profiles), 16 bits become 8 by division by 257, and numbers
    with a fraction are taken to lie between 0 and 1.

    Decoding is strict: where a decoder would fill in what is missing, this raises. Let through
    are bytes between the end of a JPEG's pixels and its end mark, which many cameras write.

    Parameters
    ----------
    image : bytes-like, path, array or EncodedImage
        See `read_image`.
    color : bool
        Whether to return red, green and blue, else one channel of grey
        (0.299 R + 0.587 G + 0.114 B).
    min_size : (int, int), optional
        Height and width that are enough for the whole image. A JPEG comes at a half, a quarter or
        an eighth of its size (rounded up) if that is not smaller than this. One that has to be
        mirrored or turned comes only at such a part of its size as leaves no rest along the sides
        that change their direction, so that it is never shifted. Other formats and arrays come in
        full.
    max_pixels : int
        Encoded images with more pixels than this are refused before they are decoded.
    background : float or sequence of float
        What shows where an image is transparent: one value in 0 to 255, or one for each of red,
        green and blue.

    Returns
    -------
    numpy.ndarray
        uint8, shape (H, W, 3), or (H, W, 1) without `color`. A decoded array of that kind is
        returned as it is, not copied.

    Raises
    ------
    TypeError
        If `image` is of no type that `read_image` takes.
    ValueError
        If `image` is empty, broken, truncated, of an unknown format, too large, or an array of
        another shape or dtype. The text names the file, if there is one.
    OSError
        If the file cannot be read.
    """
    source = read_image(image)
    if not isinstance(source, EncodedImage):
        return _flatten(source, color, background)
    with naming_file(source.path):
        header = source.header
        if header.height * header.width > max_pixels:
            raise ValueError(
                f"{header.format} of {header.width:,} x {header.height:,} pixels is larger than "
                f"max_pixels = {max_pixels:,}: either a decompression bomb, or max_pixels is too "
                f"small for the data"
            )
        if header.format == "JPEG":
            return _upright(_decode_jpeg(source, color, min_size), header.orientation)
        if header.format == "TIFF":
            pixels, multiplied = _decode_tiff(source)
            return _flatten(pixels, color, background, multiplied)
        pixels = _decode_other(source, (header.height, header.width))
        return _upright(_flatten(pixels, color, background), header.orientation)


@contextmanager
def naming_file(path: str | None) -> Iterator[None]:
    """Add the file's name to the text of a ValueError."""
    try:
        yield
    except ValueError as error:
        if path is None:
            raise
        raise ValueError(f"{error} (file {path!r})") from error


def _decode_jpeg(
    source: EncodedImage, color: bool, min_size: tuple[int, int] | None
) -> NDArray[np.uint8]:
    import simplejpeg

    header = source.header
    height, width = min_size or header.size
    if header.orientation > 4:
        height, width = width, height
    # Other eighths take up to twice as long as the whole: libjpeg-turbo is fast at these alone.
    for eighths in (1, 2, 4, 8):
        scaled = -(-header.height * eighths // 8), -(-header.width * eighths // 8)
        if scaled[0] >= height and scaled[1] >= width and not _shifts(header, eighths):
            break
    options: dict[str, Any] = {
        "colorspace": "RGB" if color else "GRAY",
        "min_height": scaled[0],
        "min_width": scaled[1],
    }
    try:
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(source.data, **options)
    except ValueError as error:
        # The decoder stops at its first complaint. This one comes after the last pixel, unless
        # there are restart marks (0xff 0xdd), between which it could have been looking.
        if str(error).endswith("extraneous bytes before marker 0xd9") and not re.search(
            b"\xff\xdd", source.data
        ):
            pixels = simplejpeg.decode_jpeg(source.data, **options, strict=False)
        else:
            raise ValueError(f"broken JPEG of {len(source.data):,} bytes: {error}") from error
    return pixels


def _shifts(header: Header, eighths: int) -> bool:
    """Whether the pixels that a reduced picture is rounded up by come to its left or its top.

    Right and below they stick out of the picture. On the other side they would shift all of it by a
    part of a pixel against its boxes, masks and points.
    """
    down = header.orientation in _BOTTOM_TO_START and header.height * eighths % 8
    across = header.orientation in _RIGHT_TO_START and header.width * eighths % 8
    return bool(down or across)


def _decode_other(source: EncodedImage, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return what OpenCV makes of the bytes, in 8 bits and RGB, with alpha if there is one."""
    import cv2

    kind = source.header.format
    try:
        # Unchanged keeps the alpha channel; it leaves the orientation alone, too.
        pixels = cv2.imdecode(np.frombuffer(source.data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ValueError(f"broken {kind}: {error}") from error
    if pixels is None:
        raise ValueError(f"broken {kind} of {len(source.data):,} bytes: OpenCV cannot decode it")
    if pixels.shape[:2] != size:
        raise ValueError(
            f"broken {kind}: its header states {size[1]} x {size[0]} pixels, "
            f"but {pixels.shape[1]} x {pixels.shape[0]} were decoded"
        )
    white = netpbm_white(source.data) if kind == "Netpbm" else None
    eight = _to_8_bits(pixels if white is None else np.minimum(pixels / white, 1))
    if eight.ndim == 2:
        # OpenCV makes an alpha channel of this in colour, but leaves it out in grey.
        level = png_transparent_grey(source.data) if kind == "PNG" else None
        if level is None:
            return eight
        return np.dstack((eight, eight, eight, np.uint8(255) * (pixels != level)))
    code = cv2.COLOR_BGR2RGB if eight.shape[2] == 3 else cv2.COLOR_BGRA2RGBA
    return np.asarray(cv2.cvtColor(eight, code), np.uint8)


def _decode_tiff(source: EncodedImage) -> tuple[NDArray[np.uint8], bool]:
    """Decode a format that OpenCV turns upright; also whether colours are multiplied by alpha."""
    tags = tiff_tags(source.data)
    samples, bits, extra = (tags.get(tag, 0) for tag in (0x115, 0x102, 0x152))
    if samples == 2:
        raise ValueError("grey TIFF with alpha: OpenCV would leave the alpha out")
    # 1 says that they are, 2 that they are not; OpenCV multiplies them if there are 8 bits.
    multiplied = extra == 1 or (extra == 2 and bits == 8)
    return _decode_other(source, source.header.size), multiplied


def _to_8_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        pixels = pixels - (pixels >> 8) + 128 >> 8  # division by 257, rounded, within 16 bits
    elif pixels.dtype.kind == "f":
        pixels = np.clip(np.nan_to_num(pixels), 0, 1) * 255 + 0.5
    else:
        raise ValueError(f"pixels of type {pixels.dtype} have no known range")
    return pixels.astype(np.uint8)


def _flatten(
    pixels: NDArray[np.uint8],
    color: bool,
    background: float | Sequence[float],
    multiplied: bool = False,
) -> NDArray[np.uint8]:
    """Turn grey, RGB or RGBA pixels into RGB or grey ones.

    `multiplied` tells whether colours are multiplied by alpha already.
    """
    import cv2

    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if channels == 4:
        alpha = pixels[:, :, 3:].astype(np.uint16)
        behind = np.rint(np.broadcast_to(background, 3)).astype(np.uint16) * (255 - alpha)
        front: NDArray[np.uint16] = pixels[:, :, :3].astype(np.uint16)
        front = np.minimum(front, alpha) * 255 if multiplied else front * alpha
        pixels, channels = ((front + behind + 127) // 255).astype(np.uint8), 3
    if channels == (3 if color else 1):
        return pixels.reshape(height, width, channels)
    code = cv2.COLOR_GRAY2RGB if color else cv2.COLOR_RGB2GRAY
    changed = np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), code), np.uint8)
    return changed.reshape(height, width, 4 - channels)


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn pixels that have one of the eight orientations of the EXIF standard."""
    import cv2

    if orientation == 1:
        return pixels
    turned = cv2.transpose(pixels) if orientation > 4 else pixels
    # Flips up to down (0), left to right (1), or both (-1).
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    if flip is not None:
        turned = cv2.flip(turned, flip)
    return np.asarray(turned, np.uint8).reshape(*turned.shape[:2], pixels.shape[2])


def _check_pixels(pixels: NDArray[Any]) -> None:
    """Raise unless an array is a decoded image."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise ValueError(
            f"a decoded image must be uint8 of shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), "
            f"not {pixels.dtype} of shape {pixels.shape}"
        )
    if pixels.size == 0:
        raise ValueError(f"the decoded image has no pixels: its shape is {pixels.shape}")
