"""SegmentationWorker: masks are read as they are, and move with their images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers import SegmentationWorker
from crumpets_like.workers.segmentation import decode_mask, warp_mask
from tests.support.markers import GEOMETRIES, SOURCE, centroid, painted, read

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
Image = pytest.importorskip("PIL.Image")

IMAGE = ((3, 96, 96), np.uint8)
MASK = ((96, 96), np.int64, 255)
BOX = (60, 40, 84, 64)


def make_worker(target_image: Any = MASK, **options: Any) -> SegmentationWorker:
    return SegmentationWorker(IMAGE, target_image, **options)


def sample_of(*box: int) -> dict[str, Any]:
    """A picture with a box, and its mask: 3 in the box, 1 elsewhere."""
    picture = painted(*box)
    return {"image": picture, "target_image": np.where(picture[:, :, 0], 3, 1).astype(np.uint8)}


def png(labels: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(labels).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_marker_is_at_the_same_place_in_image_and_mask(name: str) -> None:
    mini_batch = read(make_worker(image_params=GEOMETRIES[name]), sample_of(*BOX))
    in_image = centroid(mini_batch["image"][0].mean(axis=0))
    mask = mini_batch["target_image"][0]
    assert set(np.unique(mask)) <= {1, 3, 255}
    np.testing.assert_allclose(centroid(mask == 3), in_image, atol=0.5)
    marker = int((mini_batch["image"][0, 0] > 127).sum())
    assert abs(int((mask == 3).sum()) - marker) <= 0.06 * marker


def test_results_are_those_of_the_images_own_random_parameters() -> None:
    def drawn(image: Any, buffer: Any, generator: np.random.Generator) -> dict[str, Any]:
        return {"angle": generator.uniform(-40, 40), "hmirror": bool(generator.integers(2))}

    samples = [sample_of(*BOX)] * 6
    mini_batch = read(make_worker(image_rng=drawn), *samples)
    for row, params in enumerate(mini_batch["augmentation"]):
        fixed = {key: params[key] for key in ("angle", "hmirror")}
        alone = read(make_worker(image_params=fixed), samples[0])
        np.testing.assert_array_equal(mini_batch["target_image"][row], alone["target_image"][0])
    assert len({params["angle"] for params in mini_batch["augmentation"]}) == 6


def test_pixel_operations_leave_the_mask_alone() -> None:
    geometry = GEOMETRIES["all"]
    pixels = {"gamma_gray": 2.0, "contrast": 0.5, "noise": 0.2, "blur": 0.05, "colorspace": "hsv"}
    plain = read(make_worker(image_params=geometry), sample_of(*BOX))
    other = read(make_worker(image_params={**geometry, **pixels}), sample_of(*BOX))
    assert not np.array_equal(plain["image"], other["image"])
    np.testing.assert_array_equal(plain["target_image"], other["target_image"])


@pytest.mark.parametrize(
    "shape", [(24, 24), (48, 96), (1, 31, 57), (192, 192)], ids=lambda shape: str(shape)
)
def test_a_mask_of_another_resolution_shows_the_same(shape: tuple[int, ...]) -> None:
    worker = make_worker((shape, np.uint8, 255), image_params=GEOMETRIES["turned"])
    mini_batch = read(worker, sample_of(*BOX))
    mask = mini_batch["target_image"][0].reshape(shape[-2:])
    ratio = np.array([shape[-1] / 96, shape[-2] / 96])
    expected = (centroid(mini_batch["image"][0, 0]) + 0.5) * ratio - 0.5
    np.testing.assert_allclose(centroid(mask == 3), expected, atol=0.5)


@pytest.mark.parametrize(
    ("target", "params", "expected"),
    [
        (((96, 96), np.uint8, 255), None, 255),
        (((1, 96, 96), np.int64, -1), None, -1),
        (((96, 96), np.int32, -100), None, -100),
        (((96, 96), np.uint8), None, 0),
        (((96, 96), np.int16, 7), {"background": 300}, 300),
    ],
)
def test_outside_of_the_image_is_the_fill_value(target: Any, params: Any, expected: int) -> None:
    worker = make_worker(target, image_params={"scale_mode": "longest"}, target_image_params=params)
    mask = read(worker, sample_of(*BOX))["target_image"][0].reshape(96, 96)
    # 120 x 160 pixels become 72 x 96, with 12 rows above and below.
    assert (mask[:12] == expected).all()
    assert (mask[84:] == expected).all()
    assert set(np.unique(mask[12:84])) == {1, 3}


def test_an_image_moved_out_of_sight_leaves_the_fill_value() -> None:
    matrix = np.array([[1.0, 0.0, 500.0], [0.0, 1.0, 0.0]])
    assert (warp_mask(np.ones((4, 4), np.uint8), (9, 9), matrix, 255) == 255).all()


def nearest(
    mask: NDArray[Any], size: tuple[int, int], matrix: NDArray[np.float64], outside: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Nearest pixels one by one, and where a neighbour is about as near."""
    whole = np.linalg.inv(np.vstack((matrix, [0.0, 0.0, 1.0])))
    rows, columns = np.mgrid[0 : size[0], 0 : size[1]]
    x = whole[0, 0] * columns + whole[0, 1] * rows + whole[0, 2]
    y = whole[1, 0] * columns + whole[1, 1] * rows + whole[1, 2]
    close = (np.abs(x % 1 - 0.5) < 0.01) | (np.abs(y % 1 - 0.5) < 0.01)
    column, row = np.rint(x).astype(int), np.rint(y).astype(int)
    inside = (column >= 0) & (column < mask.shape[1]) & (row >= 0) & (row < mask.shape[0])
    found = np.full(size, outside)
    found[inside] = mask[row[inside], column[inside]]
    return found, close


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.int64]
)
def test_each_pixel_is_the_nearest_one(dtype: Any) -> None:
    generator = np.random.default_rng(0)
    for _ in range(4):
        mask = generator.integers(0, 2 if dtype == np.bool_ else 120, (50, 70)).astype(dtype)
        matrix = np.column_stack((np.eye(2) + generator.uniform(-0.6, 0.6, (2, 2)), [5.0, 3.0]))
        found = warp_mask(mask, (40, 60), matrix, -1)
        expected, close = nearest(mask, (40, 60), matrix, -1)
        assert close.mean() < 0.2
        np.testing.assert_array_equal(found[~close], expected[~close])


