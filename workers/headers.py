"""What an encoded image tells before it is decoded: its format, its size, how to turn it upright.

A few bytes are looked at, so that an image can be refused, or decoded smaller, before it costs
memory or time. These readers are short because they need not understand more than that.
"""

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import unpack_from

from crumpets_like.workers.av1 import frame_sizes


@dataclass(frozen=True, slots=True)
class Header:
    """What an encoded image tells of itself.

    Attributes
    ----------
    format : str
        Such as ``"JPEG"``.
    height, width : int
        Size in pixels as stored, before the image is turned upright.
    orientation : int
        Orientation of the EXIF standard, 1 to 8; 1 is upright.
    """

    format: str
    height: int
    width: int
    orientation: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels, once upright."""
        if self.orientation > 4:
            return self.width, self.height
        return self.height, self.width


def read_header(data: memoryview) -> Header:
    """Find out format, size and orientation.

    Parameters
    ----------
    data : memoryview
        All bytes of the encoded image, format ``"B"``.

    Raises
    ------
    ValueError
        If there are no bytes, in none of the known formats, or they end too early.
    """
    if not data:
        raise ValueError("the encoded image is empty (0 bytes)")
    for start, name, reader in _FORMATS:
        if start.match(data):
            return _read(data, name, reader)
    known = dict.fromkeys(name for _, name, _ in _FORMATS)
    raise ValueError(
        f"not an image: {len(data):,} bytes that start with {bytes(data[:8])!r}; known formats are "
        f"{', '.join(known)}"
    )


_Fields = tuple[int, int, int]  # height, width, orientation
_Reader = Callable[[memoryview], _Fields]

_EXIF = b"Exif\0\0"
_TOO_SHORT = (struct.error, IndexError, OverflowError)  # reading past the end, or far past it


def _read(data: memoryview, name: str, reader: _Reader) -> Header:
    try:
        height, width, orientation = reader(data)
    except _TOO_SHORT:
        raise ValueError(f"truncated {name} of {len(data):,} bytes: it ends too early") from None
    except ValueError as error:
        raise ValueError(f"broken {name} of {len(data):,} bytes: {error}") from None
    if height < 1 or width < 1:
        raise ValueError(f"broken {name}: it states a size of {width} x {height} pixels")
    return Header(name, height, width, orientation if 1 <= orientation <= 8 else 1)


def _jpeg(data: memoryview) -> _Fields:
    at, orientation, size = 2, 1, None
    while True:
        mark, marker, length = unpack_from(">BBH", data, at)
        if mark != 0xFF:
            raise ValueError(f"no marker at byte {at:,}")
        if marker == 0xFF:  # any number of these may come before a marker
            at += 1
            continue
        if marker in (0xD9, 0xDA):  # the end, or the pixels
            if size is None:
                raise ValueError("it has no frame header")
            return *size, orientation
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            size = unpack_from(">HH", data, at + 5)
        elif marker == 0xE1 and bytes(data[at + 4 : at + 10]) == _EXIF:
            orientation = _exif(data[at + 10 : at + 2 + length])
        at += 2 + length


def _png(data: memoryview) -> _Fields:
    width, height = unpack_from(">II", data, 16)
    orientation = 1
    for kind, block in _png_chunks(data):
        if kind == b"eXIf":
            orientation = _exif(block)
    return height, width, orientation


def _png_chunks(data: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Go to the end, since only that tells whether the file is whole."""
    at, kind = 8, b""
    while kind != b"IEND":
        length, kind = unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + 8 + length]
        at += 12 + length


