"""Pictures show what is in the mini-batch, with what belongs to it in its place."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

cv2 = pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pytest.importorskip("PIL")

from PIL import Image  # noqa: E402

from crumpets_like import TurboDataLoader, Worker  # noqa: E402
from crumpets_like.preview import pictures  # noqa: E402
from crumpets_like.preview.draws import draw  # noqa: E402
from crumpets_like.preview.pictures import parameter_words, preview, visible_pixels  # noqa: E402
from crumpets_like.workers import (  # noqa: E402
    ClassificationWorker,
    DetectionWorker,
    FCNWorker,
    ImageWorker,
    KeypointWorker,
    SaliencyWorker,
    SegmentationWorker,
    TransformWorker,
    UniformRNG,
)
from crumpets_like.workers.parameters import COLORSPACES, DEFAULTS  # noqa: E402

GEOMETRY = UniformRNG(angle=(-20, 20), scale=(0.7, 1.2), hmirror=0.5)
BOX = (60, 40, 90, 62)  # of the marker, in pixels of the image


def scene() -> NDArray[np.uint8]:
    """A smooth image with a red marker."""
    rows, columns = np.mgrid[0:100, 0:140]
    image = np.stack([rows, columns // 2 + 60, rows + 40], axis=-1).astype(np.uint8)
    image[BOX[1] : BOX[3], BOX[0] : BOX[2]] = (250, 0, 0)
    return image


def row_of(worker: ImageWorker, sample: dict[str, Any], number: int = 0) -> dict[str, Any]:
    """What the worker makes of a sample in epoch `number`."""
    loader = TurboDataLoader([sample], 1, worker, 0, seed=2)
    batch = draw(loader, 1, number + 1).batches[number]
    return {key: values[0] for key, values in batch.items()}


def colored(picture: Image.Image, color: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Edges of the area of about one color."""
    near = np.abs(np.asarray(picture).astype(int) - color).max(axis=2) < 30
    rows, columns = np.nonzero(near)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (np.uint8, {}),
        (np.int32, {}),
        (np.float32, {}),
        (np.float16, {}),
        (np.float32, {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}),
    ],
)
def test_pixels_are_seen_as_they_were(layout: str, dtype: Any, options: dict[str, Any]) -> None:
    def seen(dtype: Any, **options: Any) -> NDArray[np.uint8]:
        shape = (3, 32, 48) if options.get("layout", "CHW") == "CHW" else (32, 48, 3)
        worker = ImageWorker((shape, dtype), image_rng=GEOMETRY, **options)
        fields = row_of(worker, {"image": scene()})
        return visible_pixels(worker, "image", fields["image"], fields["augmentation"])

    found = seen(dtype, layout=layout, **options)
    assert found.shape == (32, 48, 3)
    np.testing.assert_array_equal(found, seen(np.uint8))


def test_floats_of_a_user_that_are_all_alike_are_black() -> None:
    worker = ImageWorker(((3, 32, 48), np.float32))
    fields = row_of(worker, {"image": scene()})
    row = np.full((3, 32, 48), -2.1, np.float32)  # a black image that a transform normalised
    assert not visible_pixels(worker, "image", row, fields["augmentation"]).any()


@pytest.mark.parametrize("colorspace", sorted(COLORSPACES))
def test_color_spaces_are_turned_back(colorspace: str) -> None:
    channels = 1 if colorspace == "gray" else 3
    worker = ImageWorker(((channels, 32, 48), np.uint8), {"colorspace": colorspace})
    fields = row_of(worker, {"image": scene()})
    found = visible_pixels(worker, "image", fields["image"], fields["augmentation"])
    plain = ImageWorker(((3, 32, 48), np.uint8))
    expected = row_of(plain, {"image": scene()})["image"].transpose(1, 2, 0)
    if channels == 1:
        expected = cv2.cvtColor(np.ascontiguousarray(expected), cv2.COLOR_RGB2GRAY)[..., None]
    difference = np.abs(found.astype(int) - expected)
    assert np.mean(difference) < 4  # 8 bits of hue or luma hold less than those of red, green, blue


def test_what_is_left_to_the_device_is_seen() -> None:
    rng = UniformRNG(contrast=(0.5, 0.6), gamma_gray=(1.5, 2.0), blur=(0.02, 0.03))
    spec = ((3, 32, 48), np.uint8)
    workers = [ImageWorker(spec, image_rng=rng, gpu_augmentation=gpu) for gpu in (False, True)]
    here, device = (row_of(worker, {"image": scene()}) for worker in workers)
    assert not np.array_equal(here["image"], device["image"])
    shown = visible_pixels(workers[1], "image", device["image"], device["augmentation"])
    np.testing.assert_array_equal(shown, here["image"].transpose(1, 2, 0))


