"""gpu_augmentation=True: what the workers leave out is done to whole mini-batches."""

import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

from crumpets_like import Worker  # noqa: E402
from crumpets_like.torch import Randomizer, TorchTurboDataLoader  # noqa: E402
from tests.support.augmenting import Pictures, photos  # noqa: E402
from tests.support.devices import SlowDevice, fork, use_devices  # noqa: E402
from tests.support.leasing import Numbers, Rows  # noqa: E402

on_cpu = pytest.mark.filterwarnings("ignore:gpu_augmentation=True with device 'cpu'")


def read(worker, nworkers, gpu_augmentation, count=21, **options):
    """The images and parameters of two shuffled epochs."""
    options = {"device": "cpu", "shuffle": True, "seed": 4, **options}
    images, augmentation = [], []
    with fork(
        range(count), 4, worker, nworkers, gpu_augmentation=gpu_augmentation, **options
    ) as loader:
        for _ in range(2):
            for _, mini_batches in loader:
                for mini_batch in mini_batches:
                    assert len(mini_batch["image"]) == len(mini_batch["augmentation"])
                    images.append(mini_batch["image"].numpy().copy())
                    augmentation += mini_batch["augmentation"]
    return np.concatenate(images), augmentation


@on_cpu
class TestOnTheCpu:
    def test_results_are_those_of_the_workers(self):
        images, augmentation = read(Pictures(order=["noise", "gamma"]), 2, True)
        expected, same = read(Pictures(order=["noise", "gamma"]), 2, False)
        assert np.abs(images.astype(int) - expected).max() <= 1
        for ours, theirs in zip(augmentation, same, strict=True):
            assert {**ours, "gpu_augmentation": False} == theirs
            assert ours["gpu_augmentation"] is True

    def test_results_do_not_depend_on_the_number_of_workers(self):
        images, augmentation = read(Pictures(), 0, True)
        for nworkers in (1, 3):
            others, theirs = read(Pictures(), nworkers, True)
            assert np.array_equal(images, others)
            assert augmentation == theirs

    def test_workers_leave_the_operations_out(self):
        """What the Randomizer gives for mini-batches of a worker that leaves them out."""
        worker = Pictures(blur=0.02, noise=0.1)
        worker.gpu_augmentation = True
        raw, augmentation = read(worker, 2, False)
        images, _ = read(Pictures(blur=0.02, noise=0.1), 2, True)
        mini_batch = {"image": torch.from_numpy(raw), "augmentation": augmentation}
        assert torch.equal(Randomizer()(mini_batch)["image"], torch.from_numpy(images))
        assert not np.array_equal(raw, images)

    def test_several_mini_batches(self):
        images, _ = read(Pictures(), 2, True, count=24)
        parts, _ = read(Pictures(), 2, True, count=24, num_mini_batches=2)
        assert np.array_equal(images, parts)

    def test_skipped_samples(self):
        options = {"device": "cpu", "gpu_augmentation": True, "on_error": "skip"}
        numbers = [0, 1, -1, 3, 4, -1, -1, 7]
        with fork(numbers, 8, Pictures(noise=0.2), 2, **options) as loader:
            ((_, (mini_batch,)),) = list(loader)
        assert mini_batch["label"].tolist() == [0, 1, 3, 4, 7]
        assert len(mini_batch["augmentation"]) == len(mini_batch["image"]) == 5

    def test_the_template_is_not_changed(self):
        worker = Pictures()
        before = copy.deepcopy(vars(worker))
        fork(range(4), 4, worker, 0, device="cpu", gpu_augmentation=True)
        assert worker.gpu_augmentation is False
        assert vars(worker) == before

    @pytest.mark.parametrize("nworkers", [0, 1])
    def test_what_the_randomizer_refuses_is_raised_at_its_turn(self, nworkers):
        class Forgetful(Pictures):
            def prepare(self, sample, batch, buffers):
                super().prepare(sample, batch, buffers)
                if sample == 4:
                    batch["augmentation"][-1] = {"noise": 0.1, "contrast": "much"}

        with fork(
            range(8), 4, Forgetful(), nworkers, device="cpu", gpu_augmentation=True
        ) as loader:
            iterator = iter(loader)
            next(iterator)
            with pytest.raises(ValueError, match="'much'"):
                next(iterator)


class TestArguments:
    def test_the_cpu_is_one_warning(self):
        with pytest.warns(RuntimeWarning) as caught:
            loader = fork(range(8), 4, Pictures(), 3, device="cpu", gpu_augmentation=True)
        (warning,) = caught
        text = str(warning.message)
        assert "gpu_augmentation=True with device 'cpu'" in text
        assert "not by the 3 workers" in text
        with warnings.catch_warnings(), loader:
            warnings.simplefilter("error")
            assert len(list(loader)) == 2

    def test_the_warning_points_at_the_caller(self):
        with pytest.warns(RuntimeWarning) as caught:
            TorchTurboDataLoader(range(8), 4, Pictures(), 0, device=["cpu"], gpu_augmentation=True)
        assert [warning.filename for warning in caught] == [__file__]

    def test_without_it_there_is_none(self):
        fork(range(8), 4, Pictures(), 0, device="cpu", gpu_augmentation=False)

    @pytest.mark.parametrize("worker", [Rows(), Worker()])
    def test_a_worker_that_cannot_leave_anything_out(self, worker):
        name = type(worker).__name__
        with pytest.raises(ValueError, match=f"needs a worker .* {name} has no attribute gpu_aug"):
            fork(Numbers(8), 4, worker, 1, device="cpu", gpu_augmentation=True)

    def test_what_the_worker_refuses(self):
        class Strict(Pictures):
            @property
            def gpu_augmentation(self):
                return False

            @gpu_augmentation.setter
            def gpu_augmentation(self, value):
                raise ValueError("not with this colorspace")

        with pytest.raises(ValueError, match="not with this colorspace"):
            fork(range(8), 4, Strict(), 1, device="cpu", gpu_augmentation=True)


