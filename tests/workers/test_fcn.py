"""FCNWorker: an image and a target of the same part."""

from typing import Any

import numpy as np
import pytest

from crumpets_like.workers import FCNWorker, MixtureRNG, UniformRNG, randomize_image
from crumpets_like.workers.parameters import PARAMETERS
from tests.support.preparing import prepare

simplejpeg = pytest.importorskip("simplejpeg")
pytest.importorskip("cv2")

rows_, columns_ = np.mgrid[0:60, 0:80]
PICTURE = np.stack((4 * rows_, 3 * columns_, rows_ + columns_), axis=-1).astype(np.uint8)
RNG = MixtureRNG(
    scale_range=(1, 2),
    shift_range=(-1, 1),
    brightness_range=(0.1, 0.3),
    noise_range=(0.05, 0.1),
    rotation_sigma=10.0,
)


def drawn_of(batch: Any) -> dict[str, Any]:
    (recorded,) = batch["augmentation"]
    return {name: recorded[name] for name in PARAMETERS}


def test_both_show_the_same() -> None:
    worker = FCNWorker(((3, 24, 32), np.uint8), ((1, 48, 64), np.float32), None, {"noise": 0}, RNG)
    rows, batch, (image, params) = prepare(worker, {"image": PICTURE})
    assert image.shape == (60, 80, 3)
    assert params is batch["augmentation"][0]
    given = drawn_of(batch)
    expected = randomize_image(PICTURE, (24, 32), **given)
    np.testing.assert_array_equal(rows["image"], expected.transpose(2, 0, 1))
    target = randomize_image(PICTURE, (48, 64), **{**given, "color": False, "noise": 0})
    # It is made grey after the warp there, and before it here.
    np.testing.assert_allclose(rows["target_image"][0], target[:, :, 0] / 255, atol=2.01 / 255)


def test_target_params_override_all_others() -> None:
    worker = FCNWorker(
        ((3, 24, 32), np.uint8),
        ((3, 24, 32), np.uint8),
        target_image_params={"gamma_gray": None, "noise": 0, "angle": 0},
        image_rng=RNG,
    )
    rows, batch, _ = prepare(worker, {"image": PICTURE})
    given = {**drawn_of(batch), "gamma_gray": None, "noise": 0, "angle": 0, "order": ()}
    expected = randomize_image(PICTURE, (24, 32), **given)
    np.testing.assert_array_equal(rows["target_image"], expected.transpose(2, 0, 1))
    assert batch["augmentation"][0]["noise"] > 0


def test_fixed_geometry_holds_for_both_and_fixed_pixels_for_the_image() -> None:
    spec = ((3, 24, 32), np.uint8)
    fixed = {"angle": 30.0, "noise": 0.2, "background": 9}
    worker = FCNWorker(spec, (*spec, 200), fixed)
    rows, _, _ = prepare(worker, {"image": PICTURE})
    clean = randomize_image(PICTURE, (24, 32), angle=30.0, background=200)
    np.testing.assert_array_equal(rows["target_image"], clean.transpose(2, 0, 1))
    assert (rows["image"] != rows["target_image"]).mean() > 0.5


def test_decoded_large_enough_for_the_larger() -> None:
    data = simplejpeg.encode_jpeg(np.kron(PICTURE, np.ones((10, 10, 1), np.uint8)))
    sizes = {}
    for name, target in (("small", (3, 30, 40)), ("large", (3, 300, 400))):
        worker = FCNWorker(((3, 30, 40), np.uint8), (target, np.uint8), image_rng=UniformRNG())
        _, _, (image, params) = prepare(worker, {"image": data})
        assert params["size"] == (600, 800)
        assert image.shape[0] >= target[1]
        sizes[name] = image.shape
    assert sizes["small"] <= sizes["large"]


def test_layout_holds_for_both_and_the_device_leaves_the_target_alone() -> None:
    spec = ((24, 32, 3), np.uint8)
    worker = FCNWorker(spec, spec, None, None, RNG, True, layout="HWC")
    rows, batch, _ = prepare(worker, {"image": PICTURE})
    given = drawn_of(batch)
    plain = randomize_image(PICTURE, (24, 32), gpu_augmentation=True, **given)
    np.testing.assert_array_equal(rows["image"], plain)
    np.testing.assert_array_equal(rows["target_image"], randomize_image(PICTURE, (24, 32), **given))


def test_wrong_target_params_are_named() -> None:
    spec = ((3, 24, 32), np.uint8)
    with pytest.raises(ValueError, match="target_image_params has an unknown parameter 'zoom'"):
        FCNWorker(spec, spec, target_image_params={"zoom": 2})
    with pytest.raises(ValueError, match="target_image must have a shape"):
        FCNWorker(spec, ((24, 32), np.uint8))


@pytest.mark.parametrize("fixed", [{"scale": 4.0}, {"aspect": 0.25}])
def test_fixed_geometry_is_decoded_large_enough_for_the_target(fixed: dict[str, float]) -> None:
    data = simplejpeg.encode_jpeg(np.kron(PICTURE, np.ones((10, 10, 1), np.uint8)))
    small, large = ((3, 30, 40), np.uint8), ((3, 150, 200), np.uint8)
    _, _, (image, _) = prepare(FCNWorker(small, large, fixed), {"image": data})
    _, _, (drawn, _) = prepare(FCNWorker(small, large, image_rng=FixedRNG(fixed)), {"image": data})
    assert image.shape == drawn.shape == (600, 800, 3)


class FixedRNG:
    """Draws always the same."""

    shape_only = True

    def __init__(self, params: dict[str, float]) -> None:
        self.params = params

    def __call__(self, image: object, buffer: object, generator: object) -> dict[str, float]:
        return self.params
