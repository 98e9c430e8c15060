"""What the workers for targets share: a target goes through the same geometry as its image."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker.buffers import BufferSpec
from crumpets_like.workers.geometry import make_transform
from crumpets_like.workers.parameters import geometry_of

__all__ = ["map_size", "target_matrix"]


def map_size(key: str, spec: BufferSpec) -> tuple[int, int]:
    """Return height and width of a target with one channel.

    Raises
    ------
    ValueError
        If its shape is neither (H, W) nor (1, H, W) nor (H, W, 1).
    """
    shape = spec.shape
    if len(shape) == 3 and 1 in (shape[0], shape[2]):
        shape = shape[1:] if shape[0] == 1 else shape[:2]
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(
            f"{key} must have a shape (H, W) or (1, H, W) with no side of 0, not {spec.shape}"
        )
    return shape[0], shape[1]


def target_matrix(
    params: Mapping[str, Any],
    image_size: tuple[int, int],
    target_size: tuple[int, int] | None = None,
) -> NDArray[np.float64]:
    """Return the map from pixels of the whole source image to pixels of a target.

    The target shows what the image in the mini-batch shows, edge on edge, whatever its resolution:
    a point at ``x`` of an image of width ``w`` is at ``(x + 0.5) * W / w - 0.5`` of a target of
    width ``W``.

    Parameters
    ----------
    params : mapping
        What `ImageWorker.prepare` returned.
    image_size : (int, int)
        Height and width in pixels of the image in the mini-batch.
    target_size : (int, int), optional
        Those of the target; the same if left out.

    Returns
    -------
    numpy.ndarray
        float64, shape (2, 3): ``matrix @ (x, y, 1)`` of the source is ``(x, y)`` of the target.
        Integer coordinates are centres of pixels.
    """
    matrix = make_transform(params["size"], image_size, **geometry_of(params))
    if target_size is None:
        return matrix
    ratio = np.array([target_size[1] / image_size[1], target_size[0] / image_size[0]])
    matrix *= ratio[:, np.newaxis]
    matrix[:, 2] += (ratio - 1.0) / 2.0
    return matrix
