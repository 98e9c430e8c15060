"""The objects that draw random parameters."""

import math
import pickle
from typing import Any

import numpy as np
import pytest

from crumpets_like.workers.parameters import DEFAULTS, check_parameters
from crumpets_like.workers.pixels import human2gamma
from crumpets_like.workers.rng import (
    CenterCrop,
    ImageRNG,
    MixtureRNG,
    NoRNG,
    RandomResizedCrop,
    Resize,
    UniformRNG,
)

EVERYTHING = UniformRNG(
    angle=(-10.0, 20.0),
    scale=(0.5, 2.0),
    aspect=(0.8, 1.25),
    shift=(-1.0, 1.0),
    shear=(-0.1, 0.1),
    hmirror=0.25,
    vmirror=0.5,
    gamma_gray=(0.5, 2.0),
    gamma_color=(0.9, 1.1),
    contrast=(-0.5, 0.5),
    noise=(0.0, 0.1),
    blur=(0.0, 0.01),
    interpolations=("nearest", "linear", "cubic"),
)
MIXTURE = MixtureRNG(
    prob=0.5,
    scale_range=(0.5, 2.0),
    shift_range=(-1.0, 1.0),
    noise_range=(0.02, 0.1),
    brightness_range=(-0.5, 0.5),
    color_range=(-0.5, 0.5),
    contrast_range=(0.1, 1.0),
    blur_range=(0.001, 0.01),
    rotation_sigma=15.0,
    aspect_sigma=0.1,
    interpolations=("nearest", "linear"),
    hmirror=0.5,
    vmirror=0.1,
    shear_range=(-0.1, 0.1),
)
ALL = (NoRNG(), EVERYTHING, MIXTURE, RandomResizedCrop(hmirror=0.5), CenterCrop(0.5), Resize())


def draw(
    rng: ImageRNG,
    count: int,
    seed: int = 0,
    size: tuple[int, int] = (30, 40),
    target: tuple[int, int] = (8, 8),
) -> list[Any]:
    generator = np.random.default_rng(seed)
    image, buffer = np.zeros((*size, 3), np.uint8), np.zeros((3, *target))
    return [rng(image, buffer, generator) for _ in range(count)]


@pytest.mark.parametrize("rng", ALL, ids=lambda rng: type(rng).__name__)
def test_contract(rng: ImageRNG) -> None:
    assert rng.shape_only  # type: ignore[attr-defined]
    drawn = draw(rng, 50)
    for params in drawn:
        assert check_parameters(params, "drawn") == params  # plain and in range
    assert draw(pickle.loads(pickle.dumps(rng)), 50) == drawn
    other = draw(rng, 50, seed=1)
    fixed = isinstance(rng, NoRNG | CenterCrop | Resize)
    assert (other == drawn) is fixed
    # The same numbers are drawn for each image, so samples do not depend on each other.
    generators = [np.random.default_rng(5) for _ in range(2)]
    rng(np.zeros((30, 40, 3), np.uint8), np.zeros((3, 8, 8)), generators[0])
    rng(np.zeros((9, 800, 3), np.uint8), np.zeros((3, 8, 8)), generators[1])
    assert generators[0].random() == generators[1].random()


def even(values: Any, low: float, high: float) -> bool:
    """Whether values fill a range evenly, within five standard deviations."""
    counts, _ = np.histogram(values, bins=8, range=(low, high))
    count = len(values)
    return bool(counts.sum() == count and abs(counts - count / 8).max() < 5 * math.sqrt(count / 8))


def test_uniform_fills_its_ranges_evenly() -> None:
    drawn = draw(EVERYTHING, 4000)

    def column(name: str) -> Any:
        return np.array([params[name] for params in drawn])

    assert even(column("angle"), -10, 20)
    assert even(np.log(column("scale")), math.log(0.5), math.log(2.0))
    assert even(np.log(column("aspect")), math.log(0.8), math.log(1.25))
    for axis in (0, 1):
        assert even(column("shift")[:, axis], -1, 1)
        assert even(column("shear")[:, axis], -0.1, 0.1)
    assert even(np.log(column("gamma_gray")), math.log(0.5), math.log(2.0))
    for channel in range(3):
        assert even(np.log(column("gamma_color")[:, channel]), math.log(0.9), math.log(1.1))
    assert even(column("contrast"), -0.5, 0.5)
    assert even(column("noise"), 0, 0.1)
    assert even(column("blur"), 0, 0.01)
    assert abs(column("hmirror").mean() - 0.25) < 0.035
    assert abs(column("vmirror").mean() - 0.5) < 0.04
    names, counts = np.unique(column("interp_method"), return_counts=True)
    assert list(names) == ["cubic", "linear", "nearest"]
    assert abs(counts - 4000 / 3).max() < 150
    # None of them follows another.
    table = np.column_stack(
        [
            column(name).reshape(4000, -1)
            for name in DEFAULTS
            if name in drawn[0] and name != "interp_method"
        ]
    ).astype(float)
    correlation = np.corrcoef(table.T) - np.eye(table.shape[1])
    assert np.abs(correlation).max() < 0.09


