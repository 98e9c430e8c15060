"""Images out of bytes, files and arrays."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers.decoding import decode_image, image_size, read_image

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")
Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

HEIGHT, WIDTH = 53, 70
Pixels = NDArray[np.uint8]


def picture(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """A smooth colour picture without symmetry, so that JPEG keeps it nearly as it is."""
    rows, columns = np.mgrid[0:height, 0:width].astype(float)
    rows, columns = rows / height, columns / width
    planes = (230 * rows, 255 - 190 * columns, 90 * rows + 100 * columns * rows)
    return np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8)


def encode(pixels: Any, form: str, **options: Any) -> bytes:
    """Encode an array or a PIL image by Pillow."""
    stream = io.BytesIO()
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(stream, form, **options)
    return stream.getvalue()


def encode_cv2(pixels: NDArray[Any], extension: str) -> bytes:
    """Encode an array, in OpenCV's order of channels, by OpenCV, without loss."""
    options = [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000] if extension == ".jp2" else []
    done, encoded = cv2.imencode(extension, pixels, options)
    assert done
    return bytes(encoded)


def opened(data: bytes) -> Any:
    return Image.open(io.BytesIO(data))


def difference(one: Pixels, other: Pixels) -> int:
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())


FLAT = picture()[:, :, ::-1].copy()  # in OpenCV's order
LOSSLESS: dict[str, Callable[[], bytes]] = {
    "PNG": lambda: encode(picture(), "PNG"),
    "BMP": lambda: encode(picture(), "BMP"),
    "TIFF": lambda: encode(picture(), "TIFF"),
    "TIFF, LZW": lambda: encode(picture(), "TIFF", compression="tiff_lzw"),
    "BigTIFF": lambda: encode(picture(), "TIFF", big_tiff=True),
    "PPM": lambda: encode(picture(), "PPM"),
    "WebP": lambda: encode(picture(), "WEBP", lossless=True),
    "JPEG 2000": lambda: encode(picture(), "JPEG2000"),
    "JPEG 2000, bare": lambda: encode(picture(), "JPEG2000", no_jp2=True),
    "PAM": lambda: encode_cv2(FLAT, ".pam"),
    "Sun": lambda: encode_cv2(FLAT, ".ras"),
    "PFM": lambda: encode_cv2(FLAT.astype(np.float32) / 255, ".pfm"),
}
LOSSY: dict[str, tuple[Callable[[], bytes], int]] = {
    "JPEG": (lambda: encode(picture(), "JPEG", quality=98), 8),
    "JPEG, progressive": (lambda: encode(picture(), "JPEG", quality=98, progressive=True), 8),
    "WebP, lossy": (lambda: encode(picture(), "WEBP", quality=98), 10),
    "AVIF": (lambda: encode(picture(), "AVIF", quality=98), 8),
    "Radiance": (lambda: encode_cv2(FLAT.astype(np.float32) / 255, ".hdr"), 3),
    "TIFF, JPEG": (lambda: encode(picture(), "TIFF", compression="jpeg", quality=98), 8),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_come_back_exactly_in_rgb(name: str) -> None:
    data = LOSSLESS[name]()
    decoded = decode_image(data)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    np.testing.assert_array_equal(decoded, picture())
    assert image_size(data) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_formats_come_back_nearly_in_rgb(name: str) -> None:
    make, tolerance = LOSSY[name]
    data = make()
    assert difference(decode_image(data), picture()) <= tolerance
    assert image_size(data) == (HEIGHT, WIDTH)


@pytest.mark.parametrize("form", ["GIF", "PNG", "TIFF", "BMP"])
def test_palettes_are_resolved(form: str) -> None:
    data = encode(Image.fromarray(picture()).quantize(50), form)
    assert opened(data).mode == "P"
    np.testing.assert_array_equal(decode_image(data), opened(data).convert("RGB"))


def animation(form: str) -> bytes:
    """Encode three different frames."""
    first, *others = (Image.fromarray(np.roll(picture(), 20 * n, axis=1)) for n in range(3))
    options = {"lossless": True} if form == "WEBP" else {}
    return encode(first, form, save_all=True, append_images=others, **options)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_animations_give_their_first_frame(form: str) -> None:
    data = animation(form)
    assert opened(data).n_frames == 3
    np.testing.assert_array_equal(decode_image(data), opened(data).convert("RGB"))


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "JPEG", "JPEG2000", "PPM", "AVIF"])
def test_grey_files_as_colour(form: str) -> None:
    grey = picture()[:, :, 2]
    options = {"quality": 98} if form in ("JPEG", "AVIF") else {}
    data = encode(grey, form, **options)
    tolerance = 4 if options else 0
    assert difference(decode_image(data), np.dstack((grey, grey, grey))) <= tolerance
    assert difference(decode_image(data, color=False), grey[:, :, np.newaxis]) <= tolerance


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP", "JPEG", "WEBP", "GIF"])
def test_colour_files_as_grey(form: str) -> None:
    options = {"quality": 98} if form in ("JPEG", "WEBP") else {}
    data = encode(picture(), form, **options)
    expected = np.asarray(opened(data).convert("RGB").convert("L"))
    decoded = decode_image(data, color=False)
    assert difference(decoded, expected[:, :, np.newaxis]) <= 2


