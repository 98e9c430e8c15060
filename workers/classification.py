"""The worker for image classification."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.broker import BufferWorker
from crumpets_like.workers.affine import AFFINE_DEFAULTS, ImageRNG, check_affine, warp
from crumpets_like.workers.decoding import decode_image


class ClassificationWorker(BufferWorker):
    """Decodes one image per sample, augments it by one affine warp, and passes its label on.

    A sample is a mapping with `image` (encoded bytes, a path, or a decoded uint8 array, see
    `crumpets_like.workers.decoding.decode_image`) and `label`. A mini-batch of B samples has

    - `image`: array of shape (B, C, H, W), integers 0 to 255 or floats 0.0 to 1.0, in the order
      red, green, blue;
    - `label`: array of shape (B, ...);
    - `augmentation`: list of B dicts, the parameters each image was warped with.

    OpenCV runs single threaded in the workers, since the loader already keeps all cores busy. Its
    setting is one per process: with ``nworkers=0`` and with thread workers it holds for the
    caller's own use of OpenCV as well.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Shape (C, H, W) of the augmented image, C 1 for grey or 3 for colour; dtype floating or an
        integer type that holds 0 to 255. The fill value, one or one per channel and in the dtype's
        own range, shows where the warped image does not reach; default 0.
    label : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the label.
    image_params : mapping, optional
        Fixed parameters of the warp for all images, see `crumpets_like.workers.affine.warp`:
        `angle`, `scale`, `shift`, `hmirror`, `scale_mode`.
    image_rng : callable, optional
        Called as ``image_rng(image, buffer, generator)`` for each image, returns the parameters to
        use instead of the fixed ones. `RandomAffine` is one. The generator is the worker's `rng`,
        so with a seed the results do not depend on the number of workers.

    Raises
    ------
    ValueError
        If a spec or a parameter is wrong.
    TypeError
        If `image_rng` is not callable.
    ImportError
        If OpenCV or simplejpeg is missing: both come with the extra ``image``.

    Notes
    -----
    A sample whose image cannot be decoded raises ValueError with the reason.

    Examples
    --------
    >>> worker = ClassificationWorker(
    ...     image=((3, 224, 224), np.uint8, (124, 116, 104)),
    ...     label=((), np.int64),
    ...     image_params={"scale_mode": "shortest"},
    ...     image_rng=RandomAffine(angle=10, shift=0.1, scale=(0.8, 1.25), hmirror=0.5),
    ... )
    """

    def __init__(
        self,
        image: tuple[Any, ...],
        label: tuple[Any, ...],
        image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
    ) -> None:
        super().__init__()
        missing = [name for name in ("cv2", "simplejpeg") if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"ClassificationWorker needs {' and '.join(missing)}, which cannot be found: "
                f"pip install 'crumpets-like[image]'"
            )
        if image_rng is not None and not callable(image_rng):
            raise TypeError(f"image_rng must be callable, not {type(image_rng).__name__}")
        check_affine(image_params or {}, "image_params")
        self._background = _background(image)
        self.add_buffer("image", image)
        self.add_buffer("label", label)
        self.add_params("image", {**AFFINE_DEFAULTS, **(image_params or {})})
        self.image_rng = image_rng

    def setup(self) -> None:
        """Make OpenCV single threaded."""
        import cv2

        cv2.setNumThreads(0)

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Fill one sample's rows and note its augmentation."""
        params = self.prepare_image(sample["image"], buffers["image"], self.rng)
        buffers["label"][...] = sample["label"]
        batch["augmentation"].append(params)

    def prepare_image(
        self, image: Any, buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Decode, augment and write one image.

        Parameters
        ----------
        image : bytes-like, path or array
            See `crumpets_like.workers.decoding.decode_image`.
        buffer : numpy.ndarray
            Written, shape (C, H, W).
        generator : numpy.random.Generator
            What `image_rng` draws from.

        Returns
        -------
        dict
            The parameters used.

        Raises
        ------
        ValueError
            If the image cannot be decoded or `image_rng` gives parameters out of range.
        """
        pixels = decode_image(image, channels=buffer.shape[0])
        params = dict(self.params["image"])
        if self.image_rng is not None:
            drawn = self.image_rng(pixels, buffer, generator)
            check_affine(drawn, "image_rng's result")
            params.update(drawn)
        warp(pixels, buffer, params, self._background)
        return params


def _background(spec: Any) -> tuple[float, ...]:
    """Check an image's buffer spec and return its fill value, 0 to 255, for each channel."""
    pair = isinstance(spec, tuple | list) and len(spec) in (2, 3)
    if not pair or not isinstance(spec[0], tuple | list):
        raise ValueError(
            f"image must be (shape, dtype) or (shape, dtype, fill_value), not {spec!r}"
        )
    shape, dtype = tuple(spec[0]), np.dtype(spec[1])
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise ValueError(
            f"image must have a shape (C, H, W) with C 1 or 3 and no side of 0, not {shape}"
        )
    floating = np.issubdtype(dtype, np.floating)
    if not floating and not (dtype.kind in "iu" and np.can_cast(np.uint8, dtype)):
        raise ValueError(
            f"image must have a floating dtype or an integer one that holds 0 to 255, not {dtype}"
        )
    fill = np.asarray(spec[2] if len(spec) == 3 else 0, np.float64).ravel()
    if fill.size not in (1, shape[0]):
        raise ValueError(
            f"image's fill_value must be one number or one per channel, so {shape[0]}, "
            f"not {fill.size} (it is the background of the warped image)"
        )
    top = 1.0 if floating else 255.0
    if not ((fill >= 0.0) & (fill <= top)).all():
        raise ValueError(
            f"image's fill_value must be within 0 and {top:g}, the range of pixels of {dtype}, "
            f"not {spec[2]!r}"
        )
    values: list[float] = np.broadcast_to(fill * (255.0 / top), shape[0]).tolist()
    return tuple(values)
