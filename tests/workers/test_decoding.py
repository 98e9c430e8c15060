"""Images out of bytes, files and arrays."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers.decoding import decode_image

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")
Image = pytest.importorskip("PIL.Image")


def picture(height: int = 20, width: int = 30) -> NDArray[np.uint8]:
    """A smooth colour picture, so that JPEG keeps it nearly as it is."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = (8 * rows, 255 - 6 * columns, 3 * rows + 4 * columns)
    return np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)


def encode(pixels: NDArray[np.uint8], form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


def difference(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_come_back_exactly_in_rgb(form: str) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    decoded = decode_image(encode(picture(), form, **options), channels=3)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, picture())


def test_jpeg_comes_back_nearly_in_rgb() -> None:
    assert difference(decode_image(encode(picture(), "JPEG", quality=98), 3), picture()) <= 8


def test_grey_jpeg_as_colour_and_colour_jpeg_as_grey() -> None:
    grey = picture()[:, :, 2]
    as_colour = decode_image(encode(grey, "JPEG", quality=98), channels=3)
    assert difference(as_colour, np.repeat(grey[:, :, np.newaxis], 3, axis=2)) <= 4
    expected = np.asarray(Image.fromarray(picture()).convert("L"))
    assert difference(decode_image(encode(picture(), "JPEG", quality=98), 1), expected) <= 4
    assert difference(decode_image(encode(picture(), "PNG"), 1), expected) <= 1
    assert difference(decode_image(picture(), 1), expected) <= 1


def test_cmyk_jpeg_is_decoded() -> None:
    stream = io.BytesIO()
    Image.fromarray(picture()).convert("CMYK").save(stream, "JPEG", quality=98)
    expected = np.asarray(Image.open(io.BytesIO(stream.getvalue())).convert("RGB"))
    assert difference(decode_image(stream.getvalue(), 3), expected) <= 4


def test_alpha_is_dropped_and_sixteen_bits_become_eight() -> None:
    alpha = np.dstack((picture(), np.full((20, 30), 7, np.uint8)))
    np.testing.assert_array_equal(decode_image(encode(alpha, "PNG"), 3), picture())
    deep = cv2.imencode(".png", picture()[:, :, 0].astype(np.uint16) * 257)[1].tobytes()
    assert difference(decode_image(deep, 1), picture()[:, :, 0]) <= 1


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_orientation_in_metadata_is_left_alone(form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # "rotate by 90 degrees to view"
    assert decode_image(encode(picture(), form, exif=exif), 3).shape == (20, 30, 3)


def test_every_holder_of_encoded_bytes(tmp_path: Path) -> None:
    data = encode(picture(), "PNG")
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    encoded = np.frombuffer(data, np.uint8)
    spaced = np.zeros(2 * len(data), np.uint8)
    spaced[::2] = encoded
    holders = (data, bytearray(data), memoryview(data), encoded, spaced[::2], path, str(path))
    for holder in holders:
        np.testing.assert_array_equal(decode_image(holder, 3), picture())


def test_decoded_arrays_pass_without_a_copy() -> None:
    colour, grey = picture(), picture()[:, :, 0].copy()
    assert decode_image(colour, 3) is colour
    assert decode_image(grey, 1) is grey
    assert np.shares_memory(decode_image(grey[:, :, np.newaxis], 1), grey)
    np.testing.assert_array_equal(decode_image(grey, 3), np.dstack((grey, grey, grey)))
    np.testing.assert_array_equal(decode_image(grey[:, ::-1], 3)[:, :, 1], grey[:, ::-1])


JPEG = encode(picture(), "JPEG")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (np.zeros(0, np.uint8), r"empty \(0 bytes\)"),
        (b"no image at all", r"15 bytes that starts with b'no image'.*OpenCV does not know"),
        (JPEG[:-2], r"broken JPEG of [\d,]+ bytes: Premature end"),
        (JPEG[: len(JPEG) // 2], "broken JPEG"),
        (JPEG[:3], "broken JPEG of 3 bytes"),
        (np.zeros((4, 4, 3), np.float32), r"float32 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4, 4), np.uint8), r"uint8 of shape \(4, 4, 4\)"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"shape \(1, 4, 4, 3\)"),
        (np.zeros((), np.uint8), r"shape \(\)"),
        (np.zeros((0, 4, 3), np.uint8), r"no pixels: its shape is \(0, 4, 3\)"),
        (np.zeros(9, np.int16), "uint8, not int16"),
    ],
)
def test_broken_images_say_why(image: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_image(image, channels=3)


def test_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.jpg"
    path.write_bytes(JPEG[: len(JPEG) // 2])
    with pytest.raises(ValueError, match=r"broken JPEG.*half\.jpg"):
        decode_image(path, channels=3)
    with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
        decode_image(tmp_path / "none.jpg", channels=3)


@pytest.mark.parametrize("image", [None, 3, [[1, 2], [3, 4]]])
def test_other_types_are_refused(image: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(image).__name__}"):
        decode_image(image, channels=3)