def test_one_bit_per_pixel() -> None:
    bits = Image.fromarray(picture()).convert("1")
    expected = np.asarray(bits.convert("RGB"))
    for form in ("PNG", "TIFF", "BMP", "PPM"):
        np.testing.assert_array_equal(decode_image(encode(bits, form)), expected)


ALPHA = np.dstack((picture(), np.linspace(0, 255, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)))


@pytest.mark.parametrize(
    ("form", "options"), [("PNG", {}), ("TIFF", {}), ("WEBP", {"lossless": True}), ("JPEG2000", {})]
)
def test_alpha_goes_over_the_background(form: str, options: dict[str, Any]) -> None:
    data = encode(ALPHA.astype(np.uint8), form, **options)
    behind = Image.new("RGBA", (WIDTH, HEIGHT), (10, 200, 30, 255))
    behind.alpha_composite(opened(data).convert("RGBA"))
    expected = np.asarray(behind.convert("RGB"))
    decoded = decode_image(data, background=(10, 200, 30))
    assert difference(decoded, expected) <= 1
    grey = decode_image(data, color=False, background=(10, 200, 30))
    assert difference(grey, np.asarray(Image.fromarray(expected).convert("L"))[..., None]) <= 2


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_a_transparent_palette_entry_shows_the_background(form: str) -> None:
    image = Image.fromarray(picture()).quantize(20)
    data = encode(image, form, transparency=7)
    decoded = decode_image(data, background=99)
    through = np.asarray(image) == 7
    assert through.any()
    assert (decoded[through] == 99).all()
    np.testing.assert_array_equal(decoded[~through], np.asarray(image.convert("RGB"))[~through])


@pytest.mark.parametrize("extension", [".png", ".tif", ".jp2", ".ppm"])
def test_sixteen_bits_become_eight(extension: str) -> None:
    deep = np.random.default_rng(0).integers(0, 2**16, (40, 50, 3), dtype=np.uint16)
    deep[0, :3] = [[0], [65535], [32768]]
    expected = np.rint(deep[:, :, ::-1] / 257).astype(np.uint8)
    assert difference(decode_image(encode_cv2(deep, extension)), expected) <= 1
    grey = decode_image(encode_cv2(deep[:, :, 0], extension.replace("ppm", "pgm")), color=False)
    assert difference(grey[:, :, 0], expected[:, :, 2]) <= 1


def test_sixteen_bits_with_alpha() -> None:
    deep = np.full((4, 5, 4), (65535, 0, 0, 32896), np.uint16)  # half transparent blue
    decoded = decode_image(encode_cv2(deep, ".png"), background=(255, 0, 0))
    assert difference(decoded, np.full((4, 5, 3), (127, 0, 128), np.uint8)) <= 1


def test_alpha_in_tiff_files_of_other_kinds() -> None:
    deep = np.full((4, 5, 4), (65535, 0, 0, 32896), np.uint16)  # not told to be multiplied
    decoded = decode_image(encode_cv2(deep, ".tif"), background=(255, 0, 0))
    assert difference(decoded, np.full((4, 5, 3), (127, 0, 128), np.uint8)) <= 1
    grey = Image.fromarray(picture()).convert("LA")
    with pytest.raises(ValueError, match="grey TIFF with alpha"):
        decode_image(encode(grey, "TIFF"))


def test_floats_are_clipped() -> None:
    data = encode_cv2(np.array([[-1.0, 0.5, 7.0, np.nan]], np.float32), ".pfm")
    assert decode_image(data, color=False).ravel().tolist() == [0, 128, 255, 0]


