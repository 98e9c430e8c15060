"""The worker for keypoints: an image and points with a meaning on it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.arguments import check_count
from crumpets_like.workers.geometry import transform_points
from crumpets_like.workers.image import ImageWorker, field
from crumpets_like.workers.rng import ImageRNG
from crumpets_like.workers.targets import target_matrix

__all__ = ["KeypointWorker"]

_VISIBLE = 2


class KeypointWorker(ImageWorker):
    """Decodes and augments an image, and moves its keypoints with it.

    A sample has `image`, see `ImageWorker`, and `keypoints`, shape (num_keypoints, 2) or
    (num_keypoints, 3): x and y in pixels of the image, (0, 0) being the centre of the first pixel,
    and a visibility as in COCO, 0 not labelled, 1 labelled but hidden, 2 visible; without it all
    are visible. A mini-batch of B samples has `image` and `augmentation` as those of `ImageWorker`,
    and

    - `keypoints`: float32, (B, num_keypoints, 2): x and y in pixels of the image in the mini-batch;
    - `visibility`: uint8, (B, num_keypoints).

    A keypoint that is not labelled, or is not on the image in the mini-batch, has visibility 0 and
    lies at (0, 0).

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the image, see `ImageWorker`.
    num_keypoints : int
        Keypoints of a sample.
    image_params, image_rng, gpu_augmentation, **options
        See `ImageWorker`.
    swap : iterable of (int, int)
        Numbers of the keypoints that change places in a mirrored image: what was the left eye looks
        like a right one. (An image mirrored in both directions is a rotated one: they stay.)

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be used.

    Notes
    -----
    A sample raises ValueError if its keypoints have another shape, if a visibility is not 0, 1 or
    2, or if a labelled keypoint has a coordinate that is not finite.

    Examples
    --------
    >>> eyes_and_nose = KeypointWorker(((3, 96, 96), np.uint8), 3, swap=[(0, 1)])
    """

    def __init__(
        self,
        image: Any,
        num_keypoints: int,
        image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
        gpu_augmentation: bool = False,
        *,
        swap: Iterable[tuple[int, int]] = (),
        **options: Any,
    ) -> None:
        super().__init__(image, image_params, image_rng, gpu_augmentation, **options)
        self.num_keypoints = check_count("num_keypoints", num_keypoints)
        self._mirrored = _mirrored_order(self.num_keypoints, swap)
        self.add_buffer("keypoints", ((self.num_keypoints, 2), np.float32))
        self.add_buffer("visibility", ((self.num_keypoints,), np.uint8))

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill one sample's rows."""
        sample = self.unpack(sample)
        image, params = super().prepare(sample, batch, buffers)
        points, visibility = self._read(sample)
        size = self.writers["image"].size
        matrix = target_matrix(params, size)
        moved = transform_points(matrix, points)
        height, width = size
        seen = ((moved >= -0.5) & (moved < (width - 0.5, height - 0.5))).all(axis=1)
        seen &= visibility > 0
        placed = np.where(seen[:, np.newaxis], moved, 0.0)
        shown = np.where(seen, visibility, 0.0)
        if params["hmirror"] != params["vmirror"]:
            placed, shown = placed[self._mirrored], shown[self._mirrored]
        buffers["keypoints"][...] = placed
        buffers["visibility"][...] = shown
        return image, params

    def _read(self, sample: Mapping[str, Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        keypoints = np.asarray(field(sample, "keypoints"), np.float64)
        if keypoints.shape not in ((self.num_keypoints, 2), (self.num_keypoints, 3)):
            raise ValueError(
                f"keypoints must have the shape ({self.num_keypoints}, 2) or "
                f"({self.num_keypoints}, 3), not {keypoints.shape}"
            )
        points, visibility = keypoints[:, :2], np.full(self.num_keypoints, float(_VISIBLE))
        if keypoints.size > points.size:
            visibility = keypoints[:, 2]
        wrong = ~np.isin(visibility, (0, 1, _VISIBLE))
        wrong |= (visibility > 0) & ~np.isfinite(points).all(axis=1)
        if wrong.any():
            number = int(wrong.argmax())
            raise ValueError(
                "a keypoint must be finite x and y, and a visibility of 0, 1 or 2, but keypoint "
                f"{number} is {tuple(keypoints[number].tolist())}"
            )
        return np.where(visibility[:, np.newaxis] > 0, points, 0.0), visibility


def _mirrored_order(count: int, swap: Iterable[tuple[int, int]]) -> NDArray[np.intp]:
    """Where each keypoint of a mirrored image comes from."""
    order = np.arange(count)
    pairs = list(swap)
    try:
        for left, right in pairs:
            if (
                left == right
                or order[left] != left
                or order[right] != right
                or min(left, right) < 0
            ):
                raise ValueError
            order[left], order[right] = right, left
    except (TypeError, ValueError, IndexError):
        raise ValueError(
            f"swap must be pairs of different keypoints from 0 to {count - 1}, each in one pair at "
            f"most, not {pairs!r}"
        ) from None
    return order
