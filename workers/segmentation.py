"""The worker for semantic segmentation: an image and the class of each of its pixels."""

import io
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.decoding import EncodedImage, naming_file, read_image
from crumpets_like.workers.geometry import invert_transform, transform_points
from crumpets_like.workers.image import ImageWorker, field
from crumpets_like.workers.rng import ImageRNG
from crumpets_like.workers.targets import map_size, target_matrix

__all__ = ["SegmentationWorker", "decode_mask", "warp_mask"]

_LABEL_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # one whole number per pixel
_WARPABLE = ("uint8", "uint16", "int16", "int32")


class SegmentationWorker(ImageWorker):
    """Decodes and augments an image, and moves its mask with it.

    A sample has `image`, see `ImageWorker`, and `target_image`, its mask, see `decode_mask`. A
    mini-batch of B samples has `image` and `augmentation` as those of `ImageWorker`, and

    - `target_image`: array of shape (B, H, W) or (B, 1, H, W), the class of each pixel.

    The mask goes through the image's geometry, whatever its own resolution. Each of its pixels is
    the class of the source pixel that its centre lies in, so no class comes up that the mask does
    not have. Pixel operations (gamma, contrast, noise, blur) and colours leave it as it is.

    Parameters
    ----------
    image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the image, see `ImageWorker`.
    target_image : (shape, dtype) or (shape, dtype, fill_value)
        Spec of the mask: shape (H, W) or (1, H, W), an integer dtype. The fill value is what pixels
        outside the source image get, within int32: 255 or -1 for a loss that ignores these;
        default 0.
    image_params, image_rng, gpu_augmentation, **options
        See `ImageWorker`.
    target_image_params : mapping, optional
        ``background``: replaces the fill value.

    Raises
    ------
    ValueError
        If an argument cannot be used.
    ImportError
        If Pillow, OpenCV or simplejpeg is missing: they come with the extra ``image``.

    Notes
    -----
    A mask of another size than its image raises ValueError, and so do classes that the dtype cannot
    hold.

    Examples
    --------
    >>> worker = SegmentationWorker(
    ...     ((3, 512, 512), np.float32), ((512, 512), np.int64, 255), image_rng=SEGMENTATION_TRAIN
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
        if find_spec("PIL") is None:
            raise ImportError(
                "SegmentationWorker needs Pillow, which cannot be found: "
                "pip install 'crumpets-like[image]'"
            )
        super().__init__(image, image_params, image_rng, gpu_augmentation, **options)
        self.add_buffer("target_image", target_image)
        spec = self.buffer_specs["target_image"]
        if spec.dtype.kind not in "iu":
            raise ValueError(f"target_image must have an integer dtype, not {spec.dtype}")
        self._mask_size = map_size("target_image", spec)
        unknown = sorted(map(str, (target_image_params or {}).keys() - {"background"}))
        if unknown:
            raise ValueError(
                f"target_image_params has unknown parameters {', '.join(unknown)}; known is "
                "background. A mask has its image's geometry, and nothing else is done to it."
            )
        self.add_params("target_image", target_image_params, {})
        background = self.params["target_image"].get("background")
        if background is None:
            background = spec.fill_value
        info, warpable = np.iinfo(spec.dtype), np.iinfo(np.int32)
        fits = np.ndim(background) == 0 and info.min <= background <= info.max
        if not fits or int(background) != background:
            raise ValueError(
                f"the value outside the image must be one integer that {spec.dtype} holds, not "
                f"{background!r}"
            )
        if not warpable.min <= background <= warpable.max:
            raise ValueError(f"the value outside the image must fit int32, not {background!r}")
        self._outside = int(background)

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Fill one sample's rows."""
        sample = self.unpack(sample)
        image, params = super().prepare(sample, batch, buffers)
        mask = decode_mask(field(sample, "target_image"), params["size"])
        matrix = target_matrix(params, self.writers["image"].size, self._mask_size)
        row = buffers["target_image"]
        row.reshape(self._mask_size)[...] = warp_mask(mask, self._mask_size, matrix, self._outside)
        return image, params