def without_segments(data: bytes, marker: int) -> bytes:
    """Take segments of one kind out of a JPEG."""
    kept, at = bytearray(data[:2]), 2
    while data[at + 1] != 0xDA:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != marker:
            kept += data[at : at + 2 + length]
        at += 2 + length
    return bytes(kept) + data[at:]


def test_cmyk_jpegs_have_the_colours_that_pillow_gives_them() -> None:
    cmyk = Image.fromarray(picture()).convert("CMYK")
    plain = encode(cmyk, "JPEG", quality=98)
    # Adobe's programs write YCCK, with all inks inverted.
    ycck = simplejpeg.encode_jpeg(255 - np.asarray(cmyk), quality=98, colorspace="CMYK")
    assert simplejpeg.decode_jpeg_header(ycck)[2] == "YCCK"
    for data in (plain, without_segments(plain, 0xEE), ycck):
        assert opened(data).mode == "CMYK"
        assert difference(decode_image(data), np.asarray(opened(data).convert("RGB"))) <= 3
        assert difference(decode_image(data), picture()) <= 12
        grey = np.asarray(opened(data).convert("RGB").convert("L"))
        assert difference(decode_image(data, color=False)[:, :, 0], grey) <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {"quality": 98}),
        ("PNG", {}),
        ("TIFF", {}),
        ("WEBP", {"lossless": True}),
        ("AVIF", {"quality": 98}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_images_come_out_upright(form: str, options: dict[str, Any], orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(picture(), form, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB"))
    assert (expected.shape[0] == WIDTH) == (orientation > 4)
    decoded = decode_image(data)
    assert difference(decoded, expected) <= (6 if "quality" in options else 0)
    assert image_size(data) == decoded.shape[:2]
    assert difference(decode_image(data, color=False)[:, :, 0], expected[:, :, 0]) < 256


@pytest.mark.parametrize("order", [b"II", b"MM"])
@pytest.mark.parametrize(("value", "upright"), [(6, False), (0, True), (9, True), (65535, True)])
def test_orientations_out_of_range_are_ignored(order: bytes, value: int, upright: bool) -> None:
    name = {b"II": "little", b"MM": "big"}[order]
    numbers = [(42, 2), (8, 4), (1, 2), (0x112, 2), (3, 2), (1, 4), (value, 2), (0, 6)]
    block = order + b"".join(number.to_bytes(size, name) for number, size in numbers)
    payload = b"Exif\0\0" + block
    segment = b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload
    data = encode(picture(), "JPEG")
    size = (HEIGHT, WIDTH) if upright else (WIDTH, HEIGHT)
    assert image_size(data[:2] + segment + data[2:]) == size
    cut = b"\xff\xe1" + (12).to_bytes(2, "big") + payload[:10]
    assert image_size(data[:2] + cut + data[2:]) == (HEIGHT, WIDTH)


def test_a_scaled_decode_is_never_smaller_than_asked() -> None:
    data = encode(picture(427, 640), "JPEG")
    for height in range(1, 428, 7):
        for width in (1, height, 640):
            decoded = decode_image(data, min_size=(height, width))
            assert decoded.shape[0] >= height
            assert decoded.shape[1] >= width
    assert decode_image(data, min_size=(54, 80)).shape == (54, 80, 3)
    assert decode_image(data, min_size=(55, 80)).shape[0] > 54
    assert decode_image(data, min_size=(54, 81)).shape[0] > 54
    assert decode_image(data, min_size=(1, 1)).shape == (54, 80, 3)
    assert decode_image(data, min_size=(9999, 9999)).shape == (427, 640, 3)
    assert decode_image(data, color=False, min_size=(1, 1)).shape == (54, 80, 1)


def test_other_formats_and_arrays_are_decoded_in_full() -> None:
    data = encode(picture(), "PNG")
    assert decode_image(data, min_size=(5, 5)).shape == (HEIGHT, WIDTH, 3)
    assert decode_image(picture(), min_size=(5, 5)).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1)])
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_extreme_sizes(form: str, size: tuple[int, int]) -> None:
    data = encode(np.full((*size, 3), 77, np.uint8), form)
    assert image_size(data) == size
    assert difference(decode_image(data), np.full((*size, 3), 77, np.uint8)) <= 1
    small = decode_image(data, min_size=(1, 1))
    assert min(small.shape[:2]) == 1


