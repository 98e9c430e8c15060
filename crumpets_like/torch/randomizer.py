"""Gamma, contrast, noise and blur of whole mini-batches, on their device.

NOTE [Batched]. Each image has its own parameters and its own order of operations. So a mini-batch
takes three rounds, and in each round those images whose turn it is for an operation get it
together: at most nine steps, however many images there are. What loops over images is only what
reads their dicts; it makes small tables, which are sent to the device without waiting for it.

kornia is not used; tests compare with it. Its blur takes one sigma per image, too, but no image
smaller than the kernel, and every kernel is as wide as the widest: an image would depend, a little,
on which others it is with. Its noise comes from torch's generators, and it has no such contrast.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..workers import pixels
from ..workers.parameters import DEFAULTS, PIXEL_OPERATIONS, pixel_operations

__all__ = ["Randomizer"]

_LAYOUTS = ("CHW", "HWC")
_WORD = 0xFFFF_FFFF


class Randomizer(nn.Module):
    """Applies what workers left out with ``gpu_augmentation=True``, to a whole mini-batch.

    ::

        model = nn.Sequential(Randomizer(), Unpacker(nn.Sequential(Normalize(mean, std), network)))

    is for mini-batches of a loader whose worker, not the loader itself, has
    ``gpu_augmentation=True``: ``TorchTurboDataLoader(..., gpu_augmentation=True)`` does it before
    the mini-batch is handed over.

    The formulas are those of `crumpets_like.workers.pixels`. Integer images are rounded after each
    operation as they are there: the noise is the same to the bit, gamma and contrast to 1/255, blur
    to 2/255. Images of floats are not rounded.

    Parameters
    ----------
    layout : "CHW" or "HWC"
        Whether channels come before or after height and width.

    Raises
    ------
    ValueError
        For another layout.
    """

    def __init__(self, layout: str = "CHW") -> None:
        super().__init__()
        if layout not in _LAYOUTS:
            raise ValueError(f"layout must be one of {_LAYOUTS}, got {layout!r}.")
        self.layout = layout

    def forward(self, mini_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mini-batch with other images.

        Parameters
        ----------
        mini_batch : mapping
            ``"image"``: tensor of shape (B, C, H, W) or (B, H, W, C), on any device, integers 0 to
            255 or floats 0.0 to 1.0; three channels are red, green and blue. It is not changed.
            ``"augmentation"``: the images' B dicts as :class:`ImageWorker` records them; what is
            not in them, or None, has its default. Images whose `gpu_augmentation` is false stay as
            they are: their worker left nothing out.

        Returns
        -------
        dict
            With the same keys. ``"image"`` has the same shape, dtype and device.

        Raises
        ------
        ValueError
            If a key is missing, the image has another shape or dtype, there is not one dict per
            image, or an `order` has an unknown name.
        """
        image, augmentation = _check(mini_batch)
        with _autocast_off(image.device.type):
            if self.layout == "HWC":
                image = randomize(image.permute(0, 3, 1, 2), augmentation).permute(0, 2, 3, 1)
            else:
                image = randomize(image, augmentation)
        return {**mini_batch, "image": image}

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"layout={self.layout!r}"