def decode_mask(mask: Any, size: tuple[int, int]) -> NDArray[Any]:
    """Turn what a sample calls its mask into class numbers.

    The numbers are those in the file: the indices of an image with a palette (not its colours), the
    full range of one with 16 bits, 0 and 1 of one with one bit. An orientation in its metadata is
    applied, as to images.

    Parameters
    ----------
    mask : bytes-like, path or array
        An encoded image with one channel (PNG, or another format without loss; ``bytes``,
        ``bytearray``, ``memoryview`` or a one-dimensional uint8 array), the path of its file
        (``str`` or ``os.PathLike``), or an array of integers or bools, shape (H, W).
    size : (int, int)
        Height and width that it must have: those of its image.

    Returns
    -------
    numpy.ndarray
        Shape (H, W), of an integer dtype or bool. An array is not copied.

    Raises
    ------
    TypeError
        If `mask` is of no such type.
    ValueError
        If it is broken, has another size or several channels, or is a JPEG.
    OSError
        If the file cannot be read.
    """
    if isinstance(mask, np.ndarray) and mask.ndim != 1:
        if mask.ndim != 2 or mask.dtype.kind not in "biu":
            raise ValueError(
                "a mask must be an array of integers, shape (H, W), not "
                f"{mask.dtype} of shape {mask.shape}"
            )
        _check_size(mask.shape, size)
        return mask
    try:
        source = cast(EncodedImage, read_image(mask))
    except (TypeError, ValueError) as error:
        raise type(error)(f"mask: {error}") from error
    with naming_file(source.path):
        return _decode(source, size)


def _decode(source: EncodedImage, size: tuple[int, int]) -> NDArray[Any]:
    from PIL import Image, ImageOps

    if source.header.format == "JPEG":
        raise ValueError("a JPEG keeps no exact class numbers: store masks as PNG")
    _check_size(source.header.size, size)
    data = source.data
    try:
        with Image.open(io.BytesIO(data)) as picture:
            if picture.mode not in _LABEL_MODES:
                raise ValueError(
                    "a mask must have one class number per pixel (grey or palette), but this image "
                    f"has the channels {picture.mode}: turn its colours into class numbers"
                )
            upright = source.header.orientation == 1
            labels = np.asarray(picture if upright else ImageOps.exif_transpose(picture))
    except (OSError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError) as error:
        raise ValueError(f"broken mask of {len(data):,} bytes: {error}") from error
    if source.header.format == "PNG" and data[25] == 0 and data[24] in (2, 4):
        labels = labels >> (8 - data[24])  # Pillow spreads such greys over 0 to 255
    return labels


def _check_size(found: tuple[int, ...], size: tuple[int, int]) -> None:
    if found != tuple(size):
        raise ValueError(
            f"the mask has {found[0]} x {found[1]} pixels (height x width), but its image has "
            f"{size[0]} x {size[1]}, after the orientation in its metadata"
        )


def warp_mask(
    mask: NDArray[Any], size: tuple[int, int], matrix: NDArray[np.float64], outside: int = 0
) -> NDArray[Any]:
    """Move a mask by an affine map; each pixel gets the class of the nearest source pixel.

    Parameters
    ----------
    mask : numpy.ndarray
        Integers or bools, shape (H, W).
    size : (int, int)
        Height and width of the result.
    matrix : numpy.ndarray
        float64, shape (2, 3), from pixels of `mask` to pixels of the result.
    outside : int
        Value of pixels whose centre lies outside of `mask`.

    Returns
    -------
    numpy.ndarray
        Shape `size`, of an integer dtype that holds all values.

    Raises
    ------
    ValueError
        If a class or `outside` does not fit int32.
    """
    import cv2

    rows, columns = _seen(mask.shape, size, matrix)
    dtype = np.promote_types(mask.dtype, np.min_scalar_type(outside))
    if dtype.name not in _WARPABLE:
        dtype = np.dtype(np.int32)
    info = np.iinfo(dtype)
    if not info.min <= outside <= info.max:
        raise ValueError(f"outside must fit int32, not {outside}")
    mask = mask[rows, columns]
    if not mask.size:
        return np.full(size, outside, dtype)
    if not np.can_cast(mask.dtype, dtype):
        low, high = min(outside, int(mask.min())), max(outside, int(mask.max()))
        if low < info.min or high > info.max:
            raise ValueError(f"classes of a mask must fit int32, these are from {low} to {high}")
    origin = matrix[:, :2] @ (columns.start, rows.start) + matrix[:, 2]
    return np.asarray(
        cv2.warpAffine(
            np.ascontiguousarray(mask, dtype),
            np.column_stack((matrix[:, :2], origin)),
            size[::-1],
            flags=cv2.INTER_NEAREST,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=outside,
        )
    )


def _seen(
    source: tuple[int, ...], size: tuple[int, int], matrix: NDArray[np.float64]
) -> tuple[slice, slice]:
    """Rows and columns of the source that the result can show."""
    height, width = size
    corners = np.array([(0, 0), (width - 1, 0), (0, height - 1), (width - 1, height - 1)])
    points = transform_points(invert_transform(matrix), corners)
    limit = np.array([source[1], source[0]])
    low = np.clip(np.floor(points.min(axis=0)), 0, limit).astype(int).tolist()
    high = np.clip(np.ceil(points.max(axis=0)) + 1, 0, limit).astype(int).tolist()
    return slice(low[1], high[1]), slice(low[0], high[0])
