"""What a device computes is what a worker computes, and no image depends on the others."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cv2")

from torch.overrides import TorchFunctionMode  # noqa: E402

from crumpets_like.torch import Randomizer  # noqa: E402
from crumpets_like.workers.parameters import PIXEL_OPERATIONS  # noqa: E402
from crumpets_like.workers.pixels import apply_pixels  # noqa: E402
from tests.support.augmenting import NEUTRAL, draw, photos  # noqa: E402


def randomize(image, augmentation, layout="CHW"):
    """Randomized images of (B, H, W, C) arrays, as such."""
    tensor = torch.from_numpy(image)
    if layout == "CHW":
        tensor = tensor.permute(0, 3, 1, 2).contiguous()
    before = tensor.clone()
    mini_batch = {"image": tensor, "augmentation": augmentation, "label": torch.arange(len(image))}
    result = Randomizer(layout)(mini_batch)
    assert list(result) == list(mini_batch)
    assert result["label"] is mini_batch["label"]
    assert result["augmentation"] is augmentation
    assert torch.equal(mini_batch["image"], before)
    assert (result["image"].shape, result["image"].dtype) == (before.shape, before.dtype)
    assert result["image"].is_contiguous()
    changed = result["image"].permute(0, 2, 3, 1) if layout == "CHW" else result["image"]
    return changed.numpy()


def in_worker(images, augmentation):
    rgb = images.shape[3] == 3
    pairs = zip(images, augmentation, strict=True)
    return np.stack([apply_pixels(image, params, rgb) for image, params in pairs])


def differences(images, augmentation):
    """Between device and worker, for integers and for floats, in values of 0 to 255."""
    expected = in_worker(images, augmentation).astype(float)
    of_integers = np.abs(randomize(images, augmentation) - expected)
    of_floats = np.abs(
        255.0 * randomize((images / 255).astype(np.float32), augmentation) - expected
    )
    return of_integers, of_floats


def each(**values):
    """Dicts that differ in some values: all combinations."""
    combinations = itertools.product(*values.values())
    return [{**NEUTRAL, **dict(zip(values, one, strict=True))} for one in combinations]


class TestAgreement:
    """Within 1/255 for gamma and contrast, 2/255 for blur; noise is the same."""

    @pytest.mark.parametrize("channels", [1, 3])
    def test_gamma_and_contrast(self, channels):
        augmentation = each(
            gamma_gray=[None, 0.4, 3.0],
            gamma_color=[None, (0.5, 1.0, 2.0)],
            contrast=[-1.0, -0.3, 0.0, 0.3, 1.0],
        )
        images = photos(len(augmentation), channels=channels)
        of_integers, of_floats = differences(images, augmentation)
        assert of_integers.max() <= 1
        assert of_integers.mean() < 1e-3
        assert of_floats.max() <= 0.51

    @pytest.mark.parametrize("gamma", [0.001, 1000.0])
    def test_extreme_gamma(self, gamma):
        levels = np.tile(np.arange(256, dtype=np.uint8)[None, None, :, None], (3, 1, 1, 1))
        augmentation = each(gamma_gray=[gamma], contrast=[-1.0, 0.0, 1.0])
        of_integers, of_floats = differences(levels, augmentation)
        assert of_integers.max() <= 1
        assert of_floats.max() <= 0.51

    def test_black_stays_black(self, monkeypatch):
        """Whatever a device makes of tanh and artanh, here by other slopes."""
        mini_batch = {"image": torch.zeros(2, 1, 1, 1)}
        mini_batch["augmentation"] = each(gamma_gray=[0.001], contrast=[-1.0, 1.0])
        for slope in np.linspace(2.0, 4.0, 41):
            monkeypatch.setattr("crumpets_like.workers.pixels.CONTRAST_SLOPE", slope)
            assert (Randomizer()(mini_batch)["image"] == 0).all()

    @pytest.mark.parametrize("channels", [1, 3])
    def test_blur(self, channels):
        augmentation = each(blur=[0.0, 0.002, 0.01, 0.05, 0.2])
        images = photos(len(augmentation), channels=channels)
        of_integers, of_floats = differences(images, augmentation)
        assert of_integers.max() <= 2
        assert of_floats.max() <= 2
        assert of_integers.mean() < 0.5

    @pytest.mark.parametrize("size", [(96, 128), (95, 127), (1, 1), (1, 4), (5, 1)])
    @pytest.mark.parametrize("channels", [1, 3])
    def test_noise_is_the_same_to_the_bit(self, channels, size):
        augmentation = each(noise=[0.01, 0.3, 1.0], noise_seed=[0, 7, 2**63 - 1])
        images = photos(len(augmentation), size, channels)
        of_integers, of_floats = differences(images, augmentation)
        assert of_integers.max() == 0
        assert of_floats.max() <= 0.51

    @pytest.mark.parametrize("layout", ["CHW", "HWC"])
    def test_every_order(self, layout):
        """Mild ones: a strong gamma behind the blur would widen a difference that the blur made."""
        mild = {"gamma_gray": 0.9, "noise": 0.1, "blur": 0.01}
        augmentation = [
            {
                **NEUTRAL,
                **{name: mild[name] for name in mild if name not in left_out},
                "order": order,
            }
            for order in itertools.permutations(PIXEL_OPERATIONS)
            for left_out in ([], ["gamma_gray"], ["noise"], ["blur"])
        ]
        images = photos(len(augmentation))
        expected = in_worker(images, augmentation)
        difference = np.abs(randomize(images, augmentation, layout) - expected.astype(int))
        assert difference.max() <= 3
        assert difference.mean() < 0.5
        results = randomize(photos(1).repeat(24, 0), augmentation, layout)
        assert len({result.tobytes() for result in results}) == 6 + 3 * 2

    def test_drawn_parameters(self):
        augmentation = draw(24)
        of_integers, _ = differences(photos(24), augmentation)
        assert np.median(of_integers) == 0
        assert of_integers.mean() < 0.5

    def test_small_images(self):
        images = np.random.default_rng(0).integers(0, 256, (3, 2, 3, 3), np.uint8)
        of_integers, _ = differences(images, each(blur=[0.5, 1.0, 4.0]))
        assert of_integers.max() <= 2


class TestImpulse:
    @pytest.mark.parametrize("sigma", [0.8, 1.5, 3.0])
    def test_blur_is_the_gaussian_to_1_percent(self, sigma):
        impulse = np.zeros((1, 41, 61, 1), np.float32)
        impulse[0, 20, 30] = 1.0
        y, x = np.mgrid[-20:21, -30:31]
        exact = np.exp(-(x**2 + y**2) / (2 * sigma**2))
        exact /= exact.sum()
        blurred = randomize(impulse, each(blur=[sigma / 61]))[0, ..., 0]
        assert np.abs(blurred - exact).max() < 0.01 * exact.max()


def test_gamma_and_blur_are_those_of_kornia():
    filters = pytest.importorskip("kornia.filters")
    enhance = pytest.importorskip("kornia.enhance")
    image = torch.from_numpy(photos(3)).permute(0, 3, 1, 2) / 255
    augmentation = each(gamma_gray=[0.5, 1.0, 2.0])
    ours = Randomizer()({"image": image, "augmentation": augmentation})["image"]
    theirs = enhance.adjust_gamma(image, torch.tensor([0.5, 1.0, 2.0]))
    assert (ours - theirs).abs().max() < 1e-5
    sigmas = torch.tensor([0.8, 2.0, 5.0])
    augmentation = each(blur=(sigmas / 128).tolist())
    ours = Randomizer()({"image": image, "augmentation": augmentation})["image"]
    theirs = filters.gaussian_blur2d(image, (41, 41), torch.stack((sigmas, sigmas), 1))
    assert (ours - theirs).abs().max() < 1e-4


class TestMiniBatches:
    def test_no_image_depends_on_the_others(self):
        augmentation = draw(12)
        images = photos(12)
        together = randomize(images, augmentation)
        for row in (0, 5, 11):
            alone = randomize(images[row : row + 1], augmentation[row : row + 1])
            assert np.array_equal(alone[0], together[row])
        backwards = randomize(images[::-1].copy(), augmentation[::-1])
        assert np.array_equal(backwards[::-1], together)

    def test_nothing_loops_over_images(self):
        """As many operations on tensors for a hundred images as for six."""

        class Counter(TorchFunctionMode):
            count = 0

            def __torch_function__(self, func, types, args=(), kwargs=None):
                self.count += 1
                return func(*args, **(kwargs or {}))

        counts = []
        augmentation = [
            {**NEUTRAL, "gamma_gray": 0.7, "noise": 0.1, "blur": 0.01, "order": order}
            for order in itertools.permutations(PIXEL_OPERATIONS)
        ]
        for repeats in (1, 16):
            tensor = torch.zeros(6 * repeats, 3, 8, 8, dtype=torch.uint8)
            with Counter() as counter:
                Randomizer()({"image": tensor, "augmentation": augmentation * repeats})
            counts.append(counter.count)
        assert counts[0] == counts[1]
        assert counts[0] < 600

    def test_inside_of_autocast(self):
        images, augmentation = photos(12), draw(12)
        expected = randomize(images, augmentation)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert np.array_equal(randomize(images, augmentation), expected)

    def test_nothing_to_do_is_no_copy(self):
        mini_batch = {"image": torch.ones(2, 3, 4, 4), "augmentation": [NEUTRAL, NEUTRAL]}
        assert Randomizer()(mini_batch)["image"] is mini_batch["image"]

    def test_what_workers_have_done_is_not_done_again(self):
        images = photos(3)
        params = {**NEUTRAL, "noise": 0.3}
        augmentation = [{**params, "gpu_augmentation": gpu} for gpu in (False, True)] + [params]
        result = randomize(images, augmentation)
        changed = [not np.array_equal(*pair) for pair in zip(images, result, strict=True)]
        assert changed == [False, True, True]

    def test_none_is_the_default(self):
        nothing = dict.fromkeys(("noise", "contrast", "blur", "order", "noise_seed"))
        image = torch.ones(1, 3, 4, 4)
        assert Randomizer()({"image": image, "augmentation": [nothing]})["image"] is image
        some = {**nothing, "gamma_gray": 2.0}
        result = Randomizer()({"image": image / 2, "augmentation": [some]})["image"]
        assert torch.allclose(result, image / 4)

    @pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 3, 0, 8), (2, 3, 8, 0)])
    def test_empty_images_stay_as_they_are(self, shape):
        params = [{"noise": 0.1, "blur": 0.1, "gamma_gray": 2.0}] * shape[0]
        image = torch.zeros(shape)
        assert Randomizer()({"image": image, "augmentation": params})["image"] is image

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
    def test_other_floats(self, dtype):
        image = torch.from_numpy(photos(4)).permute(0, 3, 1, 2).float() / 255
        augmentation = draw(4)
        expected = Randomizer()({"image": image, "augmentation": augmentation})["image"]
        result = Randomizer()({"image": image.to(dtype), "augmentation": augmentation})["image"]
        assert result.dtype == dtype
        assert (result.double() - expected).abs().mean() < 0.01

    def test_other_integers(self):
        images = photos(4)
        augmentation = draw(4)
        result = randomize(images.astype(np.int32), augmentation)
        assert np.array_equal(result, randomize(images, augmentation))

    def test_floats_are_not_rounded(self):
        image = torch.linspace(0, 1, 1001).view(1, 1, 1, -1)
        mini_batch = {"image": image, "augmentation": each(gamma_gray=[2.0])}
        assert torch.allclose(Randomizer()(mini_batch)["image"], image**2, atol=1e-6)

    def test_floats_stay_in_range(self):
        image = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).repeat(6, 1, 16, 16)
        augmentation = each(noise=[1.0], gamma_gray=[0.2], contrast=[-1.0, 1.0], blur=[0, 0.1, 0.3])
        result = Randomizer()({"image": image, "augmentation": augmentation})["image"]
        assert result.isfinite().all()
        assert 0.0 <= result.min() <= result.max() <= 1.0

    def test_noise_of_floats(self):
        image = torch.full((2, 3, 100, 100), 0.5)
        augmentation = each(noise=[0.2], noise_seed=[1, 2])
        noise = Randomizer()({"image": image, "augmentation": augmentation})["image"] - 0.5
        deviations = 0.2 / math.sqrt(3) * torch.tensor([0.625, 0.5, 0.625])
        assert noise.mean((0, 2, 3)).abs().max() < 0.003
        assert torch.allclose(noise.std((0, 2, 3)), deviations, rtol=0.03)


class TestBadInput:
    @pytest.mark.parametrize("key", ["image", "augmentation"])
    def test_no_such_key(self, key):
        mini_batch = {"image": torch.ones(1, 3, 2, 2), "augmentation": [NEUTRAL], "label": 0}
        del mini_batch[key]
        with pytest.raises(ValueError, match=f"has no '{key}', only .*'label': Randomizer takes"):
            Randomizer()(mini_batch)

    def test_another_number_of_dicts(self):
        with pytest.raises(ValueError, match="has 1 dicts for 2 images"):
            Randomizer()({"image": torch.ones(2, 3, 2, 2), "augmentation": [NEUTRAL]})

    @pytest.mark.parametrize("image", [torch.ones(3, 2, 2), np.ones((1, 3, 2, 2))])
    def test_no_images(self, image):
        with pytest.raises(ValueError, match=r"four dimensions, got .*(3, 2, 2|ndarray)"):
            Randomizer()({"image": image, "augmentation": [NEUTRAL]})

    @pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
    def test_no_pixels(self, dtype):
        image = torch.ones(1, 3, 2, 2, dtype=dtype)
        with pytest.raises(ValueError, match=f"floats 0.0 to 1.0, got {dtype}"):
            Randomizer()({"image": image, "augmentation": [NEUTRAL]})

    def test_no_such_operation(self):
        mini_batch = {"image": torch.ones(1, 3, 2, 2), "augmentation": each(noise=[0.1])}
        mini_batch["augmentation"][0]["order"] = ("noise", "sharpen")
        with pytest.raises(ValueError, match="unknown pixel operation 'sharpen'; known are gamma"):
            Randomizer()(mini_batch)

    def test_no_layout(self):
        with pytest.raises(ValueError, match=r"one of \('CHW', 'HWC'\), got 'NCHW'"):
            Randomizer("NCHW")


def test_it_has_no_state():
    assert Randomizer().state_dict() == {}
    assert repr(Randomizer("HWC")) == "Randomizer(layout='HWC')"
