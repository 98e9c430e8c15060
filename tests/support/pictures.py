"""Pictures and geometries for tests of image workers."""

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from crumpets_like.workers.geometry import Affine, invert

GEOMETRY = st.fixed_dictionaries(
    {
        "angle": st.floats(-180, 180),
        "scale": st.floats(0.1, 10),
        "aspect": st.floats(0.25, 4),
        "shift": st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
        "shear": st.tuples(st.floats(-0.5, 0.5), st.floats(-0.5, 0.5)),
        "hmirror": st.booleans(),
        "vmirror": st.booleans(),
        "scale_mode": st.sampled_from(["shortest", "longest"]),
    }
)
"""Arguments of `make_transform`."""


def inverse(matrix: NDArray[np.float64]) -> Affine:
    """The inverse of a matrix, as the workers pass it on."""
    (xx, xy, x), (yx, yy, y) = matrix.tolist()
    return invert(((xx, xy, x), (yx, yy, y)))


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def smooth(height: int, width: int, seed: int = 0, shortest: float = 12.0) -> NDArray[np.uint8]:
    """A picture of waves, longer than `shortest` pixels, in three channels."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    planes = []
    for _ in range(3):
        angle, phase, length = rng.random(3) * (2 * np.pi, 2 * np.pi, 20) + (0, 0, shortest)
        along = rows * np.sin(angle) + columns * np.cos(angle)
        planes.append(127.5 + 110 * np.sin(2 * np.pi * along / length + phase))
    picture: NDArray[np.uint8] = np.rint(np.stack(planes, axis=-1)).astype(np.uint8)
    return picture
