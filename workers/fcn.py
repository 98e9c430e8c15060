"""The worker for fully convolutional networks: an image, and an image to make of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.image import ImageWorker
from crumpets_like.workers.parameters import GEOMETRY
from crumpets_like.workers.rng import ImageRNG


class FCNWorker(ImageWorker):
    """Decodes one image per sample, and draws it twice: as `image` and as `target_image`.

    For autoencoders, super-resolution, colouring and the like: both show the same part of the same
    image under the same geometry, and each has its own size, colours and fixed parameters. A
    mini-batch has `image`, `target_image` and `augmentation`.

    Parameters
    ----------
    image, target_image : (shape, dtype) or (shape, dtype, fill_value)
        Specs of the two images, see `ImageWorker`.
    image_params : mapping, optional
        Fixed parameters. Those of the geometry hold for both images, the others for `image`.
    target_image_params : mapping, optional
        Fixed parameters of `target_image`; they override all others.
    image_rng : callable, optional
        What it draws holds for both images. A parameter that `image_params` fix is not drawn, so
        if it is none of the geometry, `target_image` has its default.
    gpu_augmentation : bool
        Leave the pixel operations of `image` to the device. Those of `target_image` stay here.
    **options
        As for `ImageWorker`; `layout` holds for both images, `mean` and `std` for `image`.
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
        layout = options.get("layout", "CHW")
        self.add_image("target_image", target_image, target_image_params, layout=layout)
        geometry = {n: value for n, value in self.params["image"].items() if n in GEOMETRY}
        self.params["target_image"] = {**geometry, **self.params["target_image"]}

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill both rows and note the parameters of `image`."""
        image, params = super().prepare(sample, batch, buffers)
        # The recorded background is that of the image; the target has its own.
        own = self.params["image"].keys() - GEOMETRY.keys() | {"background"}
        shared = {name: value for name, value in params.items() if name not in own}
        self.prepare_image(image, buffers, shared, "target_image")
        return image, params