def test_every_holder_of_encoded_bytes(tmp_path: Path) -> None:
    data = encode(picture(), "PNG")
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    encoded = np.frombuffer(data, np.uint8)
    spaced = np.zeros(2 * len(data), np.uint8)
    spaced[::2] = encoded
    holders = (data, bytearray(data), memoryview(data), encoded, spaced[::2], path, str(path))
    for holder in (*holders, memoryview(spaced)[::2], read_image(path), read_image(data)):
        np.testing.assert_array_equal(decode_image(holder), picture())
        assert image_size(holder) == (HEIGHT, WIDTH)


def test_a_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(encode(picture(), "PNG"))
    image = read_image(path)
    path.unlink()
    assert image_size(image) == (HEIGHT, WIDTH)
    np.testing.assert_array_equal(decode_image(image), picture())


def test_decoded_arrays_pass_without_a_copy() -> None:
    colour, grey = picture(), picture()[:, :, 0].copy()
    assert np.shares_memory(decode_image(colour), colour)
    assert np.shares_memory(decode_image(grey, color=False), grey)
    assert decode_image(grey, color=False).shape == (HEIGHT, WIDTH, 1)
    assert decode_image(grey[:, :, np.newaxis], color=False).shape == (HEIGHT, WIDTH, 1)
    np.testing.assert_array_equal(decode_image(grey), np.dstack((grey, grey, grey)))
    np.testing.assert_array_equal(decode_image(grey[:, ::-1])[:, :, 1], grey[:, ::-1])
    expected = np.asarray(Image.fromarray(colour).convert("L"))
    assert difference(decode_image(colour, color=False)[:, :, 0], expected) <= 1
    alpha = np.dstack((colour, np.zeros_like(grey)))
    assert (decode_image(alpha, background=(1, 2, 3)) == (1, 2, 3)).all()
    for array in (colour, grey, alpha):
        assert image_size(array) == (HEIGHT, WIDTH)


