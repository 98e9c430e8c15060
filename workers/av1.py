"""The sizes of the frames in an AVIF file, as its AV1 streams tell them.

The size that the container states is not the one that is decoded: libavif scales what comes out of
the decoder to it. So a small size could hide a frame of any.
"""

import re
from collections.abc import Iterator

_START = 256  # bytes of a stream, enough for its sequence header
_OTHERS_BEFORE = 8  # parts of a stream that may come before it
_AV1_ITEM = re.compile(rb"infe(?:\x02...(..)|\x03...(....))..av01", re.DOTALL)


class _Bits:
    """Reads numbers of so many bits, the most significant first; 0 behind the end."""

    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data + bytes(_START))
        self._left = 8 * (len(data) + _START)

    def __call__(self, count: int) -> int:
        self._left = max(0, self._left - count)
        return self._number >> self._left & (1 << count) - 1


def frame_sizes(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield height and width of the largest frame of each AV1 item and track in an AVIF file.

    Raises
    ------
    ValueError
        If an item does not begin with its sequence header, where any size could follow.
    """
    for found in re.finditer(b"iloc", data):
        try:
            for stream in _items(data, found.end()):
                size = _frame_size(stream)
                if size is None:
                    raise ValueError("one of its pictures has no sequence header at its start")
                yield size
        except IndexError:  # the box ends too early: no decoder takes it
            continue
    for found in re.finditer(b"stco|co64", data):
        width = 4 if found[0] == b"stco" else 8
        at = found.end() + 8
        start = int.from_bytes(data[at : at + width])
        size = _frame_size(bytes(data[start : start + _START]))
        if size is not None:
            yield size


def _items(data: memoryview, at: int) -> Iterator[bytes]:
    """Yield how each AV1 item begins, by an item location box (ISO/IEC 14496-12, 8.11.3)."""

    def number(size: int) -> int:
        nonlocal at
        if at + size > len(data):
            raise IndexError(at)
        at += size
        return int.from_bytes(data[at - size : at])

    coded = {int.from_bytes(found[1] or found[2]) for found in _AV1_ITEM.finditer(data)}
    inside = re.search(b"idat", data)
    version = number(4) >> 24
    sizes = number(2)
    offset_size, length_size, base_size, index_size = (sizes >> by & 15 for by in (12, 8, 4, 0))
    index_size = index_size if version else 0
    for _ in range(number(4 if version == 2 else 2)):
        name = number(4 if version == 2 else 2)
        method = number(2) & 15 if version else 0
        number(2)  # the file that it is in
        base = number(base_size)
        if method == 1 and inside is not None:
            base += inside.end()
        extents = number(2)
        end = at + extents * (index_size + offset_size + length_size)
        stream = b""
        for _ in range(extents):
            number(index_size)
            start = base + number(offset_size)
            length = number(length_size) or _START  # 0: to the end
            stream += bytes(data[start : start + min(length, _START - len(stream))])
            if len(stream) == _START or start >= len(data):
                break
        at = end
        if name in coded:
            yield stream


def _frame_size(stream: bytes) -> tuple[int, int] | None:
    """Find the sequence header in a stream; None if there is none."""
    at = 0
    for _ in range(_OTHERS_BEFORE):
        if at >= len(stream):
            return None
        kind, extended, sized = stream[at] >> 3 & 15, stream[at] >> 2 & 1, stream[at] >> 1 & 1
        at += 1 + extended
        length = len(stream) - at
        if sized:
            length = 0
            for place, byte in enumerate(stream[at : at + 8]):
                length |= (byte & 127) << 7 * place
                if byte < 128:
                    at += place + 1
                    break
        if kind == 1:
            return _sequence_header(_Bits(stream[at : at + length]))
        at += length
    return None


def _sequence_header(bits: _Bits) -> tuple[int, int]:
    """Read a sequence header up to the size (AV1 specification, 5.5.1)."""
    bits(4)  # profile, still picture
    if bits(1):  # the short form
        bits(5)  # level
    else:
        _operating_points(bits)
    of_width, of_height = bits(4) + 1, bits(4) + 1
    width = bits(of_width) + 1
    return bits(of_height) + 1, width


def _operating_points(bits: _Bits) -> None:
    """Skip what tells of time and of levels."""
    delay_bits = 0
    if bits(1):  # timing
        bits(64)
        if bits(1):  # frames of equal length: a number with as many bits as zeros before it
            zeros = 0
            while zeros < 32 and not bits(1):
                zeros += 1
            bits(zeros % 32)
        if bits(1):  # a model of the decoder
            delay_bits = bits(5) + 1
            bits(42)
    delayed = bits(1)
    for _ in range(bits(5) + 1):
        bits(12)
        if bits(5) > 7:  # level
            bits(1)
        if delay_bits and bits(1):
            bits(2 * delay_bits + 1)
        if delayed and bits(1):
            bits(4)
