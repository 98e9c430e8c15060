"""The worker for object detection: an image and boxes around what is on it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.arguments import check_count
from crumpets_like.workers.geometry import transform_points
from crumpets_like.workers.image import ImageWorker, field
from crumpets_like.workers.rng import ImageRNG
from crumpets_like.workers.targets import target_matrix

__all__ = ["DetectionWorker", "transform_boxes"]

_NO_AREA = 1e-6  # square pixels


class DetectionWorker(ImageWorker):
    """Decodes and augments an image, and moves its boxes with it.

    A sample has `image`, see `ImageWorker`; `boxes`, shape (n, 4), the left, top, right and bottom
    edge of each box in pixels of the image, ``(0, 0, width, height)`` being all of it; and
    `classes`, n integers. A mini-batch of B samples has `image` and `augmentation` as those of
    `ImageWorker`, and

    - `boxes`: float32, (B, max_boxes, 4): the same edges in pixels of the image in the mini-batch,
      clipped to it; 0 behind the last box;
    - `classes`: int64, (B, max_boxes): -1 behind the last box;
    - `count`: int64, (B,): how many boxes there are, in the order of the sample.

    A rotated or sheared box becomes the upright box around it. Boxes of which less than
    `min_visible` is left are dropped: the area of the box on the image in the mini-batch, relative
    to its area there before it is clipped. What a box has outside of the source image does not
    count. Boxes without any area are always dropped.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the image, see `ImageWorker`.
    max_boxes : int
        Room for boxes; a sample with more raises ValueError.
    image_params, image_rng, gpu_augmentation, **options
        See `ImageWorker`.
    min_visible : float
        Least visible part of a box that is kept, in [0, 1].

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Notes
    -----
    A sample raises ValueError if a box has its right edge left of its left one, or its bottom edge
    above its top one; if a coordinate is not finite; or if there is not one class for each box.

    Examples
    --------
    >>> worker = DetectionWorker(((3, 640, 640), np.uint8), max_boxes=100, min_visible=0.25)
    """

    def __init__(
        self,
        image: Any,
        max_boxes: int,
        image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
        gpu_augmentation: bool = False,
        *,
        min_visible: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(image, image_params, image_rng, gpu_augmentation, **options)
        self.max_boxes = check_count("max_boxes", max_boxes)
        if not 0.0 <= min_visible <= 1.0:
            raise ValueError(f"min_visible must be a part in [0, 1], not {min_visible!r}")
        self.min_visible = min_visible
        self.add_buffer("boxes", ((self.max_boxes, 4), np.float32))
        self.add_buffer("classes", ((self.max_boxes,), np.int64))
        self.add_buffer("count", ((), np.int64))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill one sample's rows."""
        sample = self.unpack(sample)
        image, params = super().prepare(sample, batch, buffers)
        boxes, classes = self._read(sample)
        size = self.writers["image"].size
        matrix = target_matrix(params, size)
        moved = transform_boxes(matrix, _clip(boxes, params["size"]))
        clipped = _clip(moved, size)
        area = _area(clipped)
        # Rounding moves what is on the very edge to either side of it.
        kept = area >= np.maximum((self.min_visible - 1e-9) * _area(moved), _NO_AREA)
        count = int(kept.sum())
        for key, values, padding in (("boxes", clipped, 0), ("classes", classes, -1)):
            buffers[key][:count] = values[kept]
            buffers[key][count:] = padding
        buffers["count"][...] = count
        return image, params

    def _read(self, sample: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[Any]]:
        boxes = np.asarray(field(sample, "boxes"), np.float64)
        classes = np.asarray(field(sample, "classes"))
        if not boxes.size:
            boxes = boxes.reshape(0, 4)
        if boxes.ndim != 2 or boxes.shape[1] != 4:
            raise ValueError(f"boxes must have the shape (n, 4), not {boxes.shape}")
        if classes.shape != boxes.shape[:1]:
            raise ValueError(
                f"there must be one class for each box: {len(boxes)} boxes, but classes of shape "
                f"{classes.shape}"
            )
        if classes.dtype.kind == "f" and (broken := classes != np.floor(classes)).any():  # or NaN
            number = int(broken.argmax())
            raise ValueError(
                f"classes must be integers, but that of box {number} is {classes[number]}"
            )
        if len(boxes) > self.max_boxes:
            raise ValueError(
                f"the sample has {len(boxes)} boxes, but there is room for {self.max_boxes}: set "
                "max_boxes to the most of any sample"
            )
        wrong = ~(np.isfinite(boxes).all(axis=1) & (boxes[:, 2:] >= boxes[:, :2]).all(axis=1))
        if wrong.any():
            number = int(wrong.argmax())
            raise ValueError(
                f"a box must be (left, top, right, bottom) with left <= right and top <= bottom, "
                f"all finite, but box {number} is {tuple(boxes[number].tolist())}"
            )
        return boxes, classes


def transform_boxes(matrix: NDArray[np.float64], boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upright boxes around boxes that an affine map moves.

    Parameters
    ----------
    matrix : numpy.ndarray
        float64, shape (2, 3), for coordinates of pixels' centres.
    boxes : numpy.ndarray
        float64, shape (n, 4): left, top, right and bottom edges. The first pixel is
        ``(0, 0, 1, 1)``, and its centre is at ``(0, 0)``: edges are half a pixel ahead of centres.

    Returns
    -------
    numpy.ndarray
        float64, shape (n, 4).
    """
    low, high = boxes[:, :2], boxes[:, 2:]
    centres = transform_points(matrix, (low + high) / 2 - 0.5) + 0.5
    halves = (high - low) / 2 @ np.abs(matrix[:, :2]).T  # of the box around a parallelogram
    return np.hstack((centres - halves, centres + halves))


def _clip(boxes: NDArray[np.float64], size: tuple[int, int]) -> NDArray[np.float64]:
    height, width = size
    return boxes.clip(0.0, (width, height, width, height))


def _area(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
