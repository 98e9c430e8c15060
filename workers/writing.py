"""How the pixels of an image get into a row of a buffer: layout, dtype and normalisation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker.buffers import BufferSpec

LAYOUTS = ("CHW", "HWC")


class PixelWriter:
    """Checks an image's buffer, and writes pixels to its rows.

    Integers get 0 to 255. Floats get ``(pixel / 255 - mean) / std``.

    Parameters
    ----------
    key : str
        Name of the buffer, for error texts.
    spec : (shape, dtype) or (shape, dtype, fill_value), array or BufferSpec
        Shape (C, H, W) or (H, W, C), as `layout` says, with C 1 or 3; dtype floating, or an integer
        one that holds 0 to 255.
    layout : {"CHW", "HWC"}
    mean, std : float or sequence of float, optional
        One number or one per channel, of pixels in [0, 1].

    Attributes
    ----------
    spec : BufferSpec
        What to declare the buffer with.
    channels : int
        C.
    size : (int, int)
        H and W.
    background : float or tuple of float
        The fill value as pixels, 0 to 255, for all channels or one per channel.

    Raises
    ------
    ValueError
        If the spec, `layout`, `mean` or `std` cannot be used.
    """

    def __init__(
        self,
        key: str,
        spec: Any,
        layout: str = "CHW",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {LAYOUTS}, not {layout!r}")
        try:
            buffer = BufferSpec.parse(_with_fill_per_channel(spec, layout))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{key}: {error}") from None
        except OverflowError as error:
            raise ValueError(f"{key}'s fill_value: {error}") from None
        shape, dtype = buffer.shape, buffer.dtype
        place = layout.index("C")
        if len(shape) != 3 or shape[place] not in (1, 3) or min(shape) < 1:
            raise ValueError(
                f"{key} must have a shape ({', '.join(layout)}) with C 1 or 3 and no side of 0, "
                f"not {shape} (layout={layout!r})"
            )
        floating = dtype.kind == "f"
        if not floating and not (dtype.kind in "iu" and np.can_cast(np.uint8, dtype)):
            raise ValueError(
                f"{key} must have a floating dtype or an integer one that holds 0 to 255, "
                f"not {dtype}"
            )
        self.spec = buffer
        self.key = key
        self.layout = layout
        self.channels = shape[place]
        self.size = (shape[1], shape[2]) if place == 0 else (shape[0], shape[1])
        self._floating = floating
        self.normalises = mean is not None or std is not None
        if self.normalises and not floating:
            raise ValueError(
                f"mean and std normalise floating dtypes; {key} has {dtype}: leave them out, or "
                f"use float32"
            )
        means = self._per_channel("mean", 0.0 if mean is None else mean)
        stds = self._per_channel("std", 1.0 if std is None else std)
        if not all(0.0 <= value <= 1.0 for value in means):
            raise ValueError(
                f"mean must be within 0 and 1, not {mean!r}: pixels are divided by 255 first"
            )
        if not all(0.0 < value < math.inf for value in stds):
            raise ValueError(f"std must be finite and > 0, not {std!r}")
        self._scaling = [
            (1.0 / (255.0 * std), -mean / std) for mean, std in zip(means, stds, strict=True)
        ]
        self.background = self._find_background(buffer, means, stds)

    def _per_channel(self, name: str, value: Any) -> tuple[float, ...]:
        values = np.asarray(value, np.float64).ravel()
        if values.size not in (1, self.channels):
            raise ValueError(
                f"{name} must be one number or one per channel, so {self.channels} for {self.key}, "
                f"not {values.size}"
            )
        numbers: list[float] = np.broadcast_to(values, self.channels).tolist()
        return tuple(numbers)

    def _find_background(
        self, buffer: BufferSpec, means: tuple[float, ...], stds: tuple[float, ...]
    ) -> float | tuple[float, ...]:
        if not buffer.given_fill:
            return 0.0
        fill = np.asarray(buffer.fill_value, np.float64).ravel()
        if fill.size not in (1, self.channels):
            raise ValueError(
                f"{self.key}'s fill_value must be one number or one per channel, so "
                f"{self.channels}, not {fill.size} (it is the background of the warped image)"
            )
        fill = np.broadcast_to(fill, self.channels)
        pixels = (fill * stds + means) * 255.0 if self._floating else fill
        if not ((pixels >= -1e-3) & (pixels <= 255.0 + 1e-3)).all():
            low, high = ((level - np.array(means)) / stds for level in (0.0, 1.0))
            if not self._floating:
                low, high = np.zeros(1), np.full(1, 255.0)
            raise ValueError(
                f"{self.key}'s fill_value must be within {low.max():g} and {high.min():g}, the "
                f"values that pixels get, not {buffer.fill_value!r}"
            )
        values: list[float] = pixels.clip(0.0, 255.0).tolist()
        return values[0] if len(set(values)) == 1 else tuple(values)

    def planes(self, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return a view of shape (C, H, W)."""
        return buffer if self.layout == "CHW" else buffer.transpose(2, 0, 1)

    def write(self, image: NDArray[np.uint8], buffer: NDArray[Any]) -> None:
        """Write an image, uint8 of shape (H, W, C), to a row, in one pass."""
        import cv2

        if image.shape != (*self.size, self.channels):
            raise ValueError(
                f"an image of shape {image.shape} does not fit {self.key}, which needs "
                f"{(*self.size, self.channels)}"
            )
        if self.layout == "HWC" and not self._floating:
            buffer[...] = image
            return
        planes = self.planes(np.asarray(buffer))
        in_place = self.layout == "CHW" and buffer.dtype.isnative
        if not self._floating:
            if in_place and buffer.dtype == np.uint8 and self.channels == 3:
                cv2.split(image, list(planes))
            else:
                planes[...] = image.transpose(2, 0, 1)
            return
        in_place = in_place and buffer.dtype == np.float32
        depth = cv2.CV_64F if buffer.dtype.itemsize > 4 else cv2.CV_32F
        for plane, levels, (factor, offset) in zip(
            planes, cv2.split(image), self._scaling, strict=True
        ):
            # factor * levels + offset, several times as fast as numpy and its conversion.
            arguments = (levels, factor, levels, 0.0, offset)
            if in_place:
                cv2.addWeighted(*arguments, dst=plane, dtype=depth)
            else:
                plane[...] = cv2.addWeighted(*arguments, dtype=depth)


def _with_fill_per_channel(spec: Any, layout: str) -> Any:
    """Let one fill value per channel fit the last axis, where that is the channels'."""
    if layout == "HWC" and isinstance(spec, tuple) and len(spec) == 3:
        fill = np.asarray(spec[2])
        if fill.ndim == 1:
            return (spec[0], spec[1], fill[np.newaxis, np.newaxis])
    return spec
