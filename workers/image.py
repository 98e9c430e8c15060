"""The worker that the other image workers are made of."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from crumpets_like.arguments import check_count
from crumpets_like.broker import BufferWorker
from crumpets_like.workers.decoding import decode_image, image_size, read_image
from crumpets_like.workers.geometry import decoding_size, target_to_source
from crumpets_like.workers.packed import decode_packed
from crumpets_like.workers.parameters import (
    COLORSPACES,
    DEFAULTS,
    PIXEL_OPERATIONS,
    check_parameters,
    pixel_operations,
)
from crumpets_like.workers.pixels import apply_pixels
from crumpets_like.workers.rng import ImageRNG, NoRNG
from crumpets_like.workers.warping import warp_inverse
from crumpets_like.workers.writing import PixelWriter

_LONGEST_SAMPLE = 2**30  # bytes of a packed sample


class ImageWorker(BufferWorker):
    """Decodes one image per sample and augments it, straight into the mini-batch.

    A sample is a mapping with `image`: encoded bytes, a path, or a decoded uint8 array (see
    `crumpets_like.workers.decoding.decode_image`); or the msgpack bytes of such a mapping. A
    mini-batch of B samples has

    - `image`: array of shape (B, C, H, W), or (B, H, W, C);
    - `augmentation`: list of B dicts, all the parameters each image was made with, in plain Python
      numbers: the keys of `crumpets_like.workers.parameters.PARAMETERS`, `size` (height and width
      of the whole source image) and `gpu_augmentation`.

    One image goes through: its size is read from the header; `image_rng` draws its parameters; it
    is decoded, a JPEG at a reduced size if the shown part allows; one affine warp draws it at the
    target's size (`warping.warp`); pixel operations (`pixels.apply_pixels`); the colour space;
    dtype, layout and normalisation, in one pass into the row.

    OpenCV runs single threaded in the workers, since the loader already keeps all cores busy. Its
    setting is one per process: with ``nworkers=0`` and with thread workers it holds for the
    caller's own use of OpenCV as well.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Shape (C, H, W), or (H, W, C), with C 1 for grey or 3 for colour; dtype floating or an
        integer type that holds 0 to 255. The fill value, one or one per channel and in the dtype's
        own range, shows where the warped image does not reach, and through transparent pixels;
        default black.
    image_params : mapping, optional
        Fixed parameters for all images, see `crumpets_like.workers.parameters`. They override
        those of `image_rng`.
    image_rng : callable, optional
        Called as ``image_rng(image, buffer, generator)`` for each image, returns some of its
        parameters; see `crumpets_like.workers.rng.ImageRNG`. With a seed the results do not depend
        on the number of workers.
    gpu_augmentation : bool
        Leave the pixel operations (gamma, contrast, noise, blur) to the device; they are in
        `augmentation` all the same.
    layout : {"CHW", "HWC"}
        Order of the axes of `image`.
    mean, std : float or sequence of float, optional
        For floating dtypes: one number or one per channel. What is written is
        ``(pixel / 255 - mean) / std``.
    max_pixels : int
        Images with more pixels are refused before they are decoded.

    Raises
    ------
    ValueError
        If a spec or a parameter is wrong.
    TypeError
        If `image_rng` is not callable, or `image_params` no mapping.
    ImportError
        If OpenCV or simplejpeg is missing: both come with the extra ``image``.

    Notes
    -----
    A sample whose image cannot be decoded raises ValueError with the reason.

    For an augmentation of your own, extend `prepare_image`; for targets that follow the image,
    extend `prepare`, and map points by `geometry.make_transform` with the parameters it returns.
    """

    def __init__(
        self,
        image: Any,
        image_params: Mapping[str, Any] | None = None,
        image_rng: ImageRNG | None = None,
        gpu_augmentation: bool = False,
        *,
        layout: str = "CHW",
        mean: Any = None,
        std: Any = None,
        max_pixels: int = 2**28,
    ) -> None:
        super().__init__()
        missing = [name for name in ("cv2", "simplejpeg") if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"{type(self).__name__} needs {' and '.join(missing)}, which cannot be found: "
                f"pip install 'crumpets-like[image]'"
            )
        if image_rng is not None and not callable(image_rng):
            raise TypeError(
                f"image_rng must be callable, such as IMAGENET_TRAIN of "
                f"crumpets_like.workers.presets, got {image_rng!r}"
            )
        self.image_rng: ImageRNG = NoRNG() if image_rng is None else image_rng
        self.layout = layout
        self.max_pixels = check_count("max_pixels", max_pixels)
        self.writers: dict[str, PixelWriter] = {}  # by buffer, what writes its pixels
        self.add_image("image", image, image_params, layout=layout, mean=mean, std=std)
        self.gpu_augmentation = gpu_augmentation

    @property
    def gpu_augmentation(self) -> bool:
        """Whether pixel operations are left to the device; a loader of tensors may set it."""
        return self._gpu_augmentation

    @gpu_augmentation.setter
    def gpu_augmentation(self, value: bool) -> None:
        if value:
            self._check_for_device()
        self._gpu_augmentation = bool(value)

    def add_image(
        self,
        key: str,
        spec: Any,
        params: Mapping[str, Any] | None = None,
        *,
        layout: str = "CHW",
        mean: Any = None,
        std: Any = None,
    ) -> None:
        """Declare a buffer that `prepare_image` can write to, drawn from the sample's image.

        Parameters
        ----------
        key : str
            Name of the buffer.
        spec, params, layout, mean, std
            As for the class; `params` are the fixed ones.
        """
        writer = PixelWriter(key, spec, layout, mean, std)
        source = f"{key}_params"
        fixed = check_parameters({} if params is None else params, source)
        colorspace = fixed.setdefault("colorspace", "rgb")
        color = fixed.setdefault("color", writer.channels == 3 or colorspace == "gray")
        if not color and colorspace not in ("rgb", "gray"):
            raise ValueError(f"{source}: colorspace {colorspace!r} needs color=True")
        channels = 3 if color and colorspace != "gray" else 1
        if channels != writer.channels:
            raise ValueError(
                f"{source}: color={color} and colorspace={colorspace!r} give {channels} channels, "
                f"but {key} has {writer.channels}"
            )
        _check_background(fixed.get("background"), color, source)
        self.add_buffer(key, writer.spec)
        self.add_params(key, fixed)
        self.writers[key] = writer

    def _check_for_device(self) -> None:
        fixed, writer = self.params["image"], self.writers["image"]
        if fixed["colorspace"] != "rgb" or writer.normalises:
            raise ValueError(
                f"gpu_augmentation needs pixels as they are, but colorspace is "
                f"{fixed['colorspace']!r} and mean and std are "
                f"{'given' if writer.normalises else 'left out'}: convert and normalise on the "
                f"device, after the pixel operations"
            )

    def setup(self) -> None:
        """Make OpenCV single threaded."""
        import cv2

        cv2.setNumThreads(0)

    def unpack(self, sample: Any) -> Mapping[str, Any]:
        """Return the sample as a mapping.

        Parameters
        ----------
        sample : mapping or bytes-like
            A mapping is returned as it is. Bytes are unpacked by msgpack, arrays in them
            as msgpack-numpy packs them; at most 1 GiB, and no objects.

        Raises
        ------
        TypeError
            If it is neither.
        ValueError
            If the bytes are no packed mapping.
        """
        if type(sample) is dict or isinstance(sample, Mapping):
            mapping: Mapping[str, Any] = sample
            return mapping
        if not isinstance(sample, bytes | bytearray | memoryview):
            raise TypeError(
                f"a sample must be a mapping, or the msgpack bytes of one, "
                f"not {type(sample).__name__}"
            )
        size = memoryview(sample).nbytes
        if size > _LONGEST_SAMPLE:
            raise ValueError(f"the packed sample has {size:,} bytes, more than {_LONGEST_SAMPLE:,}")
        try:
            unpacked = msgpack.unpackb(sample, object_hook=decode_packed, raw=False)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ValueError(
                # Not its repr, which may be all of the sample.
                f"the sample's {size:,} bytes cannot be unpacked by msgpack: "
                f"{type(error).__name__} {error}".rstrip()
            ) from error
        if not isinstance(unpacked, Mapping):
            raise ValueError(
                f"the sample's {size:,} bytes hold a {type(unpacked).__name__}, not a mapping"
            )
        return unpacked

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill the image's row and note its parameters.

        Returns
        -------
        image : numpy.ndarray
            The decoded image, uint8, shape (H, W, 3) or (H, W, 1); it may be a reduced one. It is
            read-only where the sample holds it as an array.
        params : dict
            The parameters used, the same object that `augmentation` gets. ``params["size"]`` is the
            size of the whole image, and ``make_transform(params["size"], (height, width),
            **geometry_of(params))`` its map to a target of (height, width) pixels.
        """
        image, drawn = self.draw(field(self.unpack(sample), "image"), buffers, self.rng)
        params = self.prepare_image(image, buffers, drawn, "image")
        batch["augmentation"].append(params)
        return image, params

    def draw(
        self, source: Any, buffers: dict[str, NDArray[Any]], generator: np.random.Generator
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Draw an image's parameters, and decode it as large as they need it.

        Parameters
        ----------
        source : bytes-like, path or array
            What the sample has as `image`.
        buffers : dict of str to ndarray
            The sample's rows.
        generator : numpy.random.Generator
            Where all random numbers come from: first those of `image_rng`, then, if there are pixel
            operations, their order and the seed of the noise.

        Returns
        -------
        image : numpy.ndarray
            uint8, shape (H, W, 3) or (H, W, 1), maybe reduced; read-only where the sample holds it.
        params : dict
            What was drawn, and `size`.
        """
        buffer = self.writers["image"].planes(buffers["image"])
        source = read_image(source)  # once
        color = any(self.params[key]["color"] for key in self.writers)
        shape_only = getattr(self.image_rng, "shape_only", False)
        if shape_only:
            size = image_size(source)
            # No pixels: such an RNG looks at the shape alone.
            shape = (*size, 3 if color else 1)
            image = np.ndarray(shape, np.uint8, b"\0", strides=(0, 0, 0))
        else:
            image = self.decode(source, color, None)
            size = (image.shape[0], image.shape[1])
        drawn = check_parameters(
            self.image_rng(image, buffer, generator), "the result of image_rng"
        )
        if any(pixel_operations({**drawn, **self.params[key]}) for key in self.writers):
            order = [PIXEL_OPERATIONS[place] for place in generator.permutation(3)]
            drawn.setdefault("order", tuple(order))
            drawn.setdefault("noise_seed", int(generator.integers(2**63)))
        drawn["size"] = size
        if shape_only:
            image = self.decode(source, color, self._least_size(drawn))
        return image, drawn

    def _least_size(self, drawn: Mapping[str, Any]) -> tuple[int, int]:
        """Height and width that leave one pixel for each sample of the largest target."""
        size: tuple[int, int] = drawn["size"]
        least = (1, 1)
        for key, writer in self.writers.items():
            params = {**DEFAULTS, **drawn, **self.params[key]}
            times, (height, width) = max(1, params["supersampling"]), writer.size
            inverse = target_to_source(size, (times * height, times * width), params)
            needed = decoding_size(inverse, size)
            least = max(least[0], needed[0]), max(least[1], needed[1])
        return least

    def decode(
        self, source: Any, color: bool, min_size: tuple[int, int] | None
    ) -> NDArray[np.uint8]:
        """Return the pixels of what the sample has as `image`; see `decode_image`.

        An array that the sample holds decoded is returned as a view that cannot be written to.
        """
        background = self.params["image"].get("background")
        if background is None:
            background = self.writers["image"].background
        if not isinstance(background, tuple):
            background = (background,) * 3
        image = decode_image(
            source, color, min_size=min_size, max_pixels=self.max_pixels, background=background
        )
        if isinstance(source, np.ndarray) and np.may_share_memory(image, source):
            # What wrote to it would change the dataset's own array, here or in another process.
            image = image[:]
            image.flags.writeable = False
        return image

    def prepare_image(
        self,
        image: NDArray[np.uint8],
        buffers: dict[str, NDArray[Any]],
        params: Mapping[str, Any],
        key: str,
    ) -> dict[str, Any]:
        """Warp one image, apply its pixel operations, and write it to ``buffers[key]``.

        Parameters
        ----------
        image : numpy.ndarray
            uint8, shape (H, W, 3) or (H, W, 1).
        buffers : dict of str to ndarray
            The sample's rows.
        params : mapping
            Parameters, as `draw` returns them. The fixed ones of `key` override them. With `size`,
            `image` may be a reduced decode of an image of that (height, width).
        key : str
            A buffer declared by `add_image`.

        Returns
        -------
        dict
            All the parameters used.
        """
        writer = self.writers[key]
        used = {**DEFAULTS, "size": image.shape[:2], **params, **self.params[key]}
        used["size"] = tuple(used["size"])
        used["gpu_augmentation"] = self.gpu_augmentation
        if used["background"] is None:
            used["background"] = writer.background
        else:
            _check_background(used["background"], used["color"], f"the parameters of {key}")
        used["order"] = pixel_operations(used)
        on_device = self.gpu_augmentation and key == "image"
        writer.write(_render(image, writer.size, used, on_device), buffers[key])
        return used


def randomize_image(
    image: NDArray[np.uint8],
    size: tuple[int, int],
    *,
    gpu_augmentation: bool = False,
    **params: Any,
) -> NDArray[np.uint8]:
    """Return an image as `ImageWorker` makes it of the same parameters. Nothing is drawn at random.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W), (H, W, 1) or, in the order red, green, blue, (H, W, 3).
    size : (int, int)
        Height and width of the result.
    gpu_augmentation : bool
        Leave out the pixel operations.
    **params
        Any of `crumpets_like.workers.parameters.PARAMETERS`, with their defaults. `background` is 0
        if None.

    Returns
    -------
    numpy.ndarray
        uint8, shape (height, width, 3), or (height, width, 1) with ``color=False`` or
        ``colorspace="gray"``.

    Raises
    ------
    ValueError
        If a parameter is unknown or out of range, or `image` is no image.
    """
    used = {**DEFAULTS, **check_parameters(params, "randomize_image")}
    height, width = size
    target = (check_count("height", height), check_count("width", width))
    pixels = decode_image(image, color=used["color"])
    used["size"] = pixels.shape[:2]
    used["background"] = used["background"] or 0.0
    _check_background(used["background"], used["color"], "randomize_image")
    used["order"] = pixel_operations(used)
    return _render(pixels, target, used, gpu_augmentation)


def _check_background(background: Any, color: bool, source: str) -> None:
    if not color and isinstance(background, tuple):
        raise ValueError(
            f"{source}: background must be one number where color is False, not {background}"
        )


def _render(
    image: NDArray[np.uint8], size: tuple[int, int], params: Mapping[str, Any], on_device: bool
) -> NDArray[np.uint8]:
    """Return the picture of `size` that complete parameters make of an image."""
    import cv2

    color = params["color"]
    if color and image.shape[2] == 1:
        image = np.asarray(cv2.cvtColor(image, cv2.COLOR_GRAY2RGB), np.uint8)
    picture = warp_inverse(
        image,
        size,
        target_to_source(params["size"], size, params),
        params["size"],
        params["interp_method"],
        params["supersampling"],
        params["background"],
    )
    if not color and picture.shape[2] == 3:
        picture = _convert(picture, "COLOR_RGB2GRAY")
    if params["order"] and not on_device:
        picture = apply_pixels(picture, params, color)
    conversion = COLORSPACES[params["colorspace"]] if color else None
    return picture if conversion is None else _convert(picture, conversion)


def _convert(picture: NDArray[np.uint8], conversion: str) -> NDArray[np.uint8]:
    import cv2

    converted = cv2.cvtColor(picture, getattr(cv2, conversion))
    return np.asarray(converted, np.uint8).reshape(*picture.shape[:2], -1)


def field(sample: Mapping[str, Any], key: str) -> Any:
    """Return what a sample has as `key`; ValueError if it has none."""
    try:
        return sample[key]
    except KeyError:
        raise ValueError(
            f"the sample has no {key!r}; its keys are {', '.join(map(repr, sample)) or 'none'}"
        ) from None
