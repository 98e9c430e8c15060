"""Sizes of the frames in AVIF files, whatever their containers state."""

import io
import struct
from typing import Any

import numpy as np
import pytest

from crumpets_like.workers.av1 import _Bits, _frame_size, _sequence_header, frame_sizes
from crumpets_like.workers.decoding import decode_image, image_size

pytest.importorskip("cv2")
Image = pytest.importorskip("PIL.Image")

HEIGHT, WIDTH = 142, 264
PIXELS = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 4), np.uint8)


def avif(channels: int = 3, frames: int = 1, **options: Any) -> bytes:
    stream = io.BytesIO()
    first, *others = (
        Image.fromarray(np.roll(PIXELS[:, :, :channels], step, axis=1)) for step in range(frames)
    )
    if others:
        options.update(save_all=True, append_images=others)
    first.save(stream, "AVIF", **options)
    return stream.getvalue()


def stating(data: bytes, height: int, width: int) -> bytes:
    """Let all of its boxes state another size."""
    size = struct.pack(">III", 0, WIDTH, HEIGHT)
    assert b"ispe" + size in data
    return data.replace(b"ispe" + size, b"ispe" + struct.pack(">III", 0, width, height))


def sequence(width: int, height: int, before: str) -> bytes:
    """A sequence header up to the size, `before` in bits."""
    bits = f"{before.replace(' ', '')}{15:04b}{9:04b}{width - 1:016b}{height - 1:010b}"
    return bytes(int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8))


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, 1),
        ({"channels": 4}, 2),
        ({"xmp": b"\n<a packet that is no picture, and begins as one>"}, 1),
        ({"frames": 3}, 2),  # an item and a track
    ],
)
def test_frames_have_the_size_of_the_picture(options: dict[str, Any], streams: int) -> None:
    data = avif(**options)
    assert list(frame_sizes(memoryview(data))) == [(HEIGHT, WIDTH)] * streams
    assert decode_image(data).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("options", [{}, {"channels": 4}, {"frames": 3}])
@pytest.mark.parametrize("stated", [(10, 10), (HEIGHT - 1, WIDTH), (HEIGHT, WIDTH - 1), (9, 9999)])
def test_a_frame_larger_than_stated_is_refused(options: Any, stated: tuple[int, int]) -> None:
    data = stating(avif(**options), *stated)
    reason = rf"states a size of {stated[1]} x {stated[0]} pixels, but holds .* {WIDTH} x {HEIGHT}"
    for function in (image_size, decode_image):
        with pytest.raises(ValueError, match=reason):
            function(data)


@pytest.mark.parametrize(
    "before",
    [
        "0001 1 00000",  # short
        "0000 0 0 0 00000 000000000000 00101",  # one operating point
        "0000 0 0 1 00001" + " 000000000000 01000 1 1 1010" * 2,  # two, with tiers and delays
        # Timing of equal frames and a model of the decoder, with delays of four bits.
        f"0000 0 1 {'01' * 32} 1 00101 1 00011 {'10' * 21} 0 00000 {'0' * 12} 00101 1 {'1' * 9}",
    ],
)
def test_forms_of_a_sequence_header(before: str) -> None:
    header = sequence(40_000, 700, before)
    assert _sequence_header(_Bits(header)) == (700, 40_000)
    for start in (b"\x0a" + bytes([len(header)]), b"\x12\0\x0a\x80\x01", b"\x08", b"\x0c\0"):
        assert _frame_size(start + header) == (700, 40_000)


def test_streams_without_a_header() -> None:
    assert _frame_size(b"") is None
    assert _frame_size(b"\x12\0" * 20) is None
    assert _frame_size(bytes(8)) is None


def test_a_header_that_is_not_at_the_start_is_refused() -> None:
    data = avif()
    at = data.find(b"mdat") + 4
    assert data[at : at + 3] == b"\x12\0\x0a"  # a delimiter, and the header
    hidden = data[:at] + b"\x7a" + data[at + 1 :]  # padding
    hidden = hidden[: at + 1] + b"\xff\x7f" + hidden[at + 3 :]
    with pytest.raises(ValueError, match=r"broken AVIF .* no sequence header at its start"):
        image_size(hidden)


def test_files_that_end_early_are_only_read_to_their_end() -> None:
    data = avif(channels=4)
    for end in range(20, data.find(b"mdat") + 20):
        try:
            assert image_size(data[:end]) == (HEIGHT, WIDTH)
        except ValueError as error:
            assert "AVIF" in str(error)  # noqa: PT017
