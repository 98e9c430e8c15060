"""Gamma, contrast, noise and blur against their formulas, and OpenCV."""

import itertools
import math

import numpy as np
import pytest

from crumpets_like.workers.pixels import (
    adjust_gamma,
    apply_pixels,
    blur_kernels,
    human2gamma,
    noise_keys,
)
from tests.support.augmenting import NEUTRAL

cv2 = pytest.importorskip("cv2")

LEVELS = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)


def apply(image, rgb=None, **params):
    """Apply pixel operations; the image stays as it is."""
    before = image.copy()
    result = apply_pixels(image, {**NEUTRAL, **params}, image.shape[2] == 3 if rgb is None else rgb)
    assert np.array_equal(image, before)
    assert result.shape == image.shape
    assert result.dtype == np.uint8
    return result


@pytest.fixture(scope="module")
def photo():
    datasets = pytest.importorskip("sklearn.datasets")
    return datasets.load_sample_image("china.jpg")[100:324, 200:424].copy()


class TestHuman2Gamma:
    def test_values(self):
        assert human2gamma(0) == 1.0
        assert human2gamma(0.5) == 0.5
        assert human2gamma(-0.5) == 2.0
        assert math.isclose(human2gamma(0.999), 0.001)
        assert math.isclose(human2gamma(-0.999), 1000.0)

    def test_values_beyond_the_ends_are_cut_off(self):
        assert human2gamma(1) == human2gamma(7) == human2gamma(0.999)
        assert human2gamma(-1) == human2gamma(-math.inf) == human2gamma(-0.999)

    def test_brighter_and_darker_are_inverse(self):
        steps = np.linspace(-0.99, 0.99, 67)
        values = [human2gamma(step) for step in steps]
        assert np.allclose(np.multiply(values, values[::-1]), 1.0)
        assert all(np.diff(values) < 0)

    def test_what_is_no_number(self):
        with pytest.raises(ValueError, match=r"\[-1, 1\], got nan"):
            human2gamma(math.nan)


class TestNothingToDo:
    def test_the_image_itself(self, photo):
        params = {**NEUTRAL, "gpu_augmentation": False, "angle": 3.0}
        assert apply_pixels(photo, params, True) is photo

    def test_exponents_of_one(self, photo):
        assert np.array_equal(apply(photo, gamma_gray=1.0, gamma_color=(1.0, 1.0, 1.0)), photo)

    def test_what_is_left_out_has_its_default(self, photo):
        assert apply_pixels(photo, {}, True) is photo
        assert np.array_equal(apply_pixels(photo, {"noise": 0.1}, True), apply(photo, noise=0.1))


def reference_level(level, gamma, contrast):
    """One value's new value, in the terms of crumpets 3.0: a sigmoid and its inverse."""
    reach = 6.279
    x = level / 255

    def sigmoid(t):
        return 1 / (1 + math.exp(-t))

    low = sigmoid(-reach)
    if contrast >= 0:
        bent = (sigmoid(reach * (2 * x - 1)) - low) / (1 - 2 * low)
    else:
        inner = low + x * (1 - 2 * low)
        bent = (math.log(inner / (1 - inner)) / reach + 1) / 2
    y = (1 - abs(contrast)) * x + abs(contrast) * bent
    return 255 * y**gamma if level else 0.0


class TestGamma:
    @pytest.mark.parametrize("contrast", [-1.0, -0.4, 0.0, 0.3, 1.0])
    @pytest.mark.parametrize("gamma", [0.001, 0.5, 1.0, 2.2, 1000.0])
    def test_formula(self, gamma, contrast):
        changed = apply(LEVELS, gamma_gray=gamma, contrast=contrast).ravel()
        expected = [reference_level(level, gamma, contrast) for level in range(256)]
        assert np.abs(changed - np.array(expected)).max() <= 0.5 + 1e-6

    @pytest.mark.parametrize("params", [{"contrast": c} for c in (-1, 1)] + [{"gamma_gray": 5.0}])
    def test_black_and_white_stay_and_order_is_kept(self, params):
        changed = apply(LEVELS, **params).ravel()
        assert (changed[0], changed[255]) == (0, 255)
        assert all(np.diff(changed.astype(int)) >= 0)

    def test_contrast_spreads_and_gathers(self):
        more, less = (apply(LEVELS, contrast=c).ravel().astype(int) for c in (0.7, -0.7))
        assert more[64] < 64 < less[64]
        assert less[192] < 192 < more[192]
        assert abs(int(more[127]) - 127) <= 1

    def test_exponents_of_color(self, photo):
        changed = apply(photo, gamma_gray=2.0, gamma_color=(0.5, 1.0, 1.5))
        for channel, gamma in enumerate((1.0, 2.0, 3.0)):
            expected = 255 * (photo[..., channel] / 255) ** gamma
            assert np.abs(changed[..., channel] - expected).max() <= 0.5 + 1e-6

    def test_grey_images_have_no_color(self):
        changed = apply(LEVELS, gamma_gray=2.0, gamma_color=(0.1, 0.2, 0.3))
        assert np.array_equal(changed, apply(LEVELS, gamma_gray=2.0))

    def test_extreme_exponents_are_finite(self):
        changed = adjust_gamma(LEVELS, [1e6], -1.0).ravel()
        assert (changed[:250] == 0).all()
        assert changed[255] == 255


