"""Pixels on their way into rows."""

from typing import Any

import numpy as np
import pytest

from crumpets_like.broker.buffers import IntegerRows
from crumpets_like.workers.writing import PixelWriter

pytest.importorskip("cv2")

IMAGE = np.random.default_rng(0).integers(0, 256, (16, 20, 3), np.uint8)


def written(image: Any, spec: Any, **options: Any) -> Any:
    writer = PixelWriter("image", spec, **options)
    row = np.full((2, *writer.spec.shape), 7, writer.spec.dtype)
    if row.dtype.kind in "iu":
        row = row.view(IntegerRows)
    writer.write(image, row[1])
    assert (row[0] == 7).all()
    return np.asarray(row[1])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "i8", ">i4"])
def test_integers_keep_their_levels(dtype: str, channels: int) -> None:
    image = IMAGE[:, :, :channels]
    planes = written(image, ((channels, 16, 20), dtype))
    np.testing.assert_array_equal(planes, image.transpose(2, 0, 1))
    np.testing.assert_array_equal(written(image, ((16, 20, channels), dtype), layout="HWC"), image)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("channels", [1, 3])
def test_floats_are_scaled_and_normalised(dtype: str, layout: str, channels: int) -> None:
    image = IMAGE[:, ::-1, :channels]
    shape = (channels, 16, 20) if layout == "CHW" else (16, 20, channels)
    rtol = {"f2": 1e-3, "f8": 1e-12}.get(dtype, 1e-6)
    axes = (2, 0, 1) if layout == "CHW" else (0, 1, 2)
    plain = written(image, (shape, dtype), layout=layout)
    np.testing.assert_allclose(plain, (image / 255).transpose(axes), rtol=rtol)
    assert plain.min() >= 0.0
    assert plain.max() <= 1.0
    mean, std = (0.5, 0.25, 0.75)[:channels], (0.5, 2.0, 0.125)[:channels]
    normal = written(image, (shape, dtype), layout=layout, mean=mean, std=std)
    expected = ((image / 255 - mean) / std).transpose(axes)
    np.testing.assert_allclose(normal, expected, rtol=rtol, atol=rtol)
    one = written(image, (shape, dtype), layout=layout, mean=0.5)
    np.testing.assert_allclose(one, (image / 255 - 0.5).transpose(axes), rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("spec", "options", "background"),
    [
        (((3, 4, 4), np.uint8), {}, 0.0),
        (((3, 4, 4), np.uint8, 7), {}, 7.0),
        (((3, 4, 4), np.uint8, (1, 2, 3)), {}, (1.0, 2.0, 3.0)),
        (((4, 4, 3), np.uint8, (1, 2, 3)), {"layout": "HWC"}, (1.0, 2.0, 3.0)),
        (((1, 4, 4), np.uint8, (9,)), {}, 9.0),
        (((3, 4, 4), np.float32, 0.2), {}, 51.0),
        (((3, 4, 4), np.float32, 0.0), {"mean": (0.2, 0.4, 0.6), "std": 0.5}, (51, 102, 153)),
    ],
)
def test_fill_value_is_the_background(spec: Any, options: Any, background: Any) -> None:
    writer = PixelWriter("image", spec, **options)
    assert writer.background == pytest.approx(background)
    row = np.empty((1, *writer.spec.shape), writer.spec.dtype)
    writer.spec.fill(row)
    fill = spec[2] if len(spec) == 3 else None
    if fill is not None:
        shown = writer.planes(row[0])[:, 1, 2]
        np.testing.assert_allclose(shown, np.broadcast_to(fill, shown.shape), rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        (((4, 4), np.uint8), {}, r"photo must have a shape \(C, H, W\) with C 1 or 3.*\(4, 4\)"),
        (((4, 4, 3), np.uint8), {}, r"not \(4, 4, 3\) \(layout='CHW'\)"),
        (((3, 4, 4), np.uint8), {"layout": "HWC"}, r"\(H, W, C\) with C 1 or 3"),
        (((3, 0, 4), np.uint8), {}, "no side of 0"),
        (((3, 4, 4), np.int8), {}, "not int8"),
        (((3, 4, 4), np.bool_), {}, "not bool"),
        (((3, 4, 4), np.complex64), {}, "not complex64"),
        (((3, 4, 4), np.uint8, np.zeros((3, 4, 4))), {}, "so 3, not 48"),
        (((3, 4, 4), np.uint8, 300), {}, "photo's fill_value: values from 300 to 300"),
        (((3, 4, 4), np.uint8, (0, -1, 0)), {}, "photo's fill_value: values from -1 to 0"),
        (((3, 4, 4), np.float32, 124.0), {}, "within 0 and 1, the values.*not 124.0"),
        (((3, 4, 4), np.float32, 1.0), {"mean": 0.5, "std": 1.0}, "within -0.5 and 0.5"),
        (((3, 4, 4), np.float32, np.nan), {}, "not nan"),
        (((3, 4, 4), np.uint8), {"layout": "NCHW"}, r"layout must be one of \('CHW', 'HWC'\)"),
        (((3, 4, 4), np.uint8), {"mean": 0.5}, "floating dtypes; photo has uint8"),
        (((3, 4, 4), np.float32), {"mean": (0.5, 0.5)}, "mean must be .* so 3 for photo, not 2"),
        (((3, 4, 4), np.float32), {"mean": 124.0}, "mean must be within 0 and 1, not 124.0"),
        (((3, 4, 4), np.float32), {"std": 0.0}, "std must be finite and > 0, not 0.0"),
        (((3, 4, 4), np.float32), {"std": (1, np.nan, 1)}, "std must be finite"),
    ],
)
def test_wrong_specs_are_named(spec: Any, options: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PixelWriter("photo", spec, **options)


def test_what_is_no_spec() -> None:
    with pytest.raises(TypeError, match=r"photo: buffer must be \(shape, dtype\)"):
        PixelWriter("photo", (3, 4, 4, 4))
    with pytest.raises(ValueError, match=r"photo: fill_value of shape \(2,\)"):
        PixelWriter("photo", ((3, 4, 4), np.uint8, (1, 2)))


def test_image_of_another_size() -> None:
    writer = PixelWriter("photo", ((3, 4, 4), np.uint8))
    with pytest.raises(ValueError, match=r"shape \(16, 20, 3\) does not fit photo.*\(4, 4, 3\)"):
        writer.write(IMAGE, np.zeros((3, 4, 4), np.uint8))
