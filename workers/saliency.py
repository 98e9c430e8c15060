"""The worker for saliency: an image and a map of where people looked at it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.geometry import transform_points
from crumpets_like.workers.image import ImageWorker, field
from crumpets_like.workers.parameters import GAZE, check_parameters
from crumpets_like.workers.rng import ImageRNG
from crumpets_like.workers.targets import map_size, target_matrix

__all__ = ["SaliencyWorker", "draw_points"]


class SaliencyWorker(ImageWorker):
    """Decodes and augments an image, and makes a map of the gaze points on it.

    A sample has `image`, see `ImageWorker`, and `experiments`, a sequence of mappings, one for each
    person for example. An experiment has its gaze points as `fixations` or, without these, as
    `locations`: an array of shape (n, 2 or more), whose first columns are x and y in pixels of the
    image, (0, 0) the centre of the first pixel. A mini-batch of B samples has `image` and
    `augmentation` as those of `ImageWorker`, and

    - `target_image`: array of shape (B, H, W) or (B, 1, H, W), the maps;
    - `gaze`: list of B dicts: ``points``, how many are in the map; ``nan`` and
      ``outside``, how many of the sample's points were dropped for NaN as a coordinate, and for
      lying outside the image.

    The map shows what the image shows, whatever its own resolution. It is made in this order:

    1. of the experiments with any point on the image, `sample_ratio` are drawn (rounded up);
    2. their points go through the image's geometry;
    3. each is moved by a draw from a normal distribution along x and y, with a standard deviation
       of `jitter` times the map's width;
    4. each that lies on the map adds 1 to the pixel that it lies in; with `interpolate`, it adds
       ``(1 - |dx|) (1 - |dy|)`` to each of the four pixels around it, whose centres are ``dx`` and
       ``dy`` away (in the outer half of a border pixel it counts as on its centre line). So a map's
       sum is its number of points;
    5. a Gaussian blur with a sigma of `blur` times the map's width, mirrored at the border, which
       leaves the sum as it is; `blur` is in [0, 1];
    6. with `maxnorm`, division by its largest value; a map without points in sight stays 0.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the image, see `ImageWorker`.
    target_image : (shape, dtype)
        Spec of the map: shape (H, W) or (1, H, W), a floating dtype.
    image_params, image_rng, gpu_augmentation, **options
        See `ImageWorker`.
    target_image_params : mapping, optional
        `sample_ratio` (1.0), `jitter` (0.0), `interpolate` (False), `blur` (0.0) and `maxnorm`
        (False).

    Raises
    ------
    ValueError
        If an argument cannot be used.

    Notes
    -----
    A sample without any point on its image raises ValueError. A map whose points are all outside of
    what the image shows is 0 everywhere.

    In crumpets 3.0 a pixel with several points has the value of one, jitter is relative to the
    square root of the map's size, and a map without points is an error.

    Examples
    --------
    >>> worker = SaliencyWorker(
    ...     ((3, 240, 320), np.uint8),
    ...     ((60, 80), np.float32),
    ...     target_image_params={"interpolate": True, "blur": 0.03, "maxnorm": True},
    ... )
    """

    def __init__(
        self,
        image: Any,
        target_image: Any,
        image_params: Mapping[str, Any] | None = None,
        target_image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
        gpu_augmentation: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(image, image_params, image_rng, gpu_augmentation, **options)
        self.add_buffer("target_image", target_image)
        spec = self.buffer_specs["target_image"]
        if spec.dtype.kind != "f":
            raise ValueError(f"target_image must have a floating dtype, not {spec.dtype}")
        if np.any(spec.fill_value):
            raise ValueError(
                f"target_image takes no fill value but 0, which a map without points has, not "
                f"{spec.fill_value!r}"
            )
        self._map_size = map_size("target_image", spec)
        given = check_parameters(target_image_params or {}, "target_image_params", GAZE)
        defaults = {name: parameter.default for name, parameter in GAZE.items()}
        self.add_params("target_image", {**defaults, **given})

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill one sample's rows."""
        sample = self.unpack(sample)
        image, params = super().prepare(sample, batch, buffers)
        own = self.params["target_image"]
        experiments, dropped = _read_experiments(field(sample, "experiments"), params["size"])
        if own["sample_ratio"] < 1.0:
            count = math.ceil(own["sample_ratio"] * len(experiments))
            chosen = self.rng.choice(len(experiments), count, replace=False)
            experiments = [experiments[number] for number in sorted(chosen.tolist())]
        matrix = target_matrix(params, self.writers["image"].size, self._map_size)
        points = transform_points(matrix, np.concatenate(experiments))
        if own["jitter"]:
            points = points + self.rng.normal(0.0, own["jitter"] * self._map_size[1], points.shape)
        gaze_map, seen = draw_points(points, self._map_size, own["interpolate"])
        if own["blur"]:
            gaze_map = _blur(gaze_map, own["blur"] * self._map_size[1])
        if own["maxnorm"] and seen:
            gaze_map /= gaze_map.max()
        buffers["target_image"].reshape(self._map_size)[...] = gaze_map
        batch["gaze"].append({"points": seen, **dropped})
        return image, params