def grey(value, height=200, width=300, channels=3):
    return np.full((height, width, channels), value, np.uint8)


def noise_of(strength, seed=1, **shape):
    """What is added to a grey that nothing of it takes to an end."""
    return apply(grey(128, **shape), noise=strength, noise_seed=seed).astype(float) - 128


def correlation(first, second):
    return np.corrcoef(first.ravel(), second.ravel())[0, 1]


class TestNoise:
    def test_mean_and_deviation_in_rgb(self):
        noise = noise_of(0.4)
        expected = 255 * 0.4 / math.sqrt(3) * np.array([0.625, 0.5, 0.625])
        assert np.abs(noise.mean((0, 1))).max() < 1.5  # three deviations of the mean
        assert noise[2:-2, 2:-2].std((0, 1)) == pytest.approx(expected, rel=0.02)

    def test_mean_and_deviation_in_grey(self):
        noise = noise_of(0.4, channels=1)
        assert abs(noise.mean()) < 1.0
        assert noise.std() == pytest.approx(255 * 0.4 / math.sqrt(3), rel=0.02)

    def test_it_is_uniform(self):
        counts, _ = np.histogram(noise_of(0.4, channels=1), 20, (-102, 102))
        assert np.abs(counts / 3000 - 1).max() < 0.12

    def test_strength_is_the_largest_value(self):
        assert 101 <= np.abs(noise_of(0.4, channels=1)).max() <= 102
        assert 50 <= np.abs(noise_of(0.4)[..., 1]).max() <= 51

    def test_red_and_blue_are_coarse(self):
        noise = noise_of(0.4)
        for channel, expected in enumerate((0.75, 0.0, 0.75)):
            plane = noise[..., channel]
            for first, second in ((plane[1:], plane[:-1]), (plane[:, 1:], plane[:, :-1])):
                assert correlation(first, second) == pytest.approx(expected, abs=0.05)

    def test_channels_rows_and_seeds_are_independent(self):
        first, second = noise_of(0.4, seed=1), noise_of(0.4, seed=2)
        third = noise_of(0.4, seed=2**62 + 1)
        pairs = [(first[..., 0], first[..., 2]), (first[..., 0], first[..., 1])]
        pairs += [(first[..., 1], second[..., 1]), (first[..., 1], third[..., 1])]
        green = first[..., 1]
        pairs += [(green[:, lag:], green[:, :-lag]) for lag in (1, 2, 3, 4, 8, 16, 32, 64)]
        pairs += [(green[lag:], green[:-lag]) for lag in (1, 2, 4, 16)]
        pairs += [(green[:, 1:], second[:, :-1, 1]), (green[1:], second[:-1, :, 1])]
        assert max(abs(correlation(*pair)) for pair in pairs) < 0.02

    def test_the_seed_decides(self):
        assert np.array_equal(noise_of(0.1, seed=5), noise_of(0.1, seed=5))
        assert not np.array_equal(noise_of(0.1, seed=5), noise_of(0.1, seed=6))

    def test_largest_seed(self):
        assert abs(noise_of(0.1, seed=2**63 - 1).mean()) < 0.3

    def test_values_stay_in_range(self):
        for value in (0, 255):
            changed = apply(grey(value), noise=1.0).astype(int)
            assert (changed == value).mean() == pytest.approx(0.5, abs=0.02)

    def test_the_same_noise_on_any_image(self, photo):
        noise = noise_of(0.05, height=224, width=224)
        changed = apply(photo, noise=0.05, noise_seed=1)
        difference = changed - np.clip(photo + noise, 0, 255)
        assert np.abs(difference).max() <= 1  # where rounding is a near thing
        assert (difference == 0).mean() > 0.999

    @pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (3, 5)])
    def test_small_and_odd_sizes(self, shape):
        noise = noise_of(0.4, height=shape[0], width=shape[1])
        assert np.abs(noise).max() <= 102

    def test_pixel_by_pixel(self):
        """The hash as its docstring has it, in Python's own integers."""
        first, second = (int(key) for key in noise_keys([77])[0])

        def uniform(pixel):
            x = (0x9E3779B1 * pixel + first) % 2**32
            x = ((x ^ x >> 16) * 0x7FEB352D) % 2**32 ^ second
            x = ((x ^ x >> 15) * 0x846CA68B) % 2**32
            return ((x >> 16) + 0.5) / 2**15 - 1

        noise = noise_of(0.4, seed=77, height=6, width=8)
        for row, column in ((0, 0), (0, 7), (3, 4), (5, 7)):
            green = uniform(48 + 8 * row + column)
            assert noise[row, column, 1] == round(0.5 * 0.4 * 255 * green)
        for channel in (0, 2):
            grid = [[uniform(48 * channel + 4 * r + c) for c in range(4)] for r in range(3)]
            corner = 0.4 * 255 * grid[0][0]
            assert noise[0, 0, channel] == round(corner)
            upper = 0.75 * grid[1][1] + 0.25 * grid[1][2]
            lower = 0.75 * grid[2][1] + 0.25 * grid[2][2]
            inner = 0.4 * 255 * (0.75 * upper + 0.25 * lower)
            assert noise[3, 3, channel] == round(inner)


