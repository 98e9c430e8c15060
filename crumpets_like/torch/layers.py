"""Layers between a mini-batch and a network: :class:`Normalize` and :class:`Unpacker`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["Normalize", "Unpacker"]


class Normalize(nn.Module):
    """Subtracts the mean and divides by the standard deviation, channel by channel.

    Integers are divided by 255 first, so the same numbers do for both kinds of images, and the
    result is what a worker with the same `mean` and `std` writes into a buffer of floats.

    Parameters
    ----------
    mean, std : array_like of float
        One for each channel, or one for all, of images with values 0.0 to 1.0:
        `IMAGENET_MEAN` and `IMAGENET_STD` of `crumpets_like.workers.presets` are such.

    Raises
    ------
    ValueError
        If they have different lengths, a mean is not finite, or a std is not a finite number > 0.

    Examples
    --------
    >>> network = nn.Sequential(Normalize(0.5, 0.25), nn.Conv2d(3, 8, 3))
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__()
        means, stds = (
            torch.as_tensor(given, dtype=torch.float64).flatten().tolist() for given in (mean, std)
        )
        if len(means) != len(stds) or not means:
            raise ValueError(
                f"mean and std must be numbers, or as many of each, got {mean!r} and {std!r}."
            )
        if not all(math.isfinite(one) for one in means):
            raise ValueError(f"mean must be finite, got {mean!r}.")
        if not all(0.0 < one < math.inf for one in stds):
            raise ValueError(f"std must be finite and > 0, got {std!r}.")
        self.register_buffer("mean", torch.tensor(means).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(stds).view(-1, 1, 1), persistent=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Normalise.

        Parameters
        ----------
        image : torch.Tensor
            Shape (..., C, H, W); integers 0 to 255 or floats 0.0 to 1.0.

        Returns
        -------
        torch.Tensor
            Of the same shape; of the floats' own dtype, for integers that of this layer.

        Raises
        ------
        ValueError
            If there are several means and the image has another number of channels.
        """
        channels = len(self.mean)
        if channels > 1 and image.shape[-3] != channels:
            raise ValueError(
                f"Normalize has {channels} means, but the image has {image.shape[-3]} channels: "
                f"shape {tuple(image.shape)}."
            )
        if not image.is_floating_point():
            image = image.to(self.mean.dtype) / 255.0
        return (image - self.mean.to(image.dtype)) / self.std.to(image.dtype)

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class Unpacker(nn.Module):
    """Lets a module for tensors take mini-batches: ``mini_batch = model(mini_batch)``.

    Parameters
    ----------
    module : nn.Module
        Called with one tensor.
    input_key : str
        Which value of the mini-batch that is.
    output_key : str
        What the result is called.

    Examples
    --------
    >>> model = Unpacker(nn.Linear(4, 2), input_key="x")
    >>> sorted(model({"x": torch.ones(3, 4), "label": [0, 1, 0]}))
    ['label', 'output', 'x']
    """

    def __init__(
        self, module: nn.Module, input_key: str = "image", output_key: str = "output"
    ) -> None:
        super().__init__()
        self.module = module
        self.input_key = input_key
        self.output_key = output_key

    def forward(self, mini_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mini-batch and the output; the mapping itself is not changed.

        Raises
        ------
        ValueError
            If it has no input.
        """
        if self.input_key not in mini_batch:
            raise ValueError(
                f"the mini-batch has no {self.input_key!r}, only "
                f"{', '.join(map(repr, mini_batch))}: input_key names what goes into the module."
            )
        return {**mini_batch, self.output_key: self.module(mini_batch[self.input_key])}

    def extra_repr(self) -> str:
        """What ``repr`` shows."""
        return f"input_key={self.input_key!r}, output_key={self.output_key!r}"
