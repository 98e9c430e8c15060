"""The worker for images that go through a callable of the user's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.seeding import preserve_globals, seed_all
from crumpets_like.workers.image import ImageWorker, field

_USED_PARAMS = ("color", "background")  # when an image is decoded
INPUTS = ("array", "keyword", "tensor", "pil")


class TransformWorker(ImageWorker):
    """Decodes one image per sample, and sends it through a transform of yours.

    For torchvision's v2 transforms, albumentations, and any callable. A mini-batch has `image` and,
    with `label`, `label`.

    **Randomness.** Before each call, Python's ``random``, ``numpy.random`` and, if it is imported,
    torch's default generator are seeded from the sample's own generator, and restored afterwards;
    a transform with a method ``set_random_seed`` (albumentations 2) is seeded by it, as well. So
    with a seed of the loader the results do not depend on the number of workers, whichever of these
    the transform draws from. A transform that keeps a generator of its own is not reached: let it
    take ``generator``, see `pass_generator`. The global generators are one per process: with
    ``worker_threads`` above 1 and with thread workers, use `pass_generator`, too.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Shape (C, H, W) or, with ``layout="HWC"``, (H, W, C) of what the transform returns.
    transform : callable
        Gets the decoded image at full size, in the form that `image_as` says. It returns an array
        of shape (H, W, C) or (H, W), a tensor of shape (C, H, W) or (1, C, H, W), or a PIL image.
        uint8 is written as other image workers do: floating rows get
        ``(pixel / 255 - mean) / std``. Floats are written as they are, to floating rows only.
    label : (shape, dtype) or (shape, dtype, fill_value), optional
        Spec of the label, if samples have one that is wanted.
    image_as : {"array", "keyword", "tensor", "pil"}, optional
        What the transform gets: "array": uint8, shape (H, W, C), in red, green, blue, read-only
        where the sample holds it as an array (to change it, copy it); "keyword": the same, as
        ``transform(image=array)["image"]``; "tensor": torch, uint8, shape (C, H, W); "pil": a PIL
        image. Default: "tensor" for transforms of torchvision, "keyword" for those of
        albumentations, else "array".
    pass_generator : bool
        Call the transform with a further argument ``generator=``, the sample's own
        `numpy.random.Generator`, and leave the global ones alone.
    layout, mean, std, max_pixels
        As for `ImageWorker`. Of its `image_params`, "color" and "background" can be given. There is
        no `gpu_augmentation`: what a transform does to pixels cannot be left to the device.

    Raises
    ------
    TypeError
        If `transform` is not callable.
    ValueError
        If a spec or `image_as` is wrong, or `gpu_augmentation` is true; if an `image_rng` or other
        `image_params` are given, which would have no effect.
    """

    def __init__(
        self,
        image: Any,
        transform: Callable[..., Any],
        label: Any = None,
        *,
        image_as: str | None = None,
        pass_generator: bool = False,
        **options: Any,
    ) -> None:
        if options.get("image_rng") is not None:
            raise ValueError(
                "image_rng has no effect in a TransformWorker, whose transform draws by itself"
            )
        super().__init__(image, **options)
        idle = sorted((options.get("image_params") or {}).keys() - set(_USED_PARAMS))
        if idle:
            raise ValueError(
                f"image_params: {', '.join(idle)} has no effect in a TransformWorker, which takes "
                f"{' and '.join(_USED_PARAMS)} alone; all else is the transform's"
            )
        if not callable(transform):
            raise TypeError(f"transform must be callable, not {type(transform).__name__}")
        if image_as is None:
            library = type(transform).__module__.partition(".")[0]
            image_as = {"torchvision": "tensor", "albumentations": "keyword"}.get(library, "array")
        if image_as not in INPUTS:
            raise ValueError(f"image_as must be one of {INPUTS}, not {image_as!r}")
        self.transform = transform
        self.image_as = image_as
        self.pass_generator = pass_generator
        if label is not None:
            self.add_buffer("label", label)

    def _check_for_device(self) -> None:
        raise ValueError(
            f"gpu_augmentation=True needs pixel operations that the device can do instead, but "
            f"{type(self).__name__} has none: all that happens to an image is in its transform. "
            f"Leave gpu_augmentation out"
        )

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> Any:
        """Transform one sample's image into its row; pass the label on.

        Returns
        -------
        image : numpy.ndarray
            The decoded image.
        params : dict
            Empty: what the transform drew is its own.
        """
        sample = self.unpack(sample)
        color = self.params["image"]["color"]
        image = self.decode(field(sample, "image"), color, None)
        self._write(self._call(image), buffers["image"])
        if "label" in buffers:
            buffers["label"][...] = field(sample, "label")
        return image, {}

    def _call(self, image: NDArray[np.uint8]) -> Any:
        given = self._as_input(image)
        if self.pass_generator:
            return self._run(given, generator=self.rng)
        seed = int(self.rng.integers(2**63))
        with preserve_globals():
            seed_all(seed)
            reseed = getattr(self.transform, "set_random_seed", None)
            if reseed is not None:
                reseed(seed % 2**32)
            return self._run(given)

    def _run(self, given: Any, **generator: np.random.Generator) -> Any:
        if self.image_as == "keyword":
            return self.transform(image=given, **generator)["image"]
        return self.transform(given, **generator)

    def _as_input(self, image: NDArray[np.uint8]) -> Any:
        if self.image_as == "tensor":
            import torch

            # A copy: torch warns of arrays that cannot be written to.
            return torch.from_numpy(image.transpose(2, 0, 1).copy())
        if self.image_as == "pil":
            from PIL import Image

            return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
        return image

    def _write(self, result: Any, buffer: NDArray[Any]) -> None:
        writer = self.writers["image"]
        pixels = _as_channels_last(result)
        if pixels.shape != (*writer.size, writer.channels):
            raise ValueError(
                f"the transform returned an image of shape (H, W, C) = {pixels.shape}, but the "
                f"buffer needs {(*writer.size, writer.channels)}"
            )
        if pixels.dtype == np.uint8:
            writer.write(pixels, buffer)
        elif pixels.dtype.kind == "f" and buffer.dtype.kind == "f":
            writer.planes(buffer)[...] = pixels.transpose(2, 0, 1)
        else:
            raise ValueError(
                f"the transform returned {pixels.dtype}, but the buffer holds {buffer.dtype}: "
                f"return uint8, or floats for a floating buffer"
            )


def _as_channels_last(result: Any) -> NDArray[Any]:
    """Turn an array, a tensor or a PIL image into an array of shape (H, W, C)."""
    if hasattr(result, "detach"):  # a tensor
        array = result.detach().cpu().numpy()
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        return np.moveaxis(array, 0, -1) if array.ndim == 3 else array[..., np.newaxis]
    array = np.asarray(result)
    return array[:, :, np.newaxis] if array.ndim == 2 else array