def draw_points(
    points: NDArray[np.float64], size: tuple[int, int], interpolate: bool = False
) -> tuple[NDArray[np.float32], int]:
    """Return a map of points, and how many of them lie on it.

    Parameters
    ----------
    points : numpy.ndarray
        float64, shape (n, 2): x and y, (0, 0) is the centre of the first pixel.
    size : (int, int)
        Height and width of the map. A pixel reaches half a pixel to each side of its centre.
    interpolate : bool
        Whether a point is divided among the four pixels around it, bilinearly, or adds 1 to the one
        that it lies in.

    Returns
    -------
    gaze_map : numpy.ndarray
        float32, shape `size`, whose sum is the number of points on it.
    seen : int
        That number.
    """
    height, width = size
    last = np.array([width - 1, height - 1])
    points = points[((points >= -0.5) & (points < last + 0.5)).all(axis=1)]
    gaze_map = np.zeros(size, np.float32)
    if not interpolate:
        x, y = np.floor(points + 0.5).astype(np.intp).T
        np.add.at(gaze_map, (y, x), 1.0)
        return gaze_map, len(points)
    points = points.clip(0, last)
    low = np.floor(points).astype(np.intp)
    part = points - low
    high = np.minimum(low + 1, last)  # beyond the last pixel the part is 0
    for x, in_x in ((low[:, 0], 1.0 - part[:, 0]), (high[:, 0], part[:, 0])):
        for y, in_y in ((low[:, 1], 1.0 - part[:, 1]), (high[:, 1], part[:, 1])):
            np.add.at(gaze_map, (y, x), in_x * in_y)
    return gaze_map, len(points)


def _blur(gaze_map: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    import cv2

    blurred = cv2.GaussianBlur(gaze_map, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)
    return np.asarray(blurred, np.float32)


def _read_experiments(
    experiments: Any, size: tuple[int, int]
) -> tuple[list[NDArray[np.float64]], dict[str, int]]:
    """Points of each experiment that has any on the image, and how many were dropped."""
    height, width = size
    kept: list[NDArray[np.float64]] = []
    missing = outside = 0
    for number, experiment in enumerate(experiments):
        key = "fixations" if "fixations" in experiment else "locations"
        given = np.asarray(field(experiment, key), np.float64)
        if given.size and (given.ndim != 2 or given.shape[1] < 2):
            raise ValueError(
                f"{key} of experiment {number} must have the shape (n, 2 or more), x and y first, "
                f"not {given.shape}"
            )
        points = given[:, :2] if given.size else np.empty((0, 2))
        known = points[~np.isnan(points).any(axis=1)]
        on_image = (known >= -0.5) & (known < (width - 0.5, height - 0.5))
        inside = known[on_image.all(axis=1)]
        missing += len(points) - len(known)
        outside += len(known) - len(inside)
        if len(inside):
            kept.append(inside)
    if not kept:
        raise ValueError(
            f"the sample has no gaze point on its image of {height} x {width} pixels (height x "
            f"width): {missing} have NaN as a coordinate, {outside} are outside"
        )
    return kept, {"nan": missing, "outside": outside}