def randomize(image: torch.Tensor, augmentation: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    """Apply each image's operations; `image` itself if there are none. See NOTE [Batched].

    Parameters
    ----------
    image : torch.Tensor
        Shape (B, C, H, W).
    augmentation : sequence of mapping
        Of each image.
    """
    if not image.numel():
        return image
    augmentation = [
        {**DEFAULTS, **{name: value for name, value in params.items() if value is not None}}
        for params in augmentation
    ]
    turns = [
        pixel_operations(params) if params.get("gpu_augmentation", True) else ()
        for params in augmentation
    ]
    steps: list[tuple[str, list[int]]] = []
    for turn in range(max(map(len, turns), default=0)):
        for operation in PIXEL_OPERATIONS:
            mine = [row for row, own in enumerate(turns) if own[turn : turn + 1] == (operation,)]
            if mine:
                steps.append((operation, mine))
    if not steps:
        return image
    tables = _make_tables(image, augmentation)
    order = _send(np.concatenate([mine for _, mine in steps]), image.device)
    parts = torch.split(order, [len(mine) for _, mine in steps])
    result = image.clone()
    for (operation, _), rows in zip(steps, parts, strict=True):
        values = _OPERATIONS[operation](_to_values(result[rows]), tables, rows)
        result[rows] = _from_values(values, result.dtype)
    return result


class _Tables(NamedTuple):
    """What operations need to know, one row per image."""

    gammas: torch.Tensor  # (B, C)
    contrast: torch.Tensor  # (B,)
    noise: torch.Tensor  # (B, C): largest value
    noise_keys: torch.Tensor  # (B, 2), int64
    kernels: torch.Tensor  # (B, 2 r + 1): of the blur
    whole: bool  # whether values are whole numbers


def _make_tables(image: torch.Tensor, augmentation: Sequence[Mapping[str, Any]]) -> _Tables:
    device, channels, width = image.device, image.shape[1], image.shape[3]
    rgb = channels == len(pixels.RGB_NOISE)
    gammas = [pixels.gammas(params, channels, rgb) for params in augmentation]
    noise = np.array([255.0 * params["noise"] for params in augmentation])[:, np.newaxis]
    noise_keys = pixels.noise_keys([params["noise_seed"] for params in augmentation])
    sigmas = width * np.array([params["blur"] for params in augmentation])
    return _Tables(
        gammas=_send(np.array(gammas, np.float32), device),
        contrast=_send(
            np.array([params["contrast"] for params in augmentation], np.float32), device
        ),
        noise=_send((noise * pixels.noise_gains(channels, rgb)).astype(np.float32), device),
        noise_keys=_send(noise_keys.astype(np.int64), device),
        kernels=_send(pixels.blur_kernels(sigmas).astype(np.float32), device),
        whole=not image.is_floating_point(),
    )


def _send(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy on the device, whose arrival nothing waits for."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # from ordinary memory the driver may wait for the stream
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _autocast_off(kind: str) -> Any:
    """Half precision has too few digits for a blur of bytes."""
    if torch.amp.is_autocast_available(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def _to_values(image: torch.Tensor) -> torch.Tensor:
    """Floats from 0 to 255."""
    if image.is_floating_point():
        return image.to(torch.promote_types(image.dtype, torch.float32)) * 255.0
    return image.to(torch.float32)


def _from_values(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same in the image's own range and dtype; whole values if that is an integer's."""
    if dtype.is_floating_point:
        return (values.clamp(0.0, 255.0) / 255.0).to(dtype)
    return values.round().clamp(0.0, 255.0).to(dtype)


def _adjust_gamma(values: torch.Tensor, tables: _Tables, rows: torch.Tensor) -> torch.Tensor:
    """As :func:`crumpets_like.workers.pixels.adjust_gamma`; whole values by tables of all 256."""
    if not tables.whole:
        return _curves(values, tables, rows)
    levels = torch.arange(256.0, device=values.device).view(1, 1, 256, 1)
    places = values.clamp(0.0, 255.0).long().flatten(2)
    return _curves(levels, tables, rows).squeeze(3).gather(2, places).view_as(values)


def _curves(values: torch.Tensor, tables: _Tables, rows: torch.Tensor) -> torch.Tensor:
    """What the formula makes of values, whose shape is (n, C, H, W) or can become that."""
    slope = pixels.CONTRAST_SLOPE
    contrast = tables.contrast[rows, None, None, None]
    x = (values / 255.0).clamp(0.0, 1.0)
    z = 2.0 * x - 1.0
    more = torch.tanh(slope * z) / math.tanh(slope)
    less = torch.atanh(z * math.tanh(slope)) / slope
    y = x + contrast.abs() * ((1.0 + torch.where(contrast >= 0.0, more, less)) / 2.0 - x)
    y = torch.where(x > 0.0, y.clamp(0.0, 1.0), 0.0)  # there a small gamma makes much of an error
    return 255.0 * y ** tables.gammas[rows, :, None, None]


def _add_noise(values: torch.Tensor, tables: _Tables, rows: torch.Tensor) -> torch.Tensor:
    """As :func:`crumpets_like.workers.pixels.add_noise`."""
    _, channels, height, width = values.shape
    keys = tables.noise_keys[rows]
    starts = [channel * height * width for channel in range(channels)]
    if channels == len(pixels.RGB_NOISE):
        red, green, blue = starts
        coarse = _uniform(keys, [red, blue], (height + 1) // 2, (width + 1) // 2)
        doubled = functional.interpolate(coarse, scale_factor=2, mode="bilinear")
        doubled = doubled[:, :, :height, :width]
        fine = _uniform(keys, [green], height, width)
        noise = torch.cat((doubled[:, :1], fine, doubled[:, 1:]), dim=1)
    else:
        noise = _uniform(keys, starts, height, width)
    return noise * tables.noise[rows, :, None, None] + values


def _uniform(keys: torch.Tensor, starts: list[int], height: int, width: int) -> torch.Tensor:
    """Uniform numbers of the pixels from each start on, shape (n, len(starts), height, width).

    torch has no unsigned arithmetic: in 64 bits, no product overflows if its constant is less than
    2**31 in size.
    """
    first, second = (mixer - (mixer >> 31 << 32) for mixer in pixels.NOISE_MIXERS)
    size = height * width
    x = torch.cat([torch.arange(one, one + size, device=keys.device) for one in starts])
    x = (x * pixels.NOISE_STEP + keys[:, :1]) & _WORD
    x = (((x ^ (x >> 16)) * first) & _WORD) ^ keys[:, 1:]
    x = ((x ^ (x >> 15)) * second) & _WORD
    uniform = (x >> 16).to(torch.float32) * 2.0**-15 + (2.0**-16 - 1.0)
    return uniform.reshape(-1, len(starts), height, width)


def _blur(values: torch.Tensor, tables: _Tables, rows: torch.Tensor) -> torch.Tensor:
    """As :func:`crumpets_like.workers.pixels.blur`; each channel of each image is a group."""
    count, channels, *size = values.shape
    if count * channels == 1:  # no group of several, which cuDNN would blur with TF32's ten bits
        values = values.double()
    kernels = tables.kernels[rows, None, :].expand(-1, channels, -1).to(values.dtype)
    radius = kernels.shape[2] // 2
    blurred = values.reshape(1, count * channels, *size)
    for axis, shape in ((3, (-1, 1, 1, 2 * radius + 1)), (2, (-1, 1, 2 * radius + 1, 1))):
        mirrored = _mirrored(blurred.shape[axis], radius, values.device)
        blurred = functional.conv2d(
            blurred.index_select(axis, mirrored), kernels.reshape(shape), groups=count * channels
        )
    return blurred.view(count, channels, *size)


def _mirrored(size: int, radius: int, device: torch.device) -> torch.Tensor:
    """Where to read what lies up to `radius` beyond the border, however small the image is."""
    period = max(2 * (size - 1), 1)
    places = torch.arange(-radius, size + radius, device=device) % period
    return torch.minimum(places, period - places)


_OPERATIONS: Mapping[str, Callable[[torch.Tensor, _Tables, torch.Tensor], torch.Tensor]] = {
    "gamma": _adjust_gamma,
    "noise": _add_noise,
    "blur": _blur,
}


def _check(mini_batch: Mapping[str, Any]) -> tuple[torch.Tensor, Sequence[Mapping[str, Any]]]:
    """The images and their dicts."""
    for key in ("image", "augmentation"):
        if key not in mini_batch:
            raise ValueError(
                f"the mini-batch has no {key!r}, only {', '.join(map(repr, mini_batch))}: "
                "Randomizer takes those of ImageWorker and the workers made of it."
            )
    image, augmentation = mini_batch["image"], mini_batch["augmentation"]
    if not isinstance(image, torch.Tensor) or image.ndim != 4:
        what = f"a tensor of shape {tuple(image.shape)}" if isinstance(image, torch.Tensor) else ""
        raise ValueError(
            f"mini_batch['image'] must be a tensor of four dimensions, got {what or type(image)}."
        )
    if image.dtype == torch.bool or image.dtype.is_complex:
        raise ValueError(
            f"mini_batch['image'] must have integers 0 to 255 or floats 0.0 to 1.0, "
            f"got {image.dtype}."
        )
    if len(augmentation) != len(image):
        raise ValueError(
            f"mini_batch['augmentation'] has {len(augmentation)} dicts for {len(image)} images."
        )
    return image, augmentation
