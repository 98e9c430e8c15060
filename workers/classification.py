"""The worker for image classification."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.image import ImageWorker, field
from crumpets_like.workers.rng import ImageRNG


class ClassificationWorker(ImageWorker):
    """Decodes and augments one image per sample, and passes its label on.

    A sample has `image` and `label`; a mini-batch has `image`, `label` and `augmentation`. See
    `ImageWorker` for all but the label.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the image.
    label : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the label, such as ``((), np.int64)``. An integer label that the dtype cannot hold
        is an error, as everywhere in a mini-batch.
    image_params, image_rng, gpu_augmentation, **options
        As for `ImageWorker`.

    Examples
    --------
    >>> from crumpets_like.workers import presets
    >>> worker = ClassificationWorker(
    ...     image=((3, 224, 224), np.float32),
    ...     label=((), np.int64),
    ...     image_rng=presets.IMAGENET_TRAIN,
    ...     mean=presets.IMAGENET_MEAN,
    ...     std=presets.IMAGENET_STD,
    ... )
    """

    def __init__(
        self,
        image: Any,
        label: Any,
        image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
        gpu_augmentation: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(image, image_params, image_rng, gpu_augmentation, **options)
        self.add_buffer("label", label)

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill one sample's rows and note its augmentation."""
        sample = self.unpack(sample)
        image, params = super().prepare(sample, batch, buffers)
        buffers["label"][...] = field(sample, "label")
        return image, params
