"""ImageWorker: what it reads, draws, records and writes."""

import json
import subprocess
import sys
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like.workers import ImageWorker, MixtureRNG, UniformRNG, randomize_image
from crumpets_like.workers.geometry import make_transform
from crumpets_like.workers.parameters import DEFAULTS, PARAMETERS, geometry_of
from crumpets_like.workers.pixels import apply_pixels
from crumpets_like.workers.warping import warp
from tests.support.preparing import make_rows, prepare

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")

SPEC = ((3, 24, 32), np.uint8)


def picture(height: int = 60, width: int = 80) -> NDArray[np.uint8]:
    """Smooth, so that JPEG keeps it nearly as it is."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = (
        255 * rows / height,
        255 - 255 * columns / width,
        127.5 * (rows / height + columns / width),
    )
    return np.rint(np.stack(planes, axis=-1)).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    data: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=98)
    return data


def png(pixels: NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".png", pixels[:, :, ::-1])[1].tobytes())


def image_of(worker: ImageWorker, image: Any, key: str = "image", position: int = 0) -> Any:
    rows, _, _ = prepare(worker, {"image": image}, position)
    return np.asarray(rows[key])


FULL = MixtureRNG(
    prob=1.0,
    scale_range=(0.8, 1.5),
    shift_range=(-1, 1),
    noise_range=(0.01, 0.1),
    brightness_range=(-0.3, 0.3),
    color_range=(-0.3, 0.3),
    contrast_range=(-0.5, 0.5),
    blur_range=(0.01, 0.05),
    rotation_sigma=20.0,
    aspect_sigma=0.1,
    hmirror=0.5,
    shear_range=(-0.1, 0.1),
)


def test_every_form_of_a_sample_gives_the_same_row(tmp_path: Any) -> None:
    data = png(picture())
    path = tmp_path / "picture.png"
    path.write_bytes(data)
    worker = ImageWorker(SPEC, image_rng=UniformRNG(angle=(-20, 20), scale=(1, 2)))
    expected = image_of(worker, picture())
    for image in (data, bytearray(data), str(path), path):
        np.testing.assert_array_equal(image_of(worker, image), expected)
    packed = msgpack.packb({"image": data, "label": 3})
    np.testing.assert_array_equal(prepare(worker, packed)[0]["image"], expected)
    arrays = msgpack_numpy.packb({"image": picture()})
    np.testing.assert_array_equal(prepare(worker, arrays)[0]["image"], expected)


def test_what_is_recorded_is_complete_plain_and_enough_to_make_the_row_again() -> None:
    worker = ImageWorker(SPEC, {"background": (1, 2, 3)}, FULL)
    orders = set()
    for position in range(12):
        rows, batch, (image, params) = prepare(worker, {"image": picture()}, position)
        (recorded,) = batch["augmentation"]
        assert recorded is params
        assert set(recorded) == {*PARAMETERS, "size", "gpu_augmentation"}
        assert recorded["size"] == (60, 80)
        assert recorded["gpu_augmentation"] is False
        assert recorded["background"] == (1.0, 2.0, 3.0)
        json.dumps(recorded)
        assert msgpack.unpackb(msgpack.packb(recorded), use_list=False) == recorded
        orders.add(recorded["order"])
        given = {name: recorded[name] for name in PARAMETERS}
        again = randomize_image(picture(), (24, 32), **given)
        np.testing.assert_array_equal(rows["image"], again.transpose(2, 0, 1))
        matrix = make_transform(params["size"], (24, 32), **geometry_of(params))
        step = warp(image, (24, 32), matrix, background=(1, 2, 3))
        step = apply_pixels(step, params, True)
        np.testing.assert_array_equal(rows["image"], step.transpose(2, 0, 1))
    assert len(orders) > 2
    assert all(sorted(order) == ["blur", "gamma", "noise"] for order in orders)


def test_without_pixel_operations_their_record_is_empty() -> None:
    worker = ImageWorker(SPEC, image_rng=UniformRNG(angle=(-5, 5)))
    (_, batch, _) = prepare(worker, {"image": picture()})
    assert batch["augmentation"][0]["order"] == ()
    assert batch["augmentation"][0]["noise_seed"] == 0


def test_defaults_are_recorded_without_an_rng() -> None:
    _, batch, _ = prepare(ImageWorker(SPEC), {"image": picture()})
    expected = {**DEFAULTS, "background": 0.0, "size": (60, 80), "gpu_augmentation": False}
    assert batch["augmentation"] == [expected]


def test_fixed_parameters_override_the_drawn_ones() -> None:
    worker = ImageWorker(SPEC, {"angle": 5.0, "noise": None, "blur": 0.125}, FULL)
    for position in range(5):
        _, batch, _ = prepare(worker, {"image": picture()}, position)
        recorded = batch["augmentation"][0]
        assert (recorded["angle"], recorded["noise"], recorded["blur"]) == (5.0, 0.0, 0.125)
        assert sorted(recorded["order"]) == ["blur", "gamma"]


def test_order_and_seed_are_drawn_after_the_rng() -> None:
    seen = []

    def rng(image: Any, buffer: Any, generator: np.random.Generator) -> dict[str, Any]:
        seen.append((image.shape, buffer.shape))
        return {"noise": 0.1, "angle": generator.random()}

    worker = ImageWorker(((24, 32, 3), np.uint8), None, rng, layout="HWC")
    rows = make_rows(worker.buffer_specs)
    generator, same = np.random.default_rng(4), np.random.default_rng(4)
    image, params = worker.draw(picture(), rows, generator)
    assert seen == [((60, 80, 3), (3, 24, 32))]
    assert image.shape == (60, 80, 3)
    assert params["angle"] == same.random()
    assert params["order"] == tuple(
        ("gamma", "noise", "blur")[place] for place in same.permutation(3)
    )
    assert params["noise_seed"] == int(same.integers(2**63))


def test_an_rng_may_look_at_the_pixels() -> None:
    def by_brightness(image: Any, buffer: Any, generator: Any) -> dict[str, Any]:
        return {"hmirror": bool(image[:, :40].mean() > image[:, 40:].mean())}

    worker = ImageWorker(SPEC, None, by_brightness)
    bright_left = np.zeros((60, 80, 3), np.uint8)
    bright_left[:, :40] = 200
    for pixels in (bright_left, bright_left[:, ::-1].copy()):
        row = image_of(worker, pixels)
        assert row[0, 12, 4] == 0
        assert row[0, 12, 28] == 200


def test_shape_only_gets_no_pixels_but_the_shape() -> None:
    class Looks:
        shape_only = True

        def __call__(self, image: Any, buffer: Any, generator: Any) -> dict[str, Any]:
            assert image.shape == (600, 800, 3)
            assert image.dtype == np.uint8
            assert not image.any()
            return {"scale": 1.1}

    worker = ImageWorker(SPEC, None, Looks())
    _, batch, (image, params) = prepare(worker, {"image": jpeg(picture(600, 800))})
    assert params["size"] == (600, 800)
    assert batch["augmentation"][0]["scale"] == 1.1
    assert image.shape[0] >= 24 * 1.1


def test_a_reduced_decode_shows_the_same_part() -> None:
    large = picture(600, 800)
    worker = ImageWorker(
        ((3, 60, 80), np.uint8), image_rng=UniformRNG(scale=(1, 2), shift=(-1, 1), angle=(-30, 30))
    )
    for position in range(6):
        from_jpeg = image_of(worker, jpeg(large), position=position)
        from_array = image_of(worker, large, position=position)
        assert np.abs(from_jpeg.astype(float) - from_array).max() <= 6


@pytest.mark.parametrize(
    ("colorspace", "code"),
    [
        ("bgr", "COLOR_RGB2BGR"),
        ("hsv", "COLOR_RGB2HSV_FULL"),
        ("hls", "COLOR_RGB2HLS_FULL"),
        ("lab", "COLOR_RGB2LAB"),
        ("luv", "COLOR_RGB2LUV"),
        ("xyz", "COLOR_RGB2XYZ"),
        ("ycrcb", "COLOR_RGB2YCrCb"),
        ("yuv", "COLOR_RGB2YUV"),
    ],
)
def test_colour_spaces(colorspace: str, code: str) -> None:
    worker = ImageWorker(((3, 60, 80), np.uint8), {"colorspace": colorspace})
    expected = cv2.cvtColor(picture(), getattr(cv2, code))
    np.testing.assert_array_equal(image_of(worker, picture()), expected.transpose(2, 0, 1))


def test_grey() -> None:
    grey = cv2.cvtColor(picture(), cv2.COLOR_RGB2GRAY)
    for params in ({}, {"color": False}, {"colorspace": "gray"}):
        worker = ImageWorker(((1, 60, 80), np.uint8), params)
        row = image_of(worker, picture())
        assert np.abs(row[0].astype(int) - grey).max() <= 1
        np.testing.assert_array_equal(image_of(worker, grey)[0], grey)
    colour = ImageWorker(((3, 60, 80), np.uint8))
    np.testing.assert_array_equal(image_of(colour, grey), np.stack([grey] * 3))


def test_background_shows_where_the_image_does_not_reach() -> None:
    cases: Any = [
        (((3, 20, 40), np.uint8, (10, 20, 30)), {}, {}, [10, 20, 30]),
        (((3, 20, 40), np.uint8, (10, 20, 30)), {"background": 5}, {}, [5, 5, 5]),
        (((3, 20, 40), np.float32, 0.2), {}, {}, [0.2] * 3),
        (((3, 20, 40), np.float32), {}, {"mean": 0.5, "std": 0.5}, [-1.0] * 3),
        (((3, 20, 40), np.float32, 0.0), {}, {"mean": (0.2, 0.4, 0.6)}, [0.0] * 3),
    ]
    for spec, params, options, expected in cases:
        worker = ImageWorker(spec, {"scale_mode": "longest", **params}, **options)
        row = image_of(worker, np.full((20, 20, 3), 255, np.uint8))
        np.testing.assert_allclose(row[:, 5, 5], expected, atol=1e-6)
        np.testing.assert_allclose(row[:, 5, 34], expected, atol=1e-6)
        assert (row[:, :, 10:30] > row[:, :, :10].max()).all()


def test_transparent_pixels_show_the_background() -> None:
    image = np.dstack((picture(), np.zeros((60, 80), np.uint8)))
    data = cv2.imencode(".png", image)[1].tobytes()
    worker = ImageWorker(((3, 60, 80), np.uint8, (10, 20, 30)))
    assert (image_of(worker, data) == np.array([10, 20, 30])[:, None, None]).all()


def test_pixel_operations_are_left_to_the_device() -> None:
    here, there = (ImageWorker(SPEC, None, FULL, gpu) for gpu in (False, True))
    rows, batch, _ = prepare(there, {"image": picture()})
    (recorded,) = batch["augmentation"]
    assert recorded["gpu_augmentation"] is True
    assert recorded["noise"] > 0
    assert len(recorded["order"]) == 3
    given = {name: recorded[name] for name in PARAMETERS}
    expected = randomize_image(picture(), (24, 32), gpu_augmentation=True, **given)
    np.testing.assert_array_equal(rows["image"], expected.transpose(2, 0, 1))
    _, other, _ = prepare(here, {"image": picture()})
    assert other["augmentation"] == [{**recorded, "gpu_augmentation": False}]


def test_the_device_gets_pixels_as_they_are() -> None:
    spec = ((3, 8, 8), np.float32)
    for arguments, options in (
        ({"colorspace": "hsv"}, {}),
        ({}, {"mean": 0.5}),
        ({}, {"std": 0.5}),
    ):
        with pytest.raises(ValueError, match="gpu_augmentation needs pixels as they are"):
            ImageWorker(spec, arguments, gpu_augmentation=True, **options)


def test_prepare_image_may_be_extended() -> None:
    class Darker(ImageWorker):
        def prepare_image(self, image: Any, buffers: Any, params: Any, key: str) -> Any:
            used = super().prepare_image(image, buffers, params, key)
            buffers[key][...] = buffers[key] // 2
            return {**used, "darker": True}

    plain, darker = ImageWorker(SPEC), Darker(SPEC)
    _, batch, _ = prepare(darker, {"image": picture()})
    assert batch["augmentation"][0]["darker"] is True
    np.testing.assert_array_equal(image_of(darker, picture()), image_of(plain, picture()) // 2)


def test_max_pixels_refuses() -> None:
    worker = ImageWorker(SPEC, max_pixels=4799)
    with pytest.raises(ValueError, match="larger than max_pixels = 4,799"):
        image_of(worker, png(picture()))
    image_of(ImageWorker(SPEC, max_pixels=4800), png(picture()))


def test_images_of_one_pixel_and_one_line() -> None:
    worker = ImageWorker(SPEC, image_rng=FULL)
    for shape in ((1, 1), (1, 20_000), (20_000, 1)):
        rows, _, _ = prepare(worker, {"image": np.full((*shape, 3), 90, np.uint8)})
        assert rows["image"].shape == (3, 24, 32)


@pytest.mark.parametrize(
    ("sample", "error", "reason"),
    [
        (3, TypeError, "a sample must be a mapping, or the msgpack bytes of one, not int"),
        ({"label": 3}, ValueError, "the sample has no 'image'; its keys are 'label'"),
        (b"\xc1", ValueError, "the sample's 1 bytes cannot be unpacked by msgpack"),
        (b"", ValueError, "the sample's 0 bytes cannot be unpacked"),
        (msgpack.packb([1, 2]), ValueError, "the sample's 3 bytes hold a list, not a mapping"),
        ({"image": b"no image"}, ValueError, "8 bytes"),
        ({"image": b""}, ValueError, "0 bytes"),
        ({"image": 3.5}, TypeError, "float"),
    ],
)
def test_wrong_samples_are_named(sample: Any, error: Any, reason: str) -> None:
    with pytest.raises(error, match=reason):
        prepare(ImageWorker(SPEC), sample)


class InPlace(ImageWorker):
    def prepare_image(self, image: Any, *others: Any) -> Any:
        image[:5] = 0
        return super().prepare_image(image, *others)


def draw_in_place(image: NDArray[np.uint8], *others: Any) -> dict[str, Any]:
    image[:5] = 0
    return {}


@pytest.mark.parametrize("worker", [InPlace(SPEC), ImageWorker(SPEC, image_rng=draw_in_place)])
def test_the_datasets_own_arrays_cannot_be_written_to(worker: ImageWorker) -> None:
    kept = picture()
    with pytest.raises(ValueError, match="read-only"):
        prepare(worker, {"image": kept})
    np.testing.assert_array_equal(kept, picture())


def test_pickles_in_packed_samples_are_not_loaded() -> None:
    packed = msgpack_numpy.packb({"image": np.array([{"a": 1}], object)})
    with pytest.raises(ValueError, match="pickled objects, which are not loaded"):
        prepare(ImageWorker(SPEC), packed)


def test_wrong_result_of_the_rng_is_named() -> None:
    worker = ImageWorker(SPEC, image_rng=lambda image, buffer, generator: {"zoom": 2.0})
    with pytest.raises(ValueError, match="the result of image_rng has an unknown parameter 'zoom'"):
        prepare(worker, {"image": picture()})


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ({"image_params": {"zoom": 1}}, ValueError, "image_params has an unknown parameter 'zoom'"),
        ({"image_params": {"colorspace": "cmyk"}}, ValueError, "image_params: colorspace must be"),
        ({"image_params": {"color": False}}, ValueError, "give 1 channels, but image has 3"),
        ({"image_params": {"colorspace": "gray"}}, ValueError, "give 1 channels, but image has 3"),
        ({"image_params": [1]}, TypeError, "image_params must be a mapping"),
        (
            {"image_rng": {"angle": 3}},
            TypeError,
            "image_rng .* callable, such as IMAGENET_TRAIN",
        ),
        ({"max_pixels": 0}, ValueError, "max_pixels must be at least 1"),
        ({"layout": "WHC"}, ValueError, "layout must be one of"),
        ({"mean": 0.5}, ValueError, "mean and std normalise floating dtypes"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, error: Any, reason: str) -> None:
    with pytest.raises(error, match=reason):
        ImageWorker(SPEC, **arguments)


def test_grey_has_no_colours() -> None:
    spec = ((1, 8, 8), np.uint8)
    with pytest.raises(ValueError, match="colorspace 'hsv' needs color=True"):
        ImageWorker(spec, {"colorspace": "hsv"})
    with pytest.raises(ValueError, match="background must be one number where color is False"):
        ImageWorker(spec, {"background": (1, 2, 3)})
    worker = ImageWorker(spec, image_rng=lambda *_: {"background": (1, 2, 3)})
    for image in (picture(), picture()[:, :, 0]):
        with pytest.raises(ValueError, match=r"one number where color is False, not \(1.0, 2.0"):
            prepare(worker, {"image": image})
    with pytest.raises(ValueError, match="randomize_image: background must be one number"):
        randomize_image(picture(), (8, 8), color=False, background=(1, 2, 3))


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crumpets_like.workers.image.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"ImageWorker needs cv2 and simplejpeg.*like\[image\]"):
        ImageWorker(SPEC)


def test_opencv_is_single_threaded_in_workers() -> None:
    before = cv2.getNumThreads()
    try:
        ImageWorker(SPEC).setup()
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)


def test_import_is_light() -> None:
    heavy = {"cv2", "simplejpeg", "PIL", "torch", "kornia"}
    code = f"import sys, crumpets_like.workers as w; print(*{heavy} & set(sys.modules))"
    code += "; import crumpets_like.workers.presets; print(*" + f"{heavy} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("size", [(24, 32), (7, 100)])
def test_randomize_image_takes_what_arrays_there_are(size: tuple[int, int]) -> None:
    colour = randomize_image(picture(), size, angle=10, noise=0.1, order=["noise"], noise_seed=3)
    assert colour.shape == (*size, 3)
    assert randomize_image(picture()[:, :, 0], size).shape == (*size, 3)
    assert randomize_image(picture(), size, color=False).shape == (*size, 1)
    assert randomize_image(picture(), size, colorspace="gray").shape == (*size, 1)
    edge = randomize_image(picture(), (10, 100), scale_mode="longest", background=(1, 2, 3))
    assert list(edge[5, 2]) == [1, 2, 3]
    with pytest.raises(ValueError, match="randomize_image has an unknown parameter 'gama_gray'"):
        randomize_image(picture(), size, gama_gray=2.0)
    with pytest.raises(ValueError, match="height must be at least 1"):
        randomize_image(picture(), (0, 3))
