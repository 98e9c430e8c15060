"""TransformWorker: what a transform gets, what it may return, and its randomness."""

import random
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.workers import TransformWorker, UniformRNG
from tests.support.preparing import prepare

pytest.importorskip("cv2")

PICTURE = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
SPEC = ((3, 8, 10), np.uint8)


def result(worker: TransformWorker, position: int = 0, **more: Any) -> NDArray[Any]:
    rows, batch, _ = prepare(worker, {"image": PICTURE, **more}, position)
    assert not batch
    return np.asarray(rows["image"])


def test_arrays_in_and_out() -> None:
    worker = TransformWorker(SPEC, lambda image: image[:, ::-1])
    np.testing.assert_array_equal(result(worker), PICTURE[:, ::-1].transpose(2, 0, 1))
    worker = TransformWorker(((8, 10, 3), np.uint8), np.flipud, layout="HWC")
    np.testing.assert_array_equal(result(worker), PICTURE[::-1])
    worker = TransformWorker(((1, 8, 10), np.uint8), lambda image: image[:, :, 0])
    assert result(worker).shape == (1, 8, 10)


@pytest.mark.parametrize("image_as", ["array", "keyword", "tensor", "pil"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_datasets_own_arrays_stay_as_they_are(image_as: str, channels: int) -> None:
    pytest.importorskip({"tensor": "torch", "pil": "PIL"}.get(image_as, "numpy"))

    def darken(image: Any) -> Any:
        if image_as == "pil":
            image.paste(0, (0, 0, 5, 5))
        else:
            image[:] = image // 2
        return {"image": image} if image_as == "keyword" else image

    kept = PICTURE[:, :, :channels].copy()
    worker = TransformWorker(((channels, 8, 10), np.uint8), darken, image_as=image_as)
    if image_as in ("array", "keyword"):
        with pytest.raises(ValueError, match="read-only"):
            prepare(worker, {"image": kept})
    else:
        prepare(worker, {"image": kept})
    np.testing.assert_array_equal(kept, PICTURE[:, :, :channels])
    assert kept.flags.writeable


def test_label() -> None:
    worker = TransformWorker(SPEC, np.copy, ((), np.int64))
    rows, _, _ = prepare(worker, {"image": PICTURE, "label": 5})
    assert rows["label"] == 5


def test_bytes_are_scaled_and_floats_are_written_as_they_are() -> None:
    spec = ((3, 8, 10), np.float32)
    worker = TransformWorker(spec, np.copy, mean=0.5, std=0.5)
    expected = (PICTURE.transpose(2, 0, 1) / 255 - 0.5) / 0.5
    np.testing.assert_allclose(result(worker), expected, atol=1e-6)
    worker = TransformWorker(spec, lambda image: image * -2.0, mean=0.5, std=0.5)
    np.testing.assert_array_equal(result(worker), PICTURE.transpose(2, 0, 1) * -2.0)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    seen = []

    def flip(image: Any) -> Any:
        seen.append((image.dtype, tuple(image.shape)))
        return image.flip(-1)

    worker = TransformWorker(SPEC, flip, image_as="tensor")
    np.testing.assert_array_equal(result(worker), PICTURE[:, ::-1].transpose(2, 0, 1))
    assert seen == [(torch.uint8, (3, 8, 10))]
    # As kornia has it: floats, and a leading axis of one.
    worker = TransformWorker(
        ((3, 8, 10), np.float32), lambda image: image[None] / 255, image_as="tensor"
    )
    np.testing.assert_allclose(result(worker), PICTURE.transpose(2, 0, 1) / 255, rtol=1e-6)


def test_pil_images() -> None:
    ops = pytest.importorskip("PIL.ImageOps")
    worker = TransformWorker(SPEC, ops.mirror, image_as="pil")
    np.testing.assert_array_equal(result(worker), PICTURE[:, ::-1].transpose(2, 0, 1))
    grey = TransformWorker(((1, 8, 10), np.uint8), ops.mirror, image_as="pil")
    assert result(grey).shape == (1, 8, 10)


@pytest.mark.parametrize(
    ("module", "image_as"),
    [
        ("torchvision.transforms.v2._container", "tensor"),
        ("albumentations.core.composition", "keyword"),
        ("albumentations_of_mine", "array"),
        ("__main__", "array"),
    ],
)
def test_the_library_says_what_a_transform_gets(module: str, image_as: str) -> None:
    kind = type("Compose", (), {"__module__": module, "__call__": lambda self, image: image})
    assert TransformWorker(SPEC, kind()).image_as == image_as
    assert TransformWorker(SPEC, kind(), image_as="pil").image_as == "pil"


class Seeded:
    """As albumentations: called by keyword, with a generator of its own that can be seeded."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        assert 0 <= seed < 2**32
        self.generator = np.random.default_rng(seed)

    def __call__(self, *, image: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
        return {"image": image ^ self.generator.integers(0, 256, image.shape, np.uint8)}


def by_python(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image ^ np.uint8(random.randrange(256))


def by_numpy(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return image ^ np.random.randint(0, 256, image.shape, np.uint8)


def by_torch(image: Any) -> Any:
    import torch

    return image ^ torch.randint(0, 256, image.shape, dtype=torch.uint8)


def by_generator(image: NDArray[np.uint8], generator: np.random.Generator) -> NDArray[np.uint8]:
    return image ^ generator.integers(0, 256, image.shape, np.uint8)


WAYS: Any = {
    "python": (by_python, {}),
    "numpy": (by_numpy, {}),
    "torch": (by_torch, {"image_as": "tensor"}),
    "own": (Seeded(), {"image_as": "keyword"}),
    "generator": (by_generator, {"pass_generator": True}),
}


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=pytest.mark.slow if way == "torch" else ()) for way in WAYS],
)
def test_randomness_is_the_samples_own(way: str) -> None:
    transform, options = WAYS[way]
    if way == "torch":
        pytest.importorskip("torch")

    def epoch(nworkers: int, seed: int = 3) -> list[NDArray[np.uint8]]:
        worker = TransformWorker(SPEC, transform, **options)
        samples = [{"image": PICTURE}] * 9
        loader = TurboDataLoader(samples, 4, worker, nworkers, seed=seed)
        with loader:
            return [b["image"].copy() for _, batches in loader for b in batches]

    alone, many = np.concatenate(epoch(0)), np.concatenate(epoch(2))
    np.testing.assert_array_equal(alone, many)
    assert len({row.tobytes() for row in alone}) == 9
    assert (np.concatenate(epoch(0, seed=4)) != alone).any()


def test_the_callers_generators_stay_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for transform in (by_python, by_numpy):
        result(TransformWorker(SPEC, transform))
    result(TransformWorker(SPEC, by_torch, image_as="tensor"))
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


@pytest.mark.parametrize(
    ("spec", "returned", "reason"),
    [
        (SPEC, PICTURE[:4], r"shape \(H, W, C\) = \(4, 10, 3\), but the buffer needs \(8, 10, 3\)"),
        (SPEC, PICTURE[:, :, 0], r"\(8, 10, 1\)"),
        (SPEC, PICTURE / 255, "returned float64, but the buffer holds uint8"),
        (((3, 8, 10), np.float32), PICTURE.astype(np.int64), "returned int64"),
        (SPEC, None, "returned|shape"),
    ],
)
def test_wrong_results_are_named(spec: Any, returned: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        result(TransformWorker(spec, lambda image: returned))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="transform must be callable, not dict"):
        TransformWorker(SPEC, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"image_as must be one of \('array', .* not 'numpy'"):
        TransformWorker(SPEC, np.copy, image_as="numpy")


def test_nothing_is_left_to_the_device() -> None:
    reason = "gpu_augmentation=True needs pixel operations .* TransformWorker has none"
    with pytest.raises(ValueError, match=reason):
        TransformWorker(SPEC, np.copy, gpu_augmentation=True)
    worker = TransformWorker(SPEC, np.copy, gpu_augmentation=False)
    with pytest.raises(ValueError, match=reason):
        worker.gpu_augmentation = True  # as a loader of tensors does


def test_parameters_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="image_rng has no effect in a TransformWorker"):
        TransformWorker(SPEC, np.copy, image_rng=UniformRNG(angle=(0, 9)))
    with pytest.raises(ValueError, match="image_params: angle, noise has no effect"):
        TransformWorker(SPEC, np.copy, image_params={"angle": 9.0, "noise": 0.1, "color": True})
    TransformWorker(SPEC, np.copy, image_rng=None, image_params={"color": True, "background": 3})


def test_torch_is_not_imported_for_it() -> None:
    import subprocess

    code = (
        "import sys, numpy as np; from crumpets_like.workers import TransformWorker;"
        "TransformWorker(((3, 8, 8), np.uint8), np.copy); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