def test_changing_one_range_leaves_the_other_values() -> None:
    one = draw(UniformRNG(angle=(-10, 10), blur=(0, 0.1)), 5)
    other = draw(UniformRNG(scale=(0.5, 2), blur=(0, 0.1), hmirror=0.5), 5)
    assert [params["blur"] for params in one] == [params["blur"] for params in other]
    one = draw(MixtureRNG(rotation_sigma=3.0, blur_range=(0, 0.1)), 5)
    other = draw(MixtureRNG(scale_range=(1, 2), noise_range=(0, 1), blur_range=(0, 0.1)), 5)
    assert [params["blur"] for params in one] == [params["blur"] for params in other]


def test_without_ranges_nothing_changes() -> None:
    for rng in (UniformRNG(), MixtureRNG()):
        for params in draw(rng, 20):
            assert {**DEFAULTS, **params} == DEFAULTS


def test_mixture_draws_as_stated() -> None:
    drawn = draw(MIXTURE, 4000)

    def column(name: str) -> Any:
        return np.array([params[name] for params in drawn if name in params])

    assert abs(column("angle").mean()) < 1.2
    assert abs(column("angle").std() - 15) < 0.9
    assert abs(column("aspect").mean() - 1) < 0.01
    assert abs(column("aspect").std() - 0.1) < 0.006
    assert even(column("scale"), 0.5, 2.0)
    assert even(column("shift")[:, 0], -1, 1)
    assert even(column("shear")[:, 1], -0.1, 0.1)
    for name in ("gamma_gray", "gamma_color", "contrast", "noise", "blur"):
        assert abs(len(column(name)) - 2000) < 160, name
    assert even(column("contrast"), 0.1, 1.0)
    assert even(column("noise"), 0.02, 0.1)
    gammas = column("gamma_gray")
    assert human2gamma(0.5) <= gammas.min() < 0.55
    assert 1.9 < gammas.max() <= human2gamma(-0.5)
    assert abs((gammas < 1).mean() - 0.5) < 0.06
    assert column("gamma_color").shape[1] == 3
    assert abs(column("hmirror").mean() - 0.5) < 0.04
    assert abs(column("vmirror").mean() - 0.1) < 0.025
    # Each pixel operation is drawn by itself.
    both = sum("noise" in params and "blur" in params for params in drawn)
    assert abs(both - 1000) < 140
    # prob concerns pixel operations alone.
    for params in draw(MixtureRNG(prob=0, rotation_sigma=5, noise_range=(0.1, 0.2)), 5):
        assert "noise" not in params
        assert params["angle"] != 0


def test_aspect_stays_positive() -> None:
    aspects = [params["aspect"] for params in draw(MixtureRNG(aspect_sigma=50.0), 500)]
    assert min(aspects) == 0.1
    assert max(aspects) == 10.0


def box_of(params: dict[str, Any], size: tuple[int, int], target: tuple[int, int]) -> Any:
    """The part of the image that is shown: left, top, right, bottom."""
    from crumpets_like.workers.geometry import invert_transform, make_transform, transform_points
    from crumpets_like.workers.parameters import geometry_of

    matrix = make_transform(size, target, **geometry_of({**params, "hmirror": False}))
    ends = [[-0.5, -0.5], [target[1] - 0.5, target[0] - 0.5]]
    return (transform_points(invert_transform(matrix), ends) + 0.5).ravel()


