"""Pixel operations on a CUDA device: right, beside the caller's work, and nothing waits."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cv2")

from crumpets_like.torch import Randomizer  # noqa: E402
from crumpets_like.workers.pixels import apply_pixels  # noqa: E402
from tests.support.augmenting import NEUTRAL, Pictures, draw, photos  # noqa: E402
from tests.support.devices import fork  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} finds no CUDA device on this machine",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def cuda_is_up():
    """What CUDA opens once for the whole process is no leak of the first test."""
    kernel = torch.ones(2, 1, 1, 3, device="cuda")
    torch.nn.functional.conv2d(torch.ones(1, 2, 4, 4, device="cuda"), kernel, groups=2).cpu()
    torch.mm(torch.ones(8, 8).pin_memory().to("cuda"), torch.ones(8, 8, device="cuda")).cpu()


def on_device(images, augmentation):
    tensor = torch.from_numpy(images).to("cuda").permute(0, 3, 1, 2)
    result = Randomizer()({"image": tensor, "augmentation": augmentation})["image"]
    assert result.device == tensor.device
    return result.permute(0, 2, 3, 1).cpu().numpy().astype(int)


def in_worker(images, augmentation):
    pairs = zip(images, augmentation, strict=True)
    return np.stack([apply_pixels(image, params, images.shape[3] == 3) for image, params in pairs])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("params", "most"),
    [
        ({"gamma_gray": 0.4, "gamma_color": (0.5, 1.0, 2.0), "contrast": 0.5}, 1),
        ({"gamma_gray": 2.0, "contrast": -1.0}, 1),
        ({"noise": 0.3}, 0),
        ({"blur": 0.002}, 2),
        ({"blur": 0.05}, 2),
    ],
)
def test_values_are_those_of_a_worker(params, most, channels):
    images = photos(8, channels=channels)
    augmentation = [{**NEUTRAL, **params, "noise_seed": seed} for seed in range(8)]
    difference = np.abs(on_device(images, augmentation) - in_worker(images, augmentation))
    assert difference.max() <= most


def test_drawn_parameters():
    images, augmentation = photos(24), draw(24)
    difference = np.abs(on_device(images, augmentation) - in_worker(images, augmentation))
    assert np.median(difference) == 0
    assert difference.mean() < 0.5


def test_nothing_waits_for_the_device():
    augmentation = draw(24)
    mini_batch = {"image": torch.from_numpy(photos(24)).permute(0, 3, 1, 2).to("cuda")}
    mini_batch["augmentation"] = augmentation
    Randomizer()(mini_batch)
    torch.cuda.set_sync_debug_mode("error")
    try:
        Randomizer()(mini_batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def read(nworkers, device):
    options = {"device": device, "shuffle": True, "seed": 4, "gpu_augmentation": True}
    with fork(range(400), 16, Pictures(), nworkers, **options) as loader:
        return [mini_batch["image"] for _, (mini_batch,) in loader]


@pytest.mark.filterwarnings("ignore:gpu_augmentation=True with device 'cpu'")
def test_a_loader_gives_the_same_for_any_number_of_workers():
    expected = read(0, "cpu")
    first = read(0, "cuda")
    for nworkers in (1, 4):
        assert all(map(torch.equal, first, read(nworkers, "cuda")))
    for ours, theirs in zip(first, expected, strict=True):
        assert (ours.cpu().int() - theirs.int()).abs().float().mean() < 0.5


def test_the_callers_stream_waits_for_it():
    """Mini-batches may be used at once and dropped at once, while the device is busy."""
    matrix = torch.randn(4096, 4096, device="cuda")
    expected = [image.sum(dtype=torch.int64) for image in read(2, "cuda")]
    options = {"device": "cuda", "shuffle": True, "seed": 4, "gpu_augmentation": True}
    sums = []
    with fork(range(400), 16, Pictures(), 2, **options) as loader:
        for _, (mini_batch,) in loader:
            torch.mm(matrix, matrix)
            sums.append(mini_batch["image"].sum(dtype=torch.int64))
            del mini_batch
    assert torch.equal(torch.stack(sums), torch.stack(expected))


def test_nothing_leaks():
    def allocated():
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = allocated()
    for _ in range(3):
        read(2, "cuda")
    assert allocated() == before


def test_it_has_a_name_in_the_profiler():
    from torch.profiler import ProfilerActivity, profile

    options = {"device": "cuda", "gpu_augmentation": True}
    with (
        fork(range(40), 4, Pictures(), 2, **options) as loader,
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler,
    ):
        assert len(list(loader)) == 10
    names = [event.name for event in profiler.events()]
    assert names.count("crumpets_like: augment on cuda:0") >= 10
