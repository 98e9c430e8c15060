"""From what a worker has written to pictures, and the sheet of a loader's next samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..arguments import check_count
from .drawing import inset
from .draws import Draws, draw
from .overlays import draw_over_batch, draw_over_sample
from .sheet import Cell, contact_sheet, fit

if TYPE_CHECKING:
    from ..dataloader import TurboDataLoader
    from ..workers.image import ImageWorker

__all__ = ["DRAWS", "parameter_words", "preview", "visible_pixels"]

DRAWS = 8
"""Pictures of each sample, beside the whole image."""


def preview(loader: TurboDataLoader, n: int) -> tuple[Image.Image, Draws]:
    """Make the sheet, see :meth:`Previewable.preview`, and tell which samples it shows."""
    from ..workers.image import ImageWorker

    count = check_count("n", n)
    worker = loader._options.worker_template
    if not isinstance(worker, ImageWorker):
        raise TypeError(
            f"preview shows what a crumpets_like.workers.ImageWorker makes of images, but the "
            f"loader's worker is a {type(worker).__name__}"
        )
    draws = draw(loader, count, DRAWS)
    rows = []
    for row, (key, sample) in enumerate(zip(draws.keys, draws.samples, strict=True)):
        cells = [_whole(worker, key, worker.unpack(sample), loader._options.dataset)]
        for batch in draws.batches:
            cells.append(_drawn(worker, {name: values[row] for name, values in batch.items()}))
        rows.append(cells)
    header = ["whole image", *(f"epoch {epoch}" for epoch in draws.epochs)]
    return contact_sheet(header, rows), draws


def _whole(worker: ImageWorker, key: Any, sample: Mapping[str, Any], dataset: Any) -> Cell:
    """The image as it is, and which it is."""
    from ..workers.decoding import decode_image, image_size, read_image
    from ..workers.segmentation import SegmentationWorker

    image = sample["image"]
    source = read_image(image)
    size = image_size(source)
    factor, shown = _shown_size(size)
    pixels = decode_image(source, min_size=shown, max_pixels=worker.max_pixels)
    own = {"image"} if isinstance(worker, SegmentationWorker) else {"image", "target_image"}
    others = {key: value for key, value in sample.items() if key not in own}
    picture = draw_over_sample(_resized(pixels, shown), others, size, factor)
    named = isinstance(image, str | os.PathLike)
    words = [os.path.basename(image) if named else f"sample {key}", f"{size[1]} x {size[0]}"]
    label = sample.get("label")
    if label is not None and np.ndim(label) == 0:
        classes = getattr(dataset, "classes", None)
        words.append(str(classes[int(label)]) if classes else f"label {label}")
    return Cell(picture, words)


def _drawn(worker: ImageWorker, fields: Mapping[str, Any]) -> Cell:
    """One sample of a mini-batch."""
    params = fields.get("augmentation", {})
    pixels = visible_pixels(worker, "image", fields["image"], params)
    factor, shown = _shown_size(pixels.shape[:2])
    others = {key: value for key, value in fields.items() if key not in worker.writers}
    picture = draw_over_batch(_resized(pixels, shown), others, factor)
    for key in worker.writers.keys() - {"image"}:
        target = visible_pixels(worker, key, fields[key], params)
        picture = inset(picture, _resized(target, _shown_size(target.shape[:2])[1]))
    return Cell(picture, parameter_words(params))


def _shown_size(size: tuple[int, int]) -> tuple[float, tuple[int, int]]:
    """The factor by which an image of `size` (height, width) is shown, and its size then."""
    height, width = size
    factor = fit(width, height)
    return factor, (max(1, round(height * factor)), max(1, round(width * factor)))


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """An RGB picture of `size` (height, width)."""
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    grows = size[0] > pixels.shape[0] or size[1] > pixels.shape[1]
    how = Image.Resampling.NEAREST if grows else Image.Resampling.LANCZOS
    return picture.resize((size[1], size[0]), how)


def visible_pixels(
    worker: ImageWorker, key: str, row: NDArray[Any], params: Mapping[str, Any]
) -> NDArray[np.uint8]:
    """Turn what a worker has written for an image back into what is seen.

    Parameters
    ----------
    worker : ImageWorker
    key : str
        A buffer that it writes an image to.
    row : ndarray, shape (C, H, W) or (H, W, C)
        What it has written there.
    params : mapping
        The parameters recorded with it.

    Returns
    -------
    ndarray of uint8, shape (H, W, 3) or (H, W, 1)
        RGB or grey, with the pixel operations that were left to the device.
    """
    from ..workers.pixels import apply_pixels

    writer = worker.writers[key]
    # Whatever the dtype and normalisation: where a value lies between black and white.
    black, white = np.empty_like(row), np.empty_like(row)
    for ends, level in ((black, 0), (white, 255)):
        writer.write(np.full((*writer.size, writer.channels), level, np.uint8), ends)
    low = black.astype(np.float64)
    part = (row - low) / (white.astype(np.float64) - low)
    if part.min() < -0.01 or part.max() > 1.01:  # a user's own floats
        part = (part - part.min()) / (np.ptp(part) or 1.0)
    planes = writer.planes(np.rint(255.0 * part).clip(0, 255).astype(np.uint8))
    pixels = np.ascontiguousarray(planes.transpose(1, 2, 0))
    if key == "image" and params.get("gpu_augmentation"):
        pixels = apply_pixels(pixels, params, pixels.shape[2] == 3)
    return _to_rgb(pixels, worker.params[key]["colorspace"])


def _to_rgb(pixels: NDArray[np.uint8], colorspace: str) -> NDArray[np.uint8]:
    import cv2

    from ..workers.parameters import COLORSPACES

    name = COLORSPACES[colorspace]
    if name is None or pixels.shape[2] == 1:
        return pixels
    space = name.removeprefix("COLOR_RGB2")
    plain = space.removesuffix("_FULL")
    back = getattr(cv2, f"COLOR_{plain}2RGB{space[len(plain) :]}")
    return np.asarray(cv2.cvtColor(pixels, back), np.uint8)


def parameter_words(params: Mapping[str, Any]) -> list[str]:
    """Say which parameters are not at their defaults.

    Parameters
    ----------
    params : mapping
        As recorded for an image.

    Returns
    -------
    list of str
        Such as ``["scale 1.83", "shift -0.21, 0.4", "hmirror"]``.
    """
    from ..workers.parameters import DEFAULTS, GEOMETRY, PIXELS

    words = []
    for name in (*GEOMETRY, "interp_method", *PIXELS, "colorspace"):
        value = params.get(name)
        if name in ("order", "noise_seed") or value is None or value == DEFAULTS[name]:
            continue
        if value is True:
            words.append(name)
        elif isinstance(value, str):
            words.append(value)
        else:
            numbers = value if isinstance(value, tuple | list) else (value,)
            words.append(f"{name} {', '.join(map(_short, numbers))}")
    return words


def _short(number: float) -> str:
    """Two decimals, or one digit of what is less."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text if float(text) or not number else f"{number:.1g}"
