"""Ready-made augmentations: pass one as `image_rng`.

======================  ============================================================================
random_resized_crop     ``random_resized_crop(scale=(0.08, 1.0), ratio=(3/4, 4/3), hmirror=0.0)``
center_crop             ``center_crop(fraction=1.0)``: the central part, of the target's shape
resize                  ``resize()``: all of the image in all of the target
IMAGENET_TRAIN          random resized crop, half of the images mirrored
IMAGENET_EVAL           central 224 / 256 of the shorter side
SEGMENTATION_TRAIN      scale 0.5 to 2, any part, mirrored, with brightness, colour and contrast
======================  ============================================================================

`IMAGENET_MEAN` and `IMAGENET_STD` are the usual means and deviations of red, green and blue, of
pixels in [0, 1]: for a worker's `mean` and `std`.
"""

from collections.abc import Mapping

from crumpets_like.workers.rng import CenterCrop, ImageRNG, MixtureRNG, RandomResizedCrop, Resize

__all__ = [
    "IMAGENET_EVAL",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "IMAGENET_TRAIN",
    "PRESETS",
    "SEGMENTATION_TRAIN",
    "center_crop",
    "get_preset",
    "random_resized_crop",
    "resize",
]

random_resized_crop = RandomResizedCrop
center_crop = CenterCrop
resize = Resize

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

IMAGENET_TRAIN: ImageRNG = random_resized_crop(hmirror=0.5)
IMAGENET_EVAL: ImageRNG = center_crop(224 / 256)
SEGMENTATION_TRAIN: ImageRNG = MixtureRNG(
    prob=0.5,
    scale_range=(0.5, 2.0),
    shift_range=(-1.0, 1.0),
    brightness_range=(-0.25, 0.25),
    color_range=(-0.1, 0.1),
    contrast_range=(-0.25, 0.25),
    hmirror=0.5,
)

PRESETS: Mapping[str, ImageRNG] = {
    "random_resized_crop": random_resized_crop(),
    "center_crop": center_crop(),
    "resize": resize(),
    "imagenet_train": IMAGENET_TRAIN,
    "imagenet_eval": IMAGENET_EVAL,
    "segmentation_train": SEGMENTATION_TRAIN,
}
"""The presets by name, with their default arguments."""


def get_preset(name: str) -> ImageRNG:
    """Return a preset by its name, in upper or lower case.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    try:
        return PRESETS[name.lower()]
    except (AttributeError, KeyError):
        raise ValueError(
            f"there is no preset {name!r}; the presets are {', '.join(PRESETS)}"
        ) from None