JPEG = encode(picture(), "JPEG")


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"", r"empty \(0 bytes\)"),
        (np.zeros(0, np.uint8), r"empty \(0 bytes\)"),
        (b"no image at all", r"15 bytes that start with b'no image'; known formats are JPEG, PNG"),
        (b"\0" * 100, "not an image: 100 bytes"),
        (b"%PDF-1.7 and so on", "not an image"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not an image"),
        (JPEG[:-2], r"broken JPEG of [\d,]+ bytes: Premature end"),
        (JPEG[: len(JPEG) // 2], "JPEG of"),
        (JPEG[:3], "truncated JPEG of 3 bytes"),
        (JPEG[:2] + JPEG[-2:], "JPEG"),
        (JPEG[:2] + b"\xff\xd9\0\0", "no frame header"),
        (JPEG[:20] + b"\0" * 500, "no marker at byte 20"),
        (np.zeros((4, 4, 3), np.float32), r"float32 of shape \(4, 4, 3\)"),
        (np.zeros((4, 4, 2), np.uint8), r"uint8 of shape \(4, 4, 2\)"),
        (np.zeros((1, 4, 4, 3), np.uint8), r"shape \(1, 4, 4, 3\)"),
        (np.zeros((), np.uint8), r"shape \(\)"),
        (np.zeros((0, 4, 3), np.uint8), r"no pixels: its shape is \(0, 4, 3\)"),
        (np.zeros(9, np.int16), "uint8, not int16"),
    ],
)
def test_broken_images_say_why(image: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_image(image)


def test_broken_files_are_named(tmp_path: Path) -> None:
    for name, data in (("half.jpg", JPEG[: len(JPEG) // 2]), ("empty.png", b""), ("a.txt", b"a")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ValueError, match=name):
            decode_image(path)
    with pytest.raises(ValueError, match=r"empty.*empty\.png"):
        image_size(tmp_path / "empty.png")
    with pytest.raises(FileNotFoundError, match=r"none\.jpg"):
        decode_image(tmp_path / "none.jpg")
    with pytest.raises(IsADirectoryError):
        decode_image(tmp_path)


@pytest.mark.parametrize("image", [None, 3, [[1, 2], [3, 4]]])
def test_other_types_are_refused(image: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(image).__name__}"):
        decode_image(image)


WHOLE = {
    **LOSSLESS,
    **{name: make for name, (make, _) in LOSSY.items()},
    "GIF": lambda: encode(Image.fromarray(picture()).quantize(50), "GIF"),
    "GIF, interlaced": lambda: encode(Image.fromarray(picture()).quantize(50), "GIF", interlace=1),
    "PBM": lambda: encode(Image.fromarray(picture()).convert("1"), "PPM"),
    "PGM": lambda: encode(picture()[:, :, 0], "PPM"),
    "GIF, animated": lambda: animation("GIF"),
    "PNG, animated": lambda: animation("PNG"),
    "WebP, animated": lambda: animation("WEBP"),
    "WebP, alpha": lambda: encode(ALPHA.astype(np.uint8), "WEBP"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_truncated_files_are_errors_not_pictures(name: str) -> None:
    data = WHOLE[name]()
    whole = decode_image(data)
    errors = 0
    cuts = [*range(0, len(data), max(1, len(data) // 40)), *range(len(data) - 12, len(data))]
    for cut in cuts:
        try:
            decoded = decode_image(data[:cut])
        except ValueError:
            errors += 1
        else:  # nothing of the picture was cut off
            np.testing.assert_array_equal(decoded, whole)
            assert cut > len(data) - 64
    assert errors >= 40


@pytest.mark.parametrize("name", WHOLE)
def test_changed_bytes_give_a_value_error_or_a_picture(name: str) -> None:
    whole = WHOLE[name]()
    generator = np.random.default_rng(len(whole))
    for _ in range(60):
        data = bytearray(whole)
        for at in generator.integers(min(len(data), 300), size=3):
            data[at] = generator.integers(256)
        try:
            size = image_size(bytes(data))
            assert decode_image(bytes(data), max_pixels=10**6).shape == (*size, 3)
        except ValueError:
            pass


def test_a_header_that_does_not_fit_the_pixels_is_an_error() -> None:
    box = b"freeispe" + b"".join(side.to_bytes(4, "big") for side in (0, 99, 88))
    data = encode(picture(), "AVIF") + (len(box) + 4).to_bytes(4, "big") + box
    with pytest.raises(ValueError, match="states 99 x 88 pixels, but 70 x 53 were decoded"):
        decode_image(data)


def test_a_changed_byte_in_a_png_is_an_error() -> None:
    data = bytearray(encode(picture(), "PNG"))
    data[len(data) // 2] ^= 0x55
    with pytest.raises(ValueError, match="broken PNG"):
        decode_image(bytes(data))


def test_bytes_around_the_end_of_a_jpeg_are_let_through() -> None:
    whole = decode_image(JPEG)
    np.testing.assert_array_equal(decode_image(JPEG + b"anything"), whole)
    np.testing.assert_array_equal(decode_image(JPEG[:-2] + bytes(64) + JPEG[-2:]), whole)
    restarts = encode(picture(), "JPEG", restart_marker_blocks=1)
    end = restarts.rindex(b"\xff\xd3")
    with pytest.raises(ValueError, match="extraneous bytes before marker 0xd9"):
        decode_image(restarts[:end] + bytes(64) + restarts[-2:])


def bomb(form: str) -> bytes:
    """A few bytes that state a size of 30,000 x 40,000 pixels."""
    sides = (30_000).to_bytes(4, "big") + (40_000).to_bytes(4, "big")
    if form == "PNG":
        data = bytearray(encode(picture(), "PNG"))
        data[16:24] = sides
    elif form == "JPEG":
        data = bytearray(JPEG)
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = sides[6:] + sides[2:4]
    elif form == "GIF":
        data = bytearray(encode(Image.fromarray(picture()).quantize(9), "GIF"))
        data[6:10] = (30_000).to_bytes(2, "little") + (40_000).to_bytes(2, "little")
    else:
        data = bytearray(b"P6 30000 # wide\n40000\n255\n")
    return bytes(data)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "PPM"])
def test_bombs_are_refused_before_they_are_decoded(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise AssertionError("the bomb was decoded")

    monkeypatch.setattr(cv2, "imdecode", explode)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", explode)
    assert image_size(bomb(form)) == (40_000, 30_000)
    with pytest.raises(ValueError, match=r"30,000 x 40,000 .* max_pixels = 268,435,456"):
        decode_image(bomb(form))


def test_max_pixels_is_the_number_of_pixels() -> None:
    data = encode(picture(), "PNG")
    assert decode_image(data, max_pixels=HEIGHT * WIDTH).shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(ValueError, match="max_pixels"):
        decode_image(data, max_pixels=HEIGHT * WIDTH - 1)
