"""What all workers for targets have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crumpets_like import TurboDataLoader
from crumpets_like.broker.buffers import BufferSpec
from crumpets_like.workers import (
    DetectionWorker,
    ImageWorker,
    KeypointWorker,
    SaliencyWorker,
    SegmentationWorker,
    UniformRNG,
    make_transform,
)
from crumpets_like.workers.geometry import transform_points
from crumpets_like.workers.image import field
from crumpets_like.workers.targets import map_size, target_matrix
from tests.support.markers import painted, read
from tests.support.scenario import run_scenario

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pytest.importorskip("PIL")

DOCS = Path(__file__).parents[2] / "docs"
IMAGE = ((3, 60, 80), np.uint8)
RNG = UniformRNG(
    angle=(-30, 30), scale=(0.8, 1.5), shift=(-1, 1), hmirror=0.5, noise=(0.0, 0.2), blur=(0, 0.02)
)

WORKERS: dict[str, ImageWorker] = {
    "segmentation": SegmentationWorker(IMAGE, ((60, 80), np.int64, 255), image_rng=RNG),
    "saliency": SaliencyWorker(
        IMAGE,
        ((30, 40), np.float32),
        target_image_params={"jitter": 0.05, "sample_ratio": 0.5, "blur": 0.02},
        image_rng=RNG,
    ),
    "detection": DetectionWorker(IMAGE, 3, image_rng=RNG),
    "keypoints": KeypointWorker(IMAGE, 2, image_rng=RNG, swap=[(0, 1)]),
}


def sample_of(index: int) -> dict[str, Any]:
    """A picture of its own, with every kind of target."""
    left, top = 10 + 3 * index, 60 - 2 * index
    picture = painted(left, top, left + 30, top + 20)
    return {
        "image": picture,
        "target_image": picture[:, :, 0] // 255,
        "experiments": [{"fixations": [(left + k, top + k)]} for k in range(4)],
        "boxes": [(left, top, left + 30, top + 20), (0, 0, 50, 50)],
        "classes": [index, 1],
        "keypoints": [(left, top), (left + 30, top)],
    }


def epoch(name: str, nworkers: int) -> dict[str, list[Any]]:
    """All samples of one epoch, field by field."""
    samples = [sample_of(index) for index in range(24)]
    with TurboDataLoader(
        samples, 8, WORKERS[name], nworkers, start_method="thread", shuffle=True, seed=1
    ) as loader:
        mini_batches = [mini_batch for _, parts in loader for mini_batch in parts]
    return {key: [row for part in mini_batches for row in part[key]] for key in mini_batches[0]}


@pytest.mark.parametrize("name", WORKERS)
def test_results_do_not_depend_on_the_number_of_workers(name: str) -> None:
    alone, several = epoch(name, 0), epoch(name, 3)
    assert alone.keys() == several.keys()
    for key, rows in alone.items():
        for one, other in zip(rows, several[key], strict=True):
            np.testing.assert_equal(one, other)
    assert len({params["angle"] for params in alone["augmentation"]}) == 24


@pytest.mark.parametrize("name", WORKERS)
def test_image_and_augmentation_are_those_of_the_plain_worker(name: str) -> None:
    samples = [sample_of(index) for index in range(4)]
    plain = read(ImageWorker(IMAGE, image_rng=RNG), *samples)
    with_target = read(WORKERS[name], *samples)
    np.testing.assert_array_equal(with_target["image"], plain["image"])
    assert with_target["augmentation"] == plain["augmentation"]


def test_a_target_shows_what_its_image_shows() -> None:
    params = {"size": (120, 160), "angle": 20.0, "scale": 1.2, "shift": (0.1, -0.4)}
    geometry = {key: value for key, value in params.items() if key != "size"}
    matrix = make_transform((120, 160), (60, 80), **geometry)  # type: ignore[arg-type]
    np.testing.assert_allclose(target_matrix(params, (60, 80)), matrix)
    np.testing.assert_allclose(target_matrix(params, (60, 80), (60, 80)), matrix)
    # Also where its sides have another ratio: edges stay edges, middles middles.
    found = target_matrix(params, (60, 80), (15, 40))
    points = np.array([(3.0, 4.0), (80.0, 60.0), (150.0, 20.0)])
    on_image = transform_points(matrix, points)
    expected = (on_image + 0.5) * (40 / 80, 15 / 60) - 0.5
    np.testing.assert_allclose(transform_points(found, points), expected)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((3, 4), (3, 4)), ((1, 3, 4), (3, 4)), ((3, 4, 1), (3, 4)), ((1, 1), (1, 1))],
)
def test_shapes_of_one_channel(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    assert map_size("key", BufferSpec(shape, np.uint8)) == size


@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 4), (1, 0, 4), (1, 1, 3, 4)])
def test_shapes_of_no_map(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"key must have a shape \(H, W\) or \(1, H, W\)"):
        map_size("key", BufferSpec(shape, np.uint8))


def test_field() -> None:
    assert field({"a": 3}, "a") == 3
    with pytest.raises(ValueError, match="no 'b'; its keys are none"):
        field({}, "b")


@pytest.mark.parametrize("guide", ["targets", "tokens"])
def test_examples_of_the_guides(guide: str) -> None:
    text = (DOCS / f"{guide}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert run_scenario(block, options=["-W", "error"]).check().stderr == ""