def test_a_very_wide_mask() -> None:
    mask = np.arange(80_000).reshape(1, 80_000) // 1000
    matrix = np.array([[1.0, 0.0, -70_000.0], [0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(warp_mask(mask, (1, 5000), matrix), mask[:, 70_000:75_000])


def test_a_quarter_turn_is_exact() -> None:
    labels = np.random.default_rng(0).integers(0, 256, (96, 96)).astype(np.uint8)
    sample = {"image": np.zeros((96, 96, 3), np.uint8), "target_image": labels}
    for params, expected in (
        ({}, labels),
        ({"angle": 90.0}, np.rot90(labels)),
        ({"hmirror": True}, labels[:, ::-1]),
        ({"vmirror": True}, labels[::-1]),
    ):
        found = read(make_worker(image_params=params), sample)["target_image"][0]
        np.testing.assert_array_equal(found, expected)


def test_the_numbers_in_the_file_are_kept() -> None:
    labels = np.random.default_rng(0).integers(0, 256, SOURCE).astype(np.uint8)
    palette = Image.fromarray(labels, "L").convert("P")
    palette.putpalette(np.random.default_rng(1).integers(0, 256, 768).astype(np.uint8).tobytes())
    palette.putdata(labels.ravel().tolist())
    stream = io.BytesIO()
    palette.save(stream, "PNG")
    np.testing.assert_array_equal(decode_mask(stream.getvalue(), SOURCE), labels)
    np.testing.assert_array_equal(decode_mask(png(labels), SOURCE), labels)
    deep = labels.astype(np.uint16) * 250 + 3
    np.testing.assert_array_equal(decode_mask(png(deep), SOURCE), deep)
    two = labels > 100
    np.testing.assert_array_equal(decode_mask(png(two), SOURCE), two)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_few_bits_are_not_spread(bits: int) -> None:
    cv2 = pytest.importorskip("cv2")
    labels = np.random.default_rng(0).integers(0, 2**bits, (8, 16)).astype(np.uint8)
    small = Image.fromarray(labels, "P")
    small.putpalette([0, 0, 0] * 2**bits)
    stream = io.BytesIO()
    small.save(stream, "PNG", bits=bits)
    np.testing.assert_array_equal(decode_mask(stream.getvalue(), (8, 16)), labels)
    # The same as grey: a file without its palette, and with another colour type.
    grey = grey_png(labels, bits)
    assert cv2.imdecode(np.frombuffer(grey, np.uint8), cv2.IMREAD_UNCHANGED).max() == 255
    np.testing.assert_array_equal(decode_mask(grey, (8, 16)), labels)


def grey_png(labels: NDArray[np.uint8], bits: int) -> bytes:
    """A grey PNG of few bits per pixel, which Pillow and OpenCV do not write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    height, width = labels.shape
    shifts = np.arange(bits - 1, -1, -1)
    packed = np.packbits((labels[:, :, np.newaxis] >> shifts & 1).reshape(height, -1), axis=1)
    rows = b"".join(b"\0" + row.tobytes() for row in packed)
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_every_holder_of_a_mask(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 256, SOURCE).astype(np.uint8)
    data = png(labels)
    path = tmp_path / "mask.png"
    path.write_bytes(data)
    encoded = np.frombuffer(data, np.uint8)
    for holder in (data, bytearray(data), memoryview(data), encoded, path, str(path), labels):
        np.testing.assert_array_equal(decode_mask(holder, SOURCE), labels)
    assert decode_mask(labels, SOURCE) is labels


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_orientation_in_the_metadata_is_applied(form: str) -> None:
    labels = np.random.default_rng(0).integers(0, 9, SOURCE).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = np.rot90(labels, -1)
    stream = io.BytesIO()
    Image.fromarray(labels).save(stream, form, exif=exif)
    np.testing.assert_array_equal(decode_mask(stream.getvalue(), (160, 120)), turned)


def test_an_image_that_is_turned_has_a_mask_as_it_is_seen() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.fromarray(painted(*BOX)).save(stream, "JPEG", quality=95, exif=exif)
    mask = np.rot90(np.where(painted(*BOX)[:, :, 0], 3, 1), -1)
    sample = {"image": stream.getvalue(), "target_image": mask}
    mini_batch = read(make_worker(), sample)
    expected = centroid(mini_batch["image"][0, 0] > 127)
    np.testing.assert_allclose(centroid(mini_batch["target_image"][0] == 3), expected, atol=0.5)


def as_jpeg(labels: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(labels).save(stream, "JPEG")
    return stream.getvalue()


def damaged(data: bytes) -> bytes:
    """A PNG whose pixels cannot be unpacked, though all its parts are there."""
    at = data.index(b"IDAT") + 8
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 8]) + data[at + 8 :]


GREY = np.zeros(SOURCE, np.uint8)


@pytest.mark.parametrize(
    ("mask", "error", "reason"),
    [
        (np.zeros((120, 161), np.uint8), ValueError, "120 x 161 .*its image has 120 x 160"),
        (png(np.zeros((90, 160), np.uint8)), ValueError, "90 x 160 .*120 x 160"),
        (png(np.zeros((160, 120), np.uint8)), ValueError, "160 x 120 .*120 x 160"),
        # The size is in the header: what has another one is not decoded.
        (damaged(png(np.zeros((90, 160), np.uint8))), ValueError, "90 x 160"),
        (png(painted(*BOX)), ValueError, "channels RGB"),
        (as_jpeg(GREY), ValueError, "JPEG keeps no exact class numbers"),
        (damaged(png(GREY)), ValueError, "broken mask of [0-9]+ bytes"),
        (png(GREY)[:60], ValueError, "mask: truncated PNG of 60 bytes"),
        (b"", ValueError, r"mask: .* empty \(0 bytes\)"),
        (b"no image at all", ValueError, "mask: not an image: 15 bytes"),
        (np.zeros(SOURCE, np.float32), ValueError, "float32"),
        (np.zeros((*SOURCE, 3), np.uint8), ValueError, r"shape \(120, 160, 3\)"),
        (np.zeros(4, np.int64), ValueError, "mask: .*not int64"),
        (None, TypeError, "mask: .*not NoneType"),
        (np.full(SOURCE, 2**40), ValueError, "must fit int32"),
        (np.full(SOURCE, 300), OverflowError, "300"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_masks_that_cannot_be_used(mask: Any, error: type[Exception], reason: str) -> None:
    sample = {"image": painted(*BOX), "target_image": mask}
    with pytest.raises(error, match=reason):
        read(make_worker(((96, 96), np.uint8)), sample)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.png"
    for data in (png(GREY)[:60], damaged(png(GREY)), png(GREY[1:])):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"mask.*half\.png"):
            decode_mask(path, SOURCE)
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        decode_mask(tmp_path / "none.png", SOURCE)


@pytest.mark.parametrize(
    ("target", "params", "reason"),
    [
        (((96, 96), np.float32), None, "integer dtype, not float32"),
        (((3, 96, 96), np.uint8), None, r"shape \(H, W\) or \(1, H, W\).*\(3, 96, 96\)"),
        (((0, 96), np.uint8), None, r"no side of 0, not \(0, 96\)"),
        (MASK, {"angle": 3}, "unknown parameters angle; known is background"),
        (((96, 96), np.uint8), {"background": 256}, "one integer that uint8 holds, not 256"),
        (MASK, {"background": 0.5}, "one integer that int64 holds, not 0.5"),
        (((96, 96), np.uint8, np.zeros(96)), None, "one integer"),
    ],
)
def test_wrong_arguments_are_named(target: Any, params: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make_worker(target, target_image_params=params)


def test_a_sample_without_a_mask() -> None:
    with pytest.raises(ValueError, match="no 'target_image'; its keys are 'image', 'mask'"):
        read(make_worker(), {"image": painted(*BOX), "mask": GREY})


def test_missing_pillow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crumpets_like.workers.segmentation.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"Pillow.*crumpets-like\[image\]"):
        make_worker()


@pytest.mark.parametrize("dtype", [np.int64, np.uint32, np.uint64])
def test_values_outside_are_within_int32(dtype: Any) -> None:
    image, most = ((3, 8, 8), np.uint8), 2**31 - 1
    SegmentationWorker(image, ((8, 8), dtype, most))
    for arguments in (((8, 8), dtype, most + 1),), (((8, 8), dtype), None, {"background": 2**31}):
        with pytest.raises(ValueError, match="outside the image must fit int32, not 2147483648"):
            SegmentationWorker(image, *arguments)
    with pytest.raises(ValueError, match="outside must fit int32, not 1099511627776"):
        warp_mask(np.zeros((4, 4), np.uint8), (8, 8), np.eye(2, 3), 2**40)
