"""ClassificationWorker, behind a loader."""

import traceback
from typing import Any

import msgpack
import numpy as np
import pytest

from crumpets_like import TurboDataLoader
from crumpets_like.workers import ClassificationWorker, MixtureRNG, presets, randomize_image
from crumpets_like.workers.decoding import decode_image
from crumpets_like.workers.parameters import PARAMETERS
from tests.support.preparing import prepare

simplejpeg = pytest.importorskip("simplejpeg")
pytest.importorskip("cv2")

LABEL = ((), np.int64)
EVERYTHING = MixtureRNG(
    prob=0.7,
    scale_range=(0.8, 1.5),
    noise_range=(0.01, 0.1),
    brightness_range=(-0.3, 0.3),
    contrast_range=(-0.5, 0.5),
    blur_range=(0.01, 0.05),
    rotation_sigma=20.0,
    hmirror=0.5,
)


class Photos:
    """JPEG bytes of pictures of different sizes; every second sample is packed."""

    def __init__(self, count: int = 22, broken: int | None = None) -> None:
        self.count = count
        self.broken = broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        rows, columns = np.mgrid[0 : 40 + index, 0:50]
        pixels = np.stack((4 * rows, 5 * columns, rows + columns + index), axis=-1)
        data = simplejpeg.encode_jpeg(pixels.clip(0, 255).astype(np.uint8))
        sample = {"image": data[:100] if index == self.broken else data, "label": index}
        return msgpack.packb(sample) if index % 2 else sample


def make_worker(dtype: Any = np.uint8, **kwargs: Any) -> ClassificationWorker:
    kwargs.setdefault("image_rng", EVERYTHING)
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
    photos = Photos()
    for sample in samples:
        index = int(sample["label"])
        given = {name: sample["augmentation"][name] for name in PARAMETERS}
        data = photos[index] if index % 2 == 0 else msgpack.unpackb(photos[index])
        # At this size there is no smaller decode that the target allows.
        expected = randomize_image(decode_image(data["image"]), (32, 32), **given)
        np.testing.assert_array_equal(sample["image"], expected.transpose(2, 0, 1))
    assert len({sample["augmentation"]["angle"] for sample in samples}) == len(samples)


def test_results_do_not_depend_on_the_number_of_workers() -> None:
    alone, many = read_epochs(nworkers=0), read_epochs(nworkers=3)
    for one, other in zip(alone, many, strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
        assert one["label"] == other["label"]
        assert one["augmentation"] == other["augmentation"]


def test_imagenet() -> None:
    for rng in (presets.IMAGENET_TRAIN, presets.IMAGENET_EVAL, presets.SEGMENTATION_TRAIN):
        worker = ClassificationWorker(
            ((3, 32, 32), np.float32),
            LABEL,
            image_rng=rng,
            mean=presets.IMAGENET_MEAN,
            std=presets.IMAGENET_STD,
        )
        rows, batch, _ = prepare(worker, Photos()[3])
        assert rows["label"] == 3
        assert -2.2 < rows["image"].min() < rows["image"].max() < 2.7
        assert len(batch["augmentation"]) == 1


def test_labels_out_of_range_are_refused() -> None:
    worker = ClassificationWorker(((3, 32, 32), np.uint8), ((), np.uint8))
    with pytest.raises((OverflowError, ValueError), match=r"256|out of bounds"):
        prepare(worker, {**Photos()[2], "label": 256})


def test_missing_label_is_named() -> None:
    worker = ClassificationWorker(((3, 32, 32), np.uint8), LABEL)
    with pytest.raises(ValueError, match="the sample has no 'label'; its keys are 'image'"):
        prepare(worker, {"image": Photos()[2]["image"]})


def test_broken_image_names_reason_and_index() -> None:
    loader = TurboDataLoader(Photos(broken=13), 8, make_worker(), 2)
    with loader, pytest.raises(ValueError, match="JPEG") as caught:
        list(loader)
    assert "index 13" in "".join(traceback.format_exception(caught.value))