class StreamDevice(SlowDevice):
    """One whose stream holds what is made of copies, too: it is done when it is waited for."""

    def apply(self, function, values):
        self.synchronize()
        self.log.append("apply")
        return super().apply(function, values)[0], None

    def hand_over(self, tensors, event):
        self.log.append(f"hand over {len(tensors)}")


def test_copies_ahead_are_augmented_ahead(monkeypatch):
    device = StreamDevice()
    use_devices(monkeypatch, device)
    with fork(range(40), 4, Pictures(), 2, gpu_augmentation=True, seed=3) as loader:
        images = [mini_batch["image"].clone() for _, (mini_batch,) in loader]
    monkeypatch.undo()
    assert device.log.count("hand over 2") == 10
    assert device.log.count("apply") >= 10
    with fork(range(40), 4, Pictures(), 2, seed=3, device="cpu") as loader:
        for ours, (_, (mini_batch,)) in zip(images, loader, strict=True):
            assert (ours.int() - mini_batch["image"].int()).abs().float().mean() < 1


class TestImageWorkers:
    """The whole way: photographs, warped by workers, their pixels changed on the device."""

    def read(self, gpu_augmentation, nworkers=2, dtype=np.uint8, layout="CHW", **params):
        from crumpets_like.workers import ClassificationWorker, MixtureRNG

        shape = (3, 48, 64) if layout == "CHW" else (48, 64, 3)
        rng = MixtureRNG(
            0.7,
            scale_range=(0.8, 1.2),
            shift_range=(-1, 1),
            noise_range=(0, 0.1),
            brightness_range=(-0.3, 0.3),
            color_range=(-0.2, 0.2),
            contrast_range=(-0.5, 0.5),
            blur_range=(0, 0.02),
            hmirror=0.5,
        )
        worker = ClassificationWorker((shape, dtype), ((), np.int64), params, rng, layout=layout)
        dataset = [{"image": photo, "label": row} for row, photo in enumerate(photos(18))]
        options = {"device": "cpu", "seed": 3, "gpu_augmentation": gpu_augmentation}
        with fork(dataset, 6, worker, nworkers, shuffle=True, **options) as loader:
            read = [mini_batch for _ in range(2) for _, (mini_batch,) in loader]
        images = torch.cat([mini_batch["image"] for mini_batch in read]).numpy()
        return images, [params for mini_batch in read for params in mini_batch["augmentation"]]

    @on_cpu
    @pytest.mark.parametrize("layout", ["CHW", "HWC"])
    @pytest.mark.parametrize("dtype", [np.uint8, np.float32])
    def test_devices_and_workers_agree(self, dtype, layout):
        images, augmentation = self.read(True, dtype=dtype, layout=layout)
        expected, same = self.read(False, dtype=dtype, layout=layout)
        assert [{**params, "gpu_augmentation": False} for params in augmentation] == same
        assert len({params["order"] for params in same}) > 6
        assert (images.shape, images.dtype) == (expected.shape, expected.dtype)
        difference = np.abs(images.astype(float) - expected) * (255 if dtype == np.float32 else 1)
        assert np.median(difference) <= 0.5
        assert difference.mean() < 0.6

    @on_cpu
    def test_any_number_of_workers(self):
        images, augmentation = self.read(True, nworkers=0)
        for nworkers in (1, 3):
            others, same = self.read(True, nworkers=nworkers)
            assert np.array_equal(images, others)
            assert augmentation == same

    @on_cpu
    def test_noise_alone_is_the_same_to_the_bit(self):
        fixed = {
            "gamma_gray": 1.0,
            "gamma_color": (1, 1, 1),
            "contrast": 0,
            "blur": 0,
            "noise": 0.1,
        }
        assert np.array_equal(self.read(True, **fixed)[0], self.read(False, **fixed)[0])

    @pytest.mark.parametrize(
        ("params", "options"),
        [({"colorspace": "hsv"}, {}), ({}, {"mean": 0.5, "std": 0.5})],
        ids=["colorspace", "mean"],
    )
    def test_what_comes_after_must_be_left_to_the_device_too(self, params, options):
        from crumpets_like.workers import ClassificationWorker

        worker = ClassificationWorker(((3, 8, 8), np.float32), ((), np.int64), params, **options)
        with pytest.raises(ValueError, match="gpu_augmentation needs"):
            fork([], 4, worker, 1, device="cpu", gpu_augmentation=True)