def png_transparent_grey(data: memoryview) -> int | None:
    """Return the one level of a grey PNG that is transparent, None if there is none.

    It is a level as decoders return it: 1, 2 and 4 bits are spread over 0 to 255, 16 are kept.
    """
    depth, color_type = data[24], data[25]
    for kind, block in _png_chunks(data) if color_type == 0 else ():
        if kind == b"tRNS" and len(block) == 2:
            most = (1 << depth) - 1
            (level,) = unpack_from(">H", block)
            return int(level & most) * max(1, 255 // most)
    return None


def _webp(data: memoryview) -> _Fields:
    length, kind = unpack_from("<I4x4s", data, 4)
    end = 8 + length
    if kind == b"VP8 ":
        width, height = unpack_from("<HH", data, 26)
        return height & 0x3FFF, width & 0x3FFF, 1
    if kind == b"VP8L":
        (bits,) = unpack_from("<I", data, 21)
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1, 1
    if kind != b"VP8X":
        raise ValueError(f"its first chunk is {kind!r}")
    width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    at, orientation = 12, 1
    while at + 8 <= end:
        kind, length = unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            block = data[at + 8 : at + 8 + length]
            orientation = _exif(block[6:] if bytes(block[:6]) == _EXIF else block)
        at += 8 + length + length % 2
    return height, width, orientation


def _tiff(data: memoryview) -> _Fields:
    tags = tiff_tags(data)
    try:
        return tags[0x101], tags[0x100], tags.get(0x112, 1)
    except KeyError:
        raise ValueError("its first directory states no size") from None


def _exif(block: memoryview) -> int:
    try:
        return tiff_tags(block).get(0x112, 1)
    except (*_TOO_SHORT, ValueError):  # broken metadata: the picture can still be right
        return 1


def tiff_tags(data: memoryview) -> dict[int, int]:
    """Return the integers in the first directory of a TIFF structure, by tag.

    Of several in one tag the first counts.

    Raises
    ------
    ValueError, struct.error
        If it is no such structure, or ends too early.
    """
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    if order is None:
        raise ValueError("it has no byte order")
    (version,) = unpack_from(f"{order}H", data, 2)
    # BigTIFF is version 43, with wider numbers.
    start, count, entry, step = ("4xQ", "Q", "HHQ", 20) if version == 43 else ("I", "H", "HHI", 12)
    (at,) = unpack_from(order + start, data, 4)
    (entries,) = unpack_from(order + count, data, at)
    at += struct.calcsize(order + count)
    room = struct.calcsize(order + start[-1])  # for a tag's values, else they are elsewhere
    tags = {}
    for end in range(at + step, at + step + entries * step, step):
        tag, kind, values = unpack_from(order + entry, data, end - step)
        code = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if code is not None and values:
            place = end - room
            if values * struct.calcsize(order + code) > room:
                (place,) = unpack_from(order + start[-1], data, place)
            (tags[tag],) = unpack_from(order + code, data, place)
    return tags


def _gif(data: memoryview) -> _Fields:
    width, height = unpack_from("<HH", data, 6)
    return height, width, 1


def _bmp(data: memoryview) -> _Fields:
    (length,) = unpack_from("<I", data, 14)
    width, height = unpack_from("<HH" if length == 12 else "<ii", data, 18)
    return abs(height), width, 1  # negative where the rows go from top to bottom


def _sun(data: memoryview) -> _Fields:
    width, height = unpack_from(">II", data, 4)
    return height, width, 1


def _jp2(data: memoryview) -> _Fields:
    found = re.search(b"ihdr", data)
    if found is None:
        raise ValueError("it has no image header")
    height, width = unpack_from(">II", data, found.end())
    return height, width, 1


def _j2k(data: memoryview) -> _Fields:
    right, bottom, left, top = unpack_from(">IIII", data, 8)
    return bottom - top, right - left, 1


def _avif(data: memoryview) -> _Fields:
    sizes = [unpack_from(">4xII", data, found.end()) for found in re.finditer(b"ispe", data)]
    if not sizes:
        raise ValueError("it states no size")
    width, height = max(sizes, key=math.prod)  # others are tiles and thumbnails
    for rows, columns in frame_sizes(data):
        if not any(columns <= size[0] and rows <= size[1] for size in sizes):
            raise ValueError(
                f"it states a size of {width} x {height} pixels, but holds a frame of "
                f"{columns} x {rows}"
            )
    # First turned counter-clockwise, then mirrored, up to down (0) or left to right (1).
    turn, mirror = (re.search(box + b"(.)", data, re.DOTALL) for box in (b"irot", b"imir"))
    column = mirror[1][0] % 2 + 1 if mirror else 0
    row = turn[1][0] % 4 if turn else 0
    return height, width, ((1, 4, 2), (8, 5, 7), (3, 2, 4), (6, 7, 5))[row][column]


def _text(pattern: bytes) -> _Reader:
    """Make a reader of a header in text, with groups ``h`` and ``w``."""
    compiled = re.compile(pattern)

    def reader(data: memoryview) -> _Fields:
        found = compiled.search(data[:4096])
        if found is None:
            raise ValueError("it states no size")
        return int(found["h"]), int(found["w"]), 1

    return reader


_SPACE = rb"(?:\s|#[^\n]*\n)+"
_netpbm = _text(rb"^.." + _SPACE + rb"(?P<w>\d+)" + _SPACE + rb"(?P<h>\d+)\s")
_pam = _text(rb"(?s)(?=.*\nWIDTH +(?P<w>\d+)\s)(?=.*\nHEIGHT +(?P<h>\d+)\s)")
_radiance = _text(rb"\n[-+]Y +(?P<h>\d+) +[-+]X +(?P<w>\d+)\n")

_MAXVAL = re.compile(
    rb"P(?P<kind>[2356])(?:%b\d+){2}%b(?P<most>\d+)\s" % (_SPACE, _SPACE)
    + rb"|P(?P<pam>7)\s(?s:.)*?\nMAXVAL +(?P<pam_most>\d+)\s"
)


def netpbm_white(data: memoryview) -> int | None:
    """Value of white in the pixels that OpenCV decodes; None if that is the most of their type.

    Raises
    ------
    ValueError
        If OpenCV would not decode the values that are there.
    """
    found = _MAXVAL.match(data[:4096])
    if found is None:  # bitmaps, floats
        return None
    white = int(found["most"] or found["pam_most"])
    if found["pam"] and white == 1:
        raise ValueError("a black and white PAM: OpenCV would make all of it black")
    scaled = found["kind"] in (b"2", b"3") and white < 256  # by OpenCV
    return None if scaled or white in (255, 65535) else white


#: How the bytes start, the format's name, what reads its header.
_FORMATS: tuple[tuple[re.Pattern[bytes], str, _Reader], ...] = tuple(
    (re.compile(start, re.DOTALL), name, reader)
    for start, name, reader in (
        (rb"\xff\xd8\xff", "JPEG", _jpeg),
        (rb"\x89PNG\r\n\x1a\n", "PNG", _png),
        (rb"RIFF....WEBP", "WebP", _webp),
        (rb"GIF8[79]a", "GIF", _gif),
        (rb"BM", "BMP", _bmp),
        (rb"II[*+]\0|MM\0[*+]", "TIFF", _tiff),
        (rb"P[1-6Ff]\s", "Netpbm", _netpbm),
        (rb"P7\s", "Netpbm", _pam),
        (rb"....ftypavi[fs]", "AVIF", _avif),
        (rb"....jP  \r\n\x87\n", "JPEG 2000", _jp2),
        (rb"\xff\x4f\xff\x51", "JPEG 2000", _j2k),
        (rb"#\?R(?:ADIANCE|GBE)\n", "Radiance HDR", _radiance),
        (rb"\x59\xa6\x6a\x95", "Sun raster", _sun),
    )
)