def test_random_resized_crop_shows_whole_boxes_of_the_asked_area_and_ratio() -> None:
    size, target = (427, 640), (224, 200)
    drawn = draw(RandomResizedCrop((0.1, 0.5), (0.5, 2.0), hmirror=0.3), 3000, 0, size, target)
    boxes = np.array([box_of(params, size, target) for params in drawn])
    whole = np.rint(boxes)
    np.testing.assert_allclose(boxes, whole, atol=1e-6)
    widths, heights = (whole[:, 2:] - whole[:, :2]).T
    assert whole[:, :2].min() >= 0
    assert (whole[:, 2] <= 640).all()
    assert (whole[:, 3] <= 427).all()
    areas, ratios = widths * heights / (427 * 640), widths / heights
    assert areas.min() > 0.098
    assert areas.max() < 0.502
    assert even(areas[ratios < 1.2].clip(0.1, 0.5), 0.1, 0.5)  # wide ones may not fit
    assert ratios.min() > 0.49
    assert ratios.max() < 2.02
    assert even(np.log(ratios[areas < 0.35]).clip(math.log(0.5), math.log(2)), -0.6932, 0.6932)
    places = whole[:, 0] / np.maximum(1, 640 - widths)
    assert abs(places.mean() - 0.5) < 0.03
    assert places.max() > 0.98
    assert places.min() < 0.02
    assert abs(np.mean([params["hmirror"] for params in drawn]) - 0.3) < 0.05


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((10, 1000), (493, 0, 506, 10)),  # the widest that a ratio of 4 / 3 allows
        ((1000, 10), (0, 493, 10, 506)),
        ((1, 20_000), (9999, 0, 10_000, 1)),
        ((1, 1), (0, 0, 1, 1)),
    ],
)
def test_random_resized_crop_falls_back_to_the_centre(
    size: tuple[int, int], box: tuple[int, ...]
) -> None:
    for params in draw(RandomResizedCrop((0.9, 1.0)), 5, 0, size):
        np.testing.assert_allclose(box_of(params, size, (8, 8)), box, atol=1e-6)


def test_center_crop_and_resize() -> None:
    (params,) = draw(CenterCrop(0.5), 1, 0, (40, 60), (10, 10))
    np.testing.assert_allclose(box_of(params, (40, 60), (10, 10)), (20, 10, 40, 30))
    (params,) = draw(Resize(), 1, 0, (40, 60), (10, 30))
    np.testing.assert_allclose(box_of(params, (40, 60), (10, 30)), (0, 0, 60, 40), atol=1e-9)


@pytest.mark.parametrize(
    ("make", "arguments", "reason"),
    [
        (UniformRNG, {"angle": 10}, r"angle must be \(low, high\), not 10"),
        (UniformRNG, {"angle": (1, 0)}, r"low <= high.*not \(1, 0\)"),
        (UniformRNG, {"angle": (0, math.inf)}, "finite"),
        (UniformRNG, {"scale": (0.0, 1.0)}, r"in \[1e-06, 1e\+06\], not \(0.0, 1.0\)"),
        (UniformRNG, {"scale": (1e-9, 1e-8)}, r"scale must be .* in \[1e-06, 1e\+06\]"),
        (UniformRNG, {"aspect": (1.0, 2e6)}, r"aspect must be .* in \[1e-06, 1e\+06\]"),
        (UniformRNG, {"gamma_gray": (1e-9, 1.0)}, "gamma_gray must be"),
        (UniformRNG, {"gamma_color": (1e-9, 1.0)}, "gamma_color must be"),
        (UniformRNG, {"angle": (0, 1e12)}, r"angle must be .* in \[-1e\+09, 1e\+09\]"),
        (MixtureRNG, {"scale_range": (1e-9, 1.0)}, "scale_range must be"),
        (MixtureRNG, {"rotation_sigma": 1e9}, r"rotation_sigma must be .* <= 1e\+07, not"),
        (UniformRNG, {"shift": (-2, 1)}, r"in \[-1, 1\]"),
        (UniformRNG, {"noise": (0, math.nan)}, "noise must be"),
        (UniformRNG, {"hmirror": 1.5}, r"hmirror must be a probability in \[0, 1\], not 1.5"),
        (UniformRNG, {"interpolations": ("bicubic",)}, r"\['bicubic'\]; known are nearest, linear"),
        (MixtureRNG, {"prob": -1}, "prob must be a probability"),
        (MixtureRNG, {"rotation_sigma": -1}, "rotation_sigma must be a finite number >= 0"),
        (MixtureRNG, {"contrast_range": (-2, 2)}, "contrast_range must be"),
        (MixtureRNG, {"scale_range": (1, 2, 3)}, "scale_range must be"),
        (RandomResizedCrop, {"scale": (0.5, 1.5)}, r"scale must be .* in \(0, 1\]"),
        (RandomResizedCrop, {"ratio": (0.0, 1.0)}, "ratio must be"),
        (RandomResizedCrop, {"hmirror": 2}, "hmirror must be"),
        (CenterCrop, {"fraction": 0.0}, r"fraction must be in \[1e-06, 1\], not 0.0"),
    ],
)
def test_wrong_ranges_are_named(make: Any, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make(**arguments)