def convolved(image, sigma):
    """The Gaussian in double precision, by a sum over shifted images."""
    size = 2 * max(1, math.ceil(4 * sigma)) + 1
    weights = np.exp(-0.5 * ((np.arange(size) - size // 2) / sigma) ** 2)
    weights /= weights.sum()
    padded = cv2.copyMakeBorder(image, *[size // 2] * 4, cv2.BORDER_REFLECT_101)
    values = padded.reshape(*padded.shape[:2], -1).astype(float)
    height, width = image.shape[:2]
    values = sum(w * values[d : d + height] for d, w in enumerate(weights))
    return sum(w * values[:, d : d + width] for d, w in enumerate(weights))


class TestBlur:
    @pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5, 6.0, 30.0])
    def test_photo(self, photo, sigma):
        blurred = apply(photo, blur=sigma / 224)
        assert np.abs(blurred - convolved(photo, sigma)).max() <= 0.501
        opencv = cv2.GaussianBlur(photo, (0, 0), sigma)
        assert np.abs(blurred.astype(int) - opencv).max() <= 2

    @pytest.mark.parametrize("sigma", [0.8, 1.5, 3.0])
    def test_impulse(self, sigma):
        """To 1 % of full brightness, of which rounding takes 0.2."""
        impulse = np.zeros((41, 61, 1), np.uint8)
        impulse[20, 30] = 255
        y, x = np.mgrid[-20:21, -30:31]
        exact = np.exp(-(x**2 + y**2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)
        blurred = apply(impulse, blur=sigma / 61)[..., 0]
        assert np.abs(blurred / 255 - exact).max() < 0.01

    def test_kernel_is_the_gaussian(self):
        sigmas = np.array([0.8, 1.5, 3.0, 12.0])
        for sigma, kernel in zip(sigmas, blur_kernels(sigmas), strict=True):
            distances = np.arange(len(kernel)) - len(kernel) // 2
            exact = np.exp(-0.5 * (distances / sigma) ** 2)
            exact /= exact.sum()
            assert np.abs(kernel - exact).max() < 0.01 * exact.max()
            assert kernel.sum() == pytest.approx(1)
            assert (kernel > 0).sum() == 2 * math.ceil(4 * sigma) + 1

    def test_kernel_without_blur(self):
        assert blur_kernels(np.array([0.0, 0.5])).tolist()[0] == [0, 0, 1, 0, 0]

    @pytest.mark.parametrize("value", [0, 77, 255])
    def test_a_plain_image_stays(self, value):
        assert (apply(grey(value), blur=0.02) == value).all()

    def test_sigma_is_relative_to_the_width(self, photo):
        wide, narrow = photo[:100], photo[:, :100]
        assert np.abs(apply(wide, blur=2 / 224) - convolved(wide, 2)).max() <= 0.501
        assert np.abs(apply(narrow, blur=2 / 100) - convolved(narrow, 2)).max() <= 0.501

    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3)])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_images_smaller_than_the_kernel(self, shape, channels):
        image = np.random.default_rng(0).integers(0, 256, (*shape, channels), np.uint8)
        blurred = apply(image, blur=4 / shape[1])
        assert np.abs(blurred - convolved(image, 4)).max() <= 0.501


class TestOrder:
    def test_operations_follow_each_other(self, photo):
        params = {"gamma_gray": 0.4, "contrast": 0.3, "noise": 0.1, "blur": 0.01, "noise_seed": 9}
        alone = {
            "gamma": {"gamma_gray": 0.4, "contrast": 0.3},
            "noise": {"noise": 0.1, "noise_seed": 9},
            "blur": {"blur": 0.01},
        }
        seen = set()
        for order in itertools.permutations(alone):
            expected = photo
            for operation in order:
                expected = apply(expected, **alone[operation])
            result = apply(photo, order=order, **params)
            assert np.array_equal(result, expected)
            seen.add(result.tobytes())
        assert len(seen) == 6

    def test_an_order_from_json_is_a_list(self, photo):
        params = {"gamma_gray": 0.4, "gamma_color": [1.0, 2.0, 3.0], "noise": 0.1}
        as_lists = apply(photo, order=["noise", "gamma"], **params)
        assert np.array_equal(as_lists, apply(photo, order=("noise", "gamma"), **params))
