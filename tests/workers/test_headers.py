"""Format, size and orientation out of the first bytes."""

import struct

import pytest

from crumpets_like.workers.headers import read_header


def header(data: bytes) -> tuple[str, int, int, int]:
    found = read_header(memoryview(data))
    return found.format, found.height, found.width, found.orientation


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"GIF87a" + struct.pack("<HH", 30, 20), ("GIF", 20, 30, 1)),
        (b"BM" + bytes(12) + struct.pack("<IHH", 12, 30, 20), ("BMP", 20, 30, 1)),
        (b"BM" + bytes(12) + struct.pack("<Iii", 40, 30, -20), ("BMP", 20, 30, 1)),
        (b"P5 # a comment\n#another one\n30\t20\n255\n", ("Netpbm", 20, 30, 1)),
        (b"P1\n30 20\n", ("Netpbm", 20, 30, 1)),
        (b"Pf\n30 20\n-1.0\n", ("Netpbm", 20, 30, 1)),
        (b"P7\nWIDTH 30\nHEIGHT 20\nDEPTH 3\nENDHDR\n", ("Netpbm", 20, 30, 1)),
        (b"P7\nHEIGHT 20\nDEPTH 3\nWIDTH 30\nENDHDR\n", ("Netpbm", 20, 30, 1)),
        (b"#?RADIANCE\nFORMAT=x\n\n-Y 20 +X 30\n", ("Radiance HDR", 20, 30, 1)),
        (b"\x59\xa6\x6a\x95" + struct.pack(">II", 30, 20), ("Sun raster", 20, 30, 1)),
        (
            b"\xff\x4f\xff\x51" + bytes(4) + struct.pack(">IIII", 35, 26, 5, 6),
            ("JPEG 2000", 20, 30, 1),
        ),
        # A picture with thumbnails.
        (
            b"\0\0\0\x1cftypavis"
            + b"".join(
                b"ispe" + struct.pack(">III", 0, w, h) for w, h in ((3, 2), (30, 20), (6, 4))
            ),
            ("AVIF", 20, 30, 1),
        ),
        # Fill bytes before a marker, and a frame header of another kind.
        (
            b"\xff\xd8\xff\xff\xff\xc2\0\x0b\x08"
            + struct.pack(">HH", 20, 30)
            + bytes(4)
            + b"\xff\xda\0\x02",
            ("JPEG", 20, 30, 1),
        ),
    ],
)
def test_sizes(data: bytes, expected: tuple[str, int, int, int]) -> None:
    assert header(data) == expected


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_size(orientation: int) -> None:
    entry = struct.pack("<HHIHxx", 0x112, 3, 1, orientation)
    sides = struct.pack("<HHII", 0x100, 4, 1, 30) + struct.pack("<HHII", 0x101, 4, 1, 20)
    tiff = b"II*\0" + struct.pack("<IH", 8, 3) + sides + entry
    assert header(tiff) == ("TIFF", 20, 30, orientation)
    upright = (30, 20) if orientation > 4 else (20, 30)
    assert read_header(memoryview(tiff)).size == upright


@pytest.mark.parametrize(("turn", "mirror"), [(t, m) for t in range(4) for m in (None, 0, 1)])
def test_turns_and_mirrors_of_avif(turn: int, mirror: int | None) -> None:
    """The orientation, applied to corners, gives what turning and then mirroring them gives."""
    data = b"\0\0\0\x1cftypavif" + bytes(16) + b"ispe" + struct.pack(">III", 0, 30, 20)
    data += b"irot" + bytes([turn])
    if mirror is not None:
        data += b"imir" + bytes([mirror])
    orientation = header(data)[3]
    np = pytest.importorskip("numpy")
    corners = np.arange(4).reshape(2, 2)
    expected = np.rot90(corners, turn)
    if mirror is not None:
        expected = np.flip(expected, mirror)
    # What has to be done to stored pixels, by the EXIF standard.
    shown = {
        1: corners,
        2: corners[:, ::-1],
        3: corners[::-1, ::-1],
        4: corners[::-1],
        5: corners.T,
        6: np.rot90(corners, -1),
        7: corners[::-1, ::-1].T,
        8: np.rot90(corners, 1),
    }[orientation]
    np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"GIF89a\1", "truncated GIF of 7 bytes"),
        (b"\x89PNG\r\n\x1a\n" + bytes(4), "truncated PNG of 12 bytes"),
        (b"RIFF\xff\0\0\0WEBPVP8 ", "truncated WebP of 16 bytes"),
        (b"RIFF\x08\0\0\0WEBPABCD", "its first chunk is b'ABCD'"),
        (b"BM" + bytes(12) + struct.pack("<Iii", 40, 0, 7), "a size of 0 x 7 pixels"),
        (b"II*\0" + struct.pack("<IH", 8, 0), "its first directory states no size"),
        (b"II*\0" + struct.pack("<IH", 8, 1), "truncated TIFF"),
        (b"II+\0\x08\0\0\0" + b"\xff" * 8, "truncated TIFF"),
        (b"P6 wide\n", "broken Netpbm of 8 bytes: it states no size"),
        (b"\0\0\0\x1cftypavif", "broken AVIF.*no size"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "broken JPEG 2000.*no image header"),
        (b"\xff\xd8\xff\xe0\0\x04\0\0", "truncated JPEG"),
        (b"\xff\xd8\xff\xda\0\0", "no frame header"),
        (b"RIFF\0\0\0\0WAVE", "not an image"),
    ],
)
def test_what_cannot_be_read(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_header(memoryview(data))
