"""The benchmark cases: what is loaded, by whom, how much, and what must be reached.

Batches per epoch are chosen so that the faster contenders take about 0.5 to 2 seconds for a timed
epoch and the slow ones a few. Rates are per second: contenders need not load the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from . import crops, datasets, photos
from .case import Case, MakeDataset
from .requirements import Requirement


def _from_torch(name: str) -> MakeDataset:
    """Return a factory that imports torch only when the dataset is built."""

    def make(samples: int) -> Any:
        from . import torch_datasets

        return getattr(torch_datasets, name)(samples)

    return make


_RATE = "samples_per_second"
_FIRST = "first_batch_s"
_TORCH = ("torch",)
# What is held against it closely has long epochs, and runs right before it: on a shared machine
# one second, or one minute, can be slower than another by more than the difference.
_LIMIT = ("limit",)
_VECTORS = "32 float32 + label"


def _crops(
    name: str, kind: tuple[int, int, int], batches: int, pillow: float, opencv: float
) -> Case:
    """Return a case of random crops out of photographs, with what torch must be exceeded by."""
    height, width, _ = kind
    return Case(
        name,
        f"decode {width}x{height}, random crop to 224, flip",
        64,
        2,
        {
            "ours": 3 * batches,
            "limit": 3 * batches,
            "torch-pillow": batches // 2,
            "torch-opencv": batches // 2,
            "torch-opencv-coarse": batches // 2,
        },
        partial(crops.Photos, kind=kind),
        (
            Requirement(_RATE, pillow, ("torch-pillow",)),
            Requirement(_RATE, opencv, ("torch-opencv",)),
            Requirement(_RATE, 0.95, _LIMIT),
        ),
        others={
            "torch-pillow": partial(crops.PillowCrops, kind=kind),
            "torch-opencv": partial(crops.OpenCVCrops, kind=kind),
            "torch-opencv-coarse": partial(crops.CoarseOpenCVCrops, kind=kind),
            "limit": partial(crops.PreparedCrops, kind=kind, worker=crops.imagenet_worker),
        },
        own_workers={"ours": crops.imagenet_worker},
        shape=(photos.CROP, photos.CROP, 3),
        dtype="uint8",
        needs=("cv2", "simplejpeg", "PIL"),
        notes={
            "torch-pillow": "Pillow decodes, crops and resizes",
            "torch-opencv": "simplejpeg decodes, OpenCV resizes a slice by INTER_AREA",
            "torch-opencv-coarse": "by INTER_LINEAR: faster, but it aliases",
            "limit": "our worker's own prepare",
        },
    )


_ALL = (
    Case(
        "small",
        f"{_VECTORS}, prepare per sample",
        256,
        2,
        {"ours": 2048, "limit": 8192, "torch": 256, "torch0": 256},
        datasets.VectorDataset,
        (Requirement(_RATE, 8, _TORCH), Requirement(_RATE, 0.35, _LIMIT)),
    ),
    Case(
        "small-bulk",
        f"{_VECTORS}, prepare_batch",
        256,
        2,
        {
            "ours": 4096,
            "limit": 32768,
            "torch": 256,
            "torch-listed": 256,
            "torch-arrays": 2048,
            "torch0": 256,
        },
        datasets.vector_records,
        (Requirement(_RATE, 20, ("torch", "torch-listed")),),
        worker="BulkCopyWorker",
        others={
            "torch": datasets.VectorDataset,
            "torch0": datasets.VectorDataset,
            "torch-listed": datasets.ListedVectorDataset,
            "torch-arrays": datasets.BulkVectorDataset,
            "limit": datasets.BulkVectorDataset,
        },
        notes={
            "torch-listed": "__getitems__ returns a list of samples, default collate",
            "torch-arrays": "__getitems__ returns arrays, collate_fn wraps them",
        },
    ),
    Case(
        "small-seeded",
        f"{_VECTORS}, one draw each, shuffled",
        256,
        2,
        {"ours": 1024, "limit": 1024, "torch": 192, "torch0": 192},
        datasets.VectorDataset,
        (Requirement(_RATE, 3, _TORCH),),
        worker="DrawingWorker",
        others={
            "torch": _from_torch("TorchSeededDataset"),
            "torch0": _from_torch("TorchSeededDataset"),
            "limit": datasets.DrawingVectorDataset,
        },
        shuffle=True,
        seed=0,
        notes={
            "torch": "reseeds a torch.Generator per sample",
            "limit": "draws without reseeding, in sequence",
        },
    ),
    Case(
        "big",
        "(3, 224, 224) float32, copied",
        64,
        2,
        {"ours": 320, "limit": 320, "torch": 32, "torch0": 32},
        datasets.ImageDataset,
        (Requirement(_RATE, 10, _TORCH), Requirement(_RATE, 0.9, _LIMIT)),
        shape=(3, 224, 224),
    ),
    Case(
        "jpeg",
        "decode 500x375, crop, resize 224",
        64,
        2,
        {"ours": 96, "limit": 96, "torch": 24, "torch0": 12},
        photos.PhotoDataset,
        (Requirement(_RATE, 0.95, _LIMIT),),
        shape=(224, 224, 3),
        dtype="uint8",
        needs=("cv2", "simplejpeg"),
    ),
    _crops("image-imagenet", crops.SMALL, 24, pillow=1.4, opencv=1.1),
    _crops("image-large", crops.LARGE, 6, pillow=3, opencv=1.5),
    Case(
        "image-device",
        "decode 640x427, warp to 224; gamma, contrast, noise, blur",
        1,
        0,
        {"ours": 40},
        datasets.VectorDataset,  # (the workers have their own)
        (
            Requirement("geometry_ratio", 1.05, at_most=True),
            Requirement("pixels_ratio", 1 / 1.4, at_most=True),
        ),
        kind="worker",
        needs=("cv2", "simplejpeg"),
        notes={"ours": "time of a worker that leaves pixel operations to the device"},
    ),
    Case(
        "wait",
        "5 ms sleep",
        64,
        16,
        {"ours": 64, "limit": 64, "ours-fork": 64, "torch": 48, "torch0": 1},
        partial(datasets.WaitingDataset, seconds=0.005),
        (
            Requirement(_FIRST, 1 / 2, _TORCH, at_most=True),
            Requirement(_FIRST, 1 / 3, _TORCH, at_most=True, contender="ours-fork"),
            Requirement(_RATE, 0.97, _LIMIT),
        ),
    ),
    Case(
        "wait64",
        "5 ms sleep",
        64,
        64,
        {"ours": 256, "limit": 256, "torch": 128, "torch0": 1},
        partial(datasets.WaitingDataset, seconds=0.005),
        (Requirement(_RATE, 0.95, _LIMIT),),
    ),
    Case(
        "uneven",
        "every 16th 160 ms, others 2 ms",
        64,
        16,
        {"ours": 48, "limit": 48, "torch": 32, "torch0": 1},
        partial(datasets.WaitingDataset, seconds=0.002, slow_seconds=0.160),
        (Requirement(_RATE, 0.97, _LIMIT),),
    ),
    Case(
        "step",
        "small, caller spins 2 ms a batch",
        64,
        2,
        {"ours": 320, "torch": 192, "torch0": 192},
        datasets.VectorDataset,
        (Requirement("ms_per_batch", 2.2, at_most=True),),
        step_s=0.002,
    ),
    Case(
        "dropin-small",
        f"{_VECTORS}, torch's interface",
        256,
        2,
        {"ours": 1024, "torch": 256, "torch0": 256},
        datasets.VectorDataset,
        (Requirement(_RATE, 2, _TORCH),),
        dropin=True,
        needs=("torch",),
    ),
    Case(
        "dropin-big",
        "(3, 224, 224) float32, torch's interface",
        64,
        2,
        {"ours": 160, "torch": 32, "torch0": 32},
        datasets.ImageDataset,
        (Requirement(_RATE, 5, _TORCH),),
        dropin=True,
        needs=("torch",),
    ),
    Case(
        "dropin-jpeg",
        "decode 500x375, crop, resize 224, torch's interface",
        64,
        2,
        {"ours": 32, "torch": 24, "torch0": 12},
        photos.PhotoDataset,
        (Requirement(_RATE, 1, _TORCH),),
        dropin=True,
        needs=("torch", "cv2", "simplejpeg"),
    ),
    Case(
        "executor-step",
        "forward + backward of an executor, beside eager PyTorch",
        64,
        0,
        {"ours": 400, "ours-cnn": 100},
        datasets.VectorDataset,  # (steps need none)
        tuple(
            Requirement(measure, bound, at_most=True, contender=contender)
            for contender in ("ours", "ours-cnn")
            for measure, bound in (("eager_ratio", 1.05), ("reallocated", 0))
        ),
        kind="steps",
        needs=("torch",),
        notes={"ours": "MLP 784-512-512-10", "ours-cnn": "3 convolutions, 3 x 32 x 32"},
    ),
    Case(
        "start",
        "dataset that imports torch, fresh interpreter",
        64,
        8,
        {"ours": 64, "torch": 64},
        _from_torch("TorchImportingDataset"),
        (Requirement(_FIRST, 1 / 4, _TORCH, at_most=True),),
        kind="first",
        needs=("torch",),
        notes={"torch": "multiprocessing_context='spawn'"},
    ),
    Case(
        "shuffle",
        "10^9 shuffled indices, first batch",
        64,
        2,
        {"ours": 10**9 // 64},
        datasets.EndlessDataset,
        (
            Requirement("reopen_s", 0.1, at_most=True),
            Requirement("rss_growth_mb", 50, at_most=True),
        ),
        shuffle=True,
        kind="reopen",
        notes={"torch": "not run: its list of 10^9 shuffled indices takes about 44 GB"},
    ),
)

#: Every case, by name, in the order in which they run.
CASES: Mapping[str, Case] = {case.name: case for case in _ALL}

#: What `--quick` runs when no case is named.
QUICK = ("small", "small-bulk", "step", "shuffle")
