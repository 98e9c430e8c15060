"""Portable grey and colour maps, whose header states the value of white."""

from __future__ import annotations

import pytest

from crumpets_like.workers.decoding import decode_image

pytest.importorskip("cv2")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"P5\n2 1\n1023\n\x03\xff\x01\xff", [255, 127]),
        (b"P5 # 7 7 7\n2 1\n100\n\x64\x32", [255, 128]),
        (b"P5\n2 1\n1\n\x01\x00", [255, 0]),
        (b"P5\n2 1\n255\n\x64\x32", [100, 50]),
        (b"P5\n2 1\n65535\n\xff\xff\x80\x00", [255, 128]),
        (b"P2\n2 1\n1023\n1023 511\n", [255, 127]),
        (b"P2\n2 1\n100\n100 0\n", [255, 0]),
        (
            b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 1\nMAXVAL 100\nTUPLTYPE GRAYSCALE\nENDHDR\n\x64\x32",
            [255, 128],
        ),
    ],
)
def test_white_is_what_the_header_of_a_netpbm_file_states(data: bytes, expected: list[int]) -> None:
    assert decode_image(data, color=False).ravel().tolist() == expected


def test_white_of_netpbm_colours() -> None:
    ten_bits = b"P6\n1 1\n1023\n\x03\xff\x01\xff\0\0"
    for data in (ten_bits, b"P6\n1 1\n100\n\x64\x32\x00"):
        assert abs(decode_image(data).ravel().astype(int) - [255, 127.5, 0]).max() < 1


def test_a_black_and_white_pam_is_refused() -> None:
    header = b"P7\nWIDTH 2\nHEIGHT 1\nDEPTH 1\nMAXVAL 1\nTUPLTYPE BLACKANDWHITE\nENDHDR\n"
    with pytest.raises(ValueError, match="black and white PAM"):
        decode_image(header + b"\1\0")


def test_a_white_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="Netpbm"):
        decode_image(b"P5\n2 1\n0\n\0\0")
