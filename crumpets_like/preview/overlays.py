"""What belongs to an image, drawn over its picture: as the sample has it, and as it is trained on.

It is known by the names of the ready-made workers' fields, so it is found in a user's worker, too:
what a user means by only a part of these names is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .drawing import blend_map, blend_mask, draw_boxes, draw_points

__all__ = ["draw_over_batch", "draw_over_sample"]


def draw_over_sample(
    picture: Image.Image, sample: Mapping[str, Any], size: tuple[int, int], factor: float
) -> Image.Image:
    """Draw what a sample has beside its image.

    Parameters
    ----------
    picture : PIL.Image.Image
        Of the whole image; may be changed.
    sample : mapping
        With any of ``target_image`` (a mask), ``experiments`` (gaze points), ``boxes`` and
        ``classes``, and ``keypoints``.
    size : (int, int)
        Height and width of the image.
    factor : float
        Size of the picture relative to the image.

    Returns
    -------
    PIL.Image.Image
    """
    from ..workers.segmentation import decode_mask

    if "target_image" in sample:
        picture = blend_mask(picture, decode_mask(sample["target_image"], size))
    if "experiments" in sample:
        for number, points in enumerate(_gaze(sample["experiments"])):
            draw_points(picture, points, factor, [number] * len(points))
    if {"boxes", "classes"} <= sample.keys():
        draw_boxes(picture, sample["boxes"], sample["classes"], factor)
    if "keypoints" in sample:
        keypoints = np.asarray(sample["keypoints"], np.float64)
        shown = np.logical_and.reduce(keypoints[:, 2:], axis=1)
        _draw_keypoints(picture, keypoints[:, :2], shown, factor)
    return picture


def draw_over_batch(picture: Image.Image, fields: Mapping[str, Any], factor: float) -> Image.Image:
    """Draw what a mini-batch has beside an image.

    Parameters
    ----------
    picture : PIL.Image.Image
        Of the image in the mini-batch; may be changed.
    fields : mapping
        Its row of every other field: any of ``target_image`` (a mask of integers, a map of floats),
        ``boxes``, ``classes`` and ``count``, ``keypoints`` and ``visibility``.
    factor : float
        Size of the picture relative to the image.

    Returns
    -------
    PIL.Image.Image
    """
    target = np.asarray(fields.get("target_image", ())).squeeze()
    if target.ndim == 2:
        picture = (blend_map if target.dtype.kind == "f" else blend_mask)(picture, target)
    if {"boxes", "classes", "count"} <= fields.keys():
        count = int(fields["count"])
        draw_boxes(picture, fields["boxes"][:count], fields["classes"][:count], factor)
    if {"keypoints", "visibility"} <= fields.keys():
        _draw_keypoints(picture, fields["keypoints"], fields["visibility"] > 0, factor)
    return picture


def _draw_keypoints(
    picture: Image.Image, points: NDArray[Any], shown: NDArray[np.bool_], factor: float
) -> None:
    draw_points(picture, points[shown], factor, np.flatnonzero(shown).tolist())


def _gaze(experiments: Any) -> Iterator[NDArray[np.float64]]:
    """The gaze points of each experiment."""
    for experiment in experiments:
        points = np.asarray(experiment.get("fixations", experiment.get("locations")), np.float64)
        yield points.reshape(len(points), -1)[:, :2] if points.size else np.empty((0, 2))