def test_words_are_the_parameters_that_differ_from_their_defaults() -> None:
    assert parameter_words(DEFAULTS) == []
    params = {
        **DEFAULTS,
        "scale": 1.8345,
        "shift": (-0.2112, 0.0),
        "contrast": -0.996,
        "blur": 0.00345,
        "hmirror": True,
        "interp_method": "cubic",
        "gamma_color": (1.0, 0.5, 2.0),
        "order": ("gamma",),
        "noise_seed": 77,
        "size": (3, 4),
        "gpu_augmentation": False,
    }
    assert parameter_words(params) == [
        *("scale 1.83", "shift -0.21, 0", "hmirror", "cubic", "gamma_color 1, 0.5, 2"),
        *("contrast -1", "blur 0.003"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_boxes_are_drawn_around_what_they_are_around(number: int) -> None:
    worker = DetectionWorker(((3, 100, 140), np.uint8), 3, image_rng=GEOMETRY)
    sample = {"image": scene(), "boxes": [BOX], "classes": [1]}
    fields = row_of(worker, sample, number)
    plain = {**fields, "count": 0}
    marker = colored(pictures._drawn(worker, plain).picture, (250, 0, 0))
    drawn = pictures._drawn(worker, fields).picture
    np.testing.assert_allclose(colored(drawn, (40, 120, 220)), marker, atol=2)
    no_padding = {**fields, "boxes": fields["boxes"][:1], "classes": fields["classes"][:1]}
    assert drawn == pictures._drawn(worker, no_padding).picture


def test_boxes_of_the_whole_image() -> None:
    worker = DetectionWorker(((3, 100, 140), np.uint8), 3)
    cell = pictures._whole(worker, 7, {"image": scene(), "boxes": [BOX], "classes": [1]}, None)
    assert colored(cell.picture, (40, 120, 220)) == BOX  # 140 pixels need no other size
    assert list(cell.words) == ["sample 7", "140 x 100"]


@pytest.mark.parametrize("number", range(4))
def test_keypoints_are_drawn_where_they_are(number: int) -> None:
    worker = KeypointWorker(((3, 100, 140), np.uint8), 2, image_rng=GEOMETRY)
    center = [(BOX[0] + BOX[2] - 1) / 2, (BOX[1] + BOX[3] - 1) / 2]
    sample = {"image": scene(), "keypoints": [[0.0, 0.0, 0.0], [*center, 2.0]]}
    fields = row_of(worker, sample, number)
    image = {key: fields[key] for key in ("image", "augmentation")}
    plain = pictures._drawn(worker, image).picture
    drawn = pictures._drawn(worker, fields).picture
    x1, y1, x2, y2 = colored(plain, (250, 0, 0))
    a1, b1, a2, b2 = colored(drawn, (40, 120, 220))
    corner = (0, 0, 9, 9)  # where those lie that are not labelled
    assert drawn.crop(corner) == plain.crop(corner)
    assert (a1 + a2) / 2 == pytest.approx((x1 + x2) / 2, abs=1.5)
    assert (b1 + b2) / 2 == pytest.approx((y1 + y2) / 2, abs=1.5)


def test_masks_cover_what_they_belong_to() -> None:
    mask = np.zeros((100, 140), np.uint8)
    mask[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 2
    spec = ((3, 100, 140), np.uint8)
    worker = SegmentationWorker(spec, ((1, 50, 70), np.int64), image_rng=GEOMETRY)
    sample = {"image": scene(), "target_image": mask}
    fields = row_of(worker, sample)
    plain = {**fields, "target_image": np.zeros((1, 50, 70), np.int64)}
    marker = colored(pictures._drawn(worker, plain).picture, (250, 0, 0))
    covered = colored(pictures._drawn(worker, fields).picture, (145, 60, 110))
    np.testing.assert_allclose(covered, marker, atol=3)
    whole = pictures._whole(worker, 0, sample, None).picture
    np.testing.assert_allclose(colored(whole, (145, 60, 110)), BOX, atol=1)


def test_gaze_maps_glow_where_people_looked() -> None:
    worker = SaliencyWorker(
        ((3, 100, 140), np.uint8),
        ((50, 70), np.float32),
        target_image_params={"blur": 0.03},
    )
    sample = {"image": scene(), "experiments": [{"fixations": [[74, 50]]}, {"locations": []}]}
    fields = row_of(worker, sample)
    dark = {**fields, "target_image": np.zeros((50, 70), np.float32)}
    lit, unlit = (
        np.asarray(pictures._drawn(worker, row).picture).astype(int) for row in (fields, dark)
    )
    changed = np.abs(lit - unlit).sum(axis=2)
    row, column = np.unravel_index(int(lit.min(axis=2).argmax()), changed.shape)
    assert (column, row) == pytest.approx((74, 50), abs=3)
    assert changed[:20].max() < 10
    whole = pictures._whole(worker, 0, sample, None).picture
    assert whole.getpixel((74, 50)) == (230, 60, 50)


def test_a_target_image_is_set_into_the_corner() -> None:
    worker = FCNWorker(((3, 100, 140), np.uint8), ((1, 50, 70), np.float32))
    cell = pictures._drawn(worker, row_of(worker, {"image": scene()}))
    corner = np.asarray(cell.picture)[-30:-4, -40:-4].astype(int)
    assert (corner.max(axis=2) == corner.min(axis=2)).all()  # grey


def test_small_images_are_shown_pixel_by_pixel() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), np.uint8)
    fields = row_of(ImageWorker(((3, 16, 24), np.uint8)), {"image": pixels})
    picture = pictures._drawn(ImageWorker(((3, 16, 24), np.uint8)), fields).picture
    np.testing.assert_array_equal(picture, pixels.repeat(6, axis=0).repeat(6, axis=1))


def test_names_that_mean_something_else_are_left_alone() -> None:
    class Own(ImageWorker):
        def __init__(self) -> None:
            super().__init__(((3, 16, 24), np.uint8))
            self.add_buffer("target_image", ((2, 4, 4), np.float32, 1.0))
            self.add_buffer("keypoints", ((3,), np.float32, 1.0))

        def prepare(self, sample: Any, batch: Any, buffers: Any) -> Any:
            batch["boxes"].append("of chocolates")
            return super().prepare(sample, batch, buffers)

    sample = {"image": scene(), "boxes": "of chocolates", "target_image": "a picture"}
    plain = ImageWorker(((3, 16, 24), np.uint8))
    for make in (
        lambda worker: pictures._whole(worker, 0, sample, None),
        lambda worker: pictures._drawn(worker, row_of(worker, sample)),
    ):
        assert make(Own()).picture == make(plain).picture


def test_very_long_images_have_a_pixel_in_height() -> None:
    worker = ImageWorker(((3, 16, 24), np.uint8))
    image = np.full((1, 20_000, 3), 200, np.uint8)
    assert pictures._whole(worker, 0, {"image": image}, None).picture.size == (144, 1)


def test_floats_of_a_transform_are_spread_over_all_greys() -> None:
    ramp = np.linspace(-2.0, 5.0, 24, dtype=np.float32)
    image = np.broadcast_to(ramp[:, np.newaxis], (16, 24, 3))
    worker = TransformWorker(((3, 16, 24), np.float32), lambda _: image)
    cell = pictures._drawn(worker, row_of(worker, {"image": scene()}))
    assert list(cell.words) == []
    shown = np.asarray(cell.picture)[0, ::6, 0]
    np.testing.assert_array_equal(shown, np.rint(np.linspace(0, 255, 24)))


def photos(count: int = 5) -> list[dict[str, Any]]:
    return [{"image": scene(), "label": number} for number in range(count)]


def make_loader(dataset: Any, **options: Any) -> TurboDataLoader:
    worker = ClassificationWorker(((3, 64, 64), np.uint8), ((), np.int64), image_rng=GEOMETRY)
    return TurboDataLoader(dataset, 4, worker, 2, seed=1, **options)


def test_preview_of_a_loader_is_a_picture_with_a_row_for_each_sample() -> None:
    loader = make_loader(photos())
    two, three = loader.preview(2), loader.preview(3)
    assert isinstance(two, Image.Image)
    assert two.mode == "RGB"
    assert two.width == three.width > 9 * 144
    assert three.height > two.height > 2 * 128
    assert two.tobytes() == loader.preview(2).tobytes()
    assert two.tobytes() != make_loader(photos(), shuffle=True).preview(2).tobytes()
    assert loader.preview(9).tobytes() == loader.preview(5).tobytes()


def test_preview_of_a_torch_loader() -> None:
    pytest.importorskip("torch")
    from crumpets_like.torch import TorchTurboDataLoader

    worker = ClassificationWorker(((3, 64, 64), np.uint8), ((), np.int64), image_rng=GEOMETRY)
    loader = TorchTurboDataLoader(photos(), 4, worker, 2, seed=1, device="cpu")
    assert loader.preview(2).tobytes() == make_loader(photos()).preview(2).tobytes()


def test_class_names_of_a_folder_are_shown(tmp_path: Any) -> None:
    from crumpets_like.workers import ImageFolder

    (tmp_path / "cat").mkdir()
    Image.fromarray(scene()).save(tmp_path / "cat" / "tom.png")
    dataset = ImageFolder(tmp_path)
    cell = pictures._whole(ImageWorker(((3, 8, 8), np.uint8)), 0, dataset[0], dataset)
    assert list(cell.words) == ["tom.png", "140 x 100", "cat"]


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "3"])
def test_wrong_numbers_are_named(n: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="n must be"):
        make_loader(photos()).preview(n)


class Plain(Worker):
    pass


def test_other_workers_are_refused() -> None:
    loader = TurboDataLoader(photos(), 4, Plain(), 0)
    with pytest.raises(TypeError, match=r"ImageWorker makes of images.* is a Plain"):
        preview(loader, 1)


def test_missing_pillow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "PIL" or name.startswith("crumpets_like.preview."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"Pillow.*crumpets-like\[image\]"):
        make_loader(photos()).preview(1)
