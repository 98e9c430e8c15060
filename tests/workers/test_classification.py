"""ClassificationWorker, by itself and behind a loader."""

import subprocess
import sys
import traceback
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from crumpets_like import TurboDataLoader
from crumpets_like.workers import ClassificationWorker, RandomAffine
from crumpets_like.workers.affine import warp
from crumpets_like.workers.decoding import decode_image

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")

LABEL = ((), np.int64)


class Photos:
    """JPEG bytes of pictures of different sizes."""

    def __init__(self, count: int = 22, broken: int | None = None) -> None:
        self.count = count
        self.broken = broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows, columns = np.mgrid[0 : 40 + index, 0:50]
        pixels = np.stack((4 * rows, 5 * columns, rows + columns + index), axis=-1)
        data = simplejpeg.encode_jpeg(pixels.clip(0, 255).astype(np.uint8))
        return {"image": data[:100] if index == self.broken else data, "label": index}


def make_worker(dtype: Any = np.uint8, **kwargs: Any) -> ClassificationWorker:
    kwargs.setdefault("image_rng", RandomAffine(10.0, 0.1, (0.8, 1.2), 0.5))
    return ClassificationWorker(((3, 32, 32), dtype, (10, 20, 30)), LABEL, **kwargs)


def read_epochs(nworkers: int, epochs: int = 2, **kwargs: Any) -> list[dict[str, Any]]:
    """Every sample of some shuffled epochs, as dicts."""
    loader = TurboDataLoader(Photos(), 8, make_worker(**kwargs), nworkers, shuffle=True, seed=5)
    with loader:
        return [
            {key: mini_batch[key][row] for key in ("image", "label", "augmentation")}
            for _ in range(epochs)
            for _, mini_batches in loader
            for mini_batch in mini_batches
            for row in range(len(mini_batch["label"]))
        ]


def test_rows_labels_and_parameters_belong_together() -> None:
    samples = read_epochs(nworkers=2)
    assert sorted(int(sample["label"]) for sample in samples) == sorted(2 * list(range(22)))
    for sample in samples:
        pixels = decode_image(Photos()[int(sample["label"])]["image"], 3)
        expected = np.zeros((3, 32, 32), np.uint8)
        warp(pixels, expected, sample["augmentation"], (10.0, 20.0, 30.0))
        np.testing.assert_array_equal(sample["image"], expected)
    assert len({sample["augmentation"]["angle"] for sample in samples}) == len(samples)


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    alone, many = read_epochs(nworkers=0), read_epochs(nworkers=3)
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        assert one["label"] == other["label"]
        assert one["augmentation"] == other["augmentation"]


def test_without_rng_the_fixed_parameters_hold() -> None:
    params = {"angle": 90.0, "hmirror": True}
    samples = read_epochs(nworkers=0, epochs=1, image_rng=None, image_params=params)
    for sample in samples:
        assert sample["augmentation"] == {
            "angle": 90.0,
            "scale": 1.0,
            "shift": (0.0, 0.0),
            "hmirror": True,
            "scale_mode": "shortest",
        }


def test_rng_gets_image_row_and_generator_and_overrides() -> None:
    seen: list[tuple[Any, ...]] = []

    def rng(
        image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        seen.append((image.shape, buffer.shape, generator.random()))
        return {"scale": 2.0}

    worker = make_worker(image_rng=rng, image_params={"scale": 3.0, "angle": 5.0})
    buffer = np.zeros((3, 32, 32), np.uint8)
    image = np.zeros((20, 30, 3), np.uint8)
    params = worker.prepare_image(image, buffer, np.random.default_rng(1))
    assert (params["scale"], params["angle"]) == (2.0, 5.0)
    assert seen == [((20, 30, 3), (3, 32, 32), np.random.default_rng(1).random())]
    # The worker's own parameters are not changed by what one image got.
    assert worker.params["image"]["scale"] == 3.0


def test_float_rows_and_background_are_scaled() -> None:
    worker = ClassificationWorker(
        ((3, 16, 16), np.float32, (0.0, 0.5, 1.0)), LABEL, {"shift": (0.5, 0.0)}
    )
    buffer = np.full((3, 16, 16), np.nan, np.float32)
    worker.prepare_image(np.full((16, 16, 3), 51, np.uint8), buffer, np.random.default_rng(0))
    np.testing.assert_allclose(buffer[:, :, 8:], 0.2, rtol=1e-6)
    np.testing.assert_allclose(buffer[:, 0, 0], [0.0, 0.5, 1.0], atol=0.5 / 255)


def test_grey_images() -> None:
    worker = ClassificationWorker(((1, 16, 16), np.uint8), LABEL)
    buffer = np.zeros((1, 16, 16), np.uint8)
    image = np.arange(256, dtype=np.uint8).reshape(16, 16)
    worker.prepare_image(image, buffer, np.random.default_rng(0))
    np.testing.assert_array_equal(buffer[0], image)


def test_broken_image_names_reason_and_index() -> None:
    loader = TurboDataLoader(Photos(broken=13), 8, make_worker(), 2)
    with loader, pytest.raises(ValueError, match="broken JPEG of 100 bytes") as caught:
        list(loader)
    assert "index 13" in "".join(traceback.format_exception(caught.value))


def test_wrong_result_of_the_rng_is_named() -> None:
    worker = make_worker(image_rng=lambda image, buffer, generator: {"zoom": 2.0})
    with pytest.raises(ValueError, match="image_rng's result has unknown parameters zoom"):
        worker.prepare_image(
            np.zeros((4, 4, 3), np.uint8), np.zeros((3, 4, 4)), np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ((3, 32, 32), r"\(shape, dtype\) or"),
        (((32, 32), np.uint8), r"shape \(C, H, W\) with C 1 or 3.*\(32, 32\)"),
        (((4, 32, 32), np.uint8), r"\(4, 32, 32\)"),
        (((3, 0, 32), np.uint8), r"\(3, 0, 32\)"),
        (((3, 32, 32), np.int8), "not int8"),
        (((3, 32, 32), np.bool_), "not bool"),
        (((3, 32, 32), np.uint8, (1, 2)), "so 3, not 2"),
        (((3, 32, 32), np.uint8, 256), "within 0 and 255.*not 256"),
        (((3, 32, 32), np.float32, 124.0), "within 0 and 1,.*not 124"),
        (((3, 32, 32), np.float32, float("nan")), "not nan"),
    ],
)
def test_wrong_image_specs_are_named(image: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ClassificationWorker(image, LABEL)


def test_wrong_arguments_are_named() -> None:
    spec = ((3, 32, 32), np.uint8)
    with pytest.raises(ValueError, match="image_params has unknown parameters zoom"):
        ClassificationWorker(spec, LABEL, image_params={"zoom": 1})
    with pytest.raises(TypeError, match="image_rng must be callable, not dict"):
        ClassificationWorker(spec, LABEL, image_rng={"angle": 3})  # type: ignore[arg-type]


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crumpets_like.workers.classification.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"cv2 and simplejpeg.*crumpets-like\[image\]"):
        make_worker()


def test_opencv_is_single_threaded_in_workers() -> None:
    before = cv2.getNumThreads()
    try:
        make_worker().setup()
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)


def test_import_is_light() -> None:
    code = "import sys, crumpets_like.workers; print(*{'cv2', 'simplejpeg'} & set(sys.modules))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == ""
