"""Grey PNGs with one transparent level."""

import struct
import zlib

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers.decoding import decode_image

pytest.importorskip("cv2")


def chunk(kind: bytes, block: bytes) -> bytes:
    checksum = zlib.crc32(kind + block)
    return struct.pack(">I", len(block)) + kind + block + struct.pack(">I", checksum)


def grey_png(levels: NDArray[np.int64], depth: int, transparent: int | None) -> bytes:
    """Encode levels of so many bits, whose rows fill whole bytes."""
    height, width = levels.shape
    bits = levels[:, :, np.newaxis] >> np.arange(depth)[::-1] & 1
    rows = np.packbits(bits.reshape(height, -1), axis=1)
    key = b"" if transparent is None else chunk(b"tRNS", struct.pack(">H", transparent))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0))
        + key
        + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_the_transparent_level_shows_the_background(depth: int) -> None:
    most = 2**depth - 1
    levels = np.random.default_rng(depth).integers(0, most, (24, 32), endpoint=True)
    key = most // 2
    levels[3:9, 5:20] = key
    levels[12, :3] = key + 1  # with 16 bits, the same in 8 bits, but not transparent
    through = levels == key
    opaque = np.rint(levels * 255 / most).astype(np.uint8)

    colour = decode_image(grey_png(levels, depth, key), background=(255, 100, 0))
    assert (colour[through] == (255, 100, 0)).all()
    assert np.abs(colour[~through].astype(int) - opaque[~through, np.newaxis]).max() <= 1

    grey = decode_image(grey_png(levels, depth, key), color=False, background=70)[:, :, 0]
    assert (grey[through] == 70).all()
    assert np.abs(grey[~through].astype(int) - opaque[~through]).max() <= 1

    plain = decode_image(grey_png(levels, depth, None), background=(255, 100, 0))
    assert np.abs(plain.astype(int) - opaque[:, :, np.newaxis]).max() <= 1


def test_bits_beyond_the_depth_do_not_count() -> None:
    levels = np.array([[0, 1, 2, 3]])
    decoded = decode_image(grey_png(levels, 2, 0x0102), background=9)
    assert decoded[0, :, 0].tolist() == [0, 85, 9, 255]


def test_a_level_that_does_not_occur_changes_nothing() -> None:
    levels = np.arange(16).reshape(2, 8)
    decoded = decode_image(grey_png(levels, 8, 200), color=False, background=99)
    assert decoded[:, :, 0].tolist() == levels.tolist()
