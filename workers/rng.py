"""Random parameters for augmentation: objects that draw them from a sample's own generator."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.geometry import crop_parameters
from crumpets_like.workers.parameters import ANGLE, FACTOR, INTERPOLATIONS
from crumpets_like.workers.pixels import human2gamma

Range = tuple[float, float]


class ImageRNG(Protocol):
    """Draws the parameters of one image.

    Implementations are copied to the workers, so they must be picklable, and they must draw from
    the generator they are given alone: it is what makes results reproducible.

    One that looks at the shape of the image alone says so by an attribute ``shape_only = True``,
    as all in this package do. It is called before the image is decoded, with an image of zeros: so
    a JPEG need not be decoded at full size. Others get the decoded image.
    """

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> Mapping[str, Any]:
        """Return parameters for `image`, shape (H, W, C), on its way to `buffer`.

        Any of `crumpets_like.workers.parameters.PARAMETERS`; those left out have their default.
        `buffer` has the shape (C, H, W) in any layout.
        """


class NoRNG:
    """Draws nothing: all parameters have their defaults, for validation."""

    shape_only = True

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Return no parameters."""
        return {}


class UniformRNG:
    """Draws each parameter evenly from a range of its own.

    Ranges are (low, high); a parameter without a range has its default. Factors (`scale`, `aspect`,
    `gamma_gray`, `gamma_color`) are uniform in their logarithm, so that halving and doubling are as
    likely. The same numbers are drawn from the generator whatever the ranges are, so changing one
    leaves the others' values.

    Parameters
    ----------
    angle, contrast, noise, blur : (float, float), optional
        Uniform.
    shift, shear : (float, float), optional
        Uniform, for x and y independently.
    scale, aspect, gamma_gray : (float, float), optional
        Log-uniform.
    gamma_color : (float, float), optional
        Log-uniform, for the three channels independently.
    hmirror, vmirror : float
        Probability.
    interpolations : sequence of str, optional
        One of these is the `interp_method`, all as likely.

    Raises
    ------
    ValueError
        If a range is not within what workers take, or a probability not in [0, 1].
    """

    shape_only = True

    def __init__(
        self,
        *,
        angle: Range | None = None,
        scale: Range | None = None,
        aspect: Range | None = None,
        shift: Range | None = None,
        shear: Range | None = None,
        hmirror: float = 0.0,
        vmirror: float = 0.0,
        gamma_gray: Range | None = None,
        gamma_color: Range | None = None,
        contrast: Range | None = None,
        noise: Range | None = None,
        blur: Range | None = None,
        interpolations: Sequence[str] | None = None,
    ) -> None:
        self.angle = _range("angle", angle, -ANGLE, ANGLE)
        self.scale = _range("scale", scale, *FACTOR)
        self.aspect = _range("aspect", aspect, *FACTOR)
        self.shift = _range("shift", shift, -1.0, 1.0)
        self.shear = _range("shear", shear, -0.999, 0.999)
        self.hmirror = _probability("hmirror", hmirror)
        self.vmirror = _probability("vmirror", vmirror)
        self.gamma_gray = _range("gamma_gray", gamma_gray, *FACTOR)
        self.gamma_color = _range("gamma_color", gamma_color, *FACTOR)
        self.contrast = _range("contrast", contrast, -1.0, 1.0)
        self.noise = _range("noise", noise, 0.0, 1.0)
        self.blur = _range("blur", blur, 0.0, 1.0)
        self.interpolations = _interpolations(interpolations)

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Draw one image's parameters from `generator`."""
        numbers = iter(generator.random(17).tolist())
        drawn: dict[str, Any] = {
            "hmirror": next(numbers) < self.hmirror,
            "vmirror": next(numbers) < self.vmirror,
        }
        for name, count, spread in (
            ("angle", 0, _uniform),
            ("scale", 0, _log_uniform),
            ("aspect", 0, _log_uniform),
            ("shift", 2, _uniform),
            ("shear", 2, _uniform),
            ("gamma_gray", 0, _log_uniform),
            ("gamma_color", 3, _log_uniform),
            ("contrast", 0, _uniform),
            ("noise", 0, _uniform),
            ("blur", 0, _uniform),
        ):
            own = [next(numbers) for _ in range(max(1, count))]
            limits: Range | None = getattr(self, name)
            if limits is not None:
                values = tuple(spread(limits, number) for number in own)
                drawn[name] = values if count else values[0]
        if self.interpolations:
            drawn["interp_method"] = _choose(self.interpolations, next(numbers))
        return drawn


class MixtureRNG:
    """Draws parameters from uniform and Gaussian distributions, as in crumpets 3.0.

    The same numbers are drawn from the generator whatever the arguments are, so changing one leaves
    the others' values.

    Parameters
    ----------
    prob : float
        Probability of each pixel operation: brightness, colour, contrast, noise and blur, each by
        itself. The geometry is always drawn.
    scale_range : (float, float), optional
        Uniform `scale`.
    shift_range : (float, float), optional
        Uniform `shift`, for x and y independently.
    noise_range : (float, float), optional
        Uniform `noise`.
    brightness_range : (float, float), optional
        `gamma_gray` is `human2gamma` of a uniform number, in [-1, 1].
    color_range : (float, float), optional
        `gamma_color` is `human2gamma` of three uniform numbers, in [-1, 1].
    contrast_range : (float, float), optional
        Uniform `contrast`.
    blur_range : (float, float), optional
        Uniform `blur`.
    rotation_sigma : float
        Standard deviation of `angle`, in degrees, about 0.
    aspect_sigma : float
        Standard deviation of `aspect` about 1; it is kept within 0.1 and 10.
    interpolations : sequence of str, optional
        One of these is the `interp_method`, all as likely.
    hmirror, vmirror : float
        Probability of a mirror image.
    shear_range : (float, float), optional
        Uniform `shear`, for x and y independently.

    Raises
    ------
    ValueError
        If a range is not within what workers take, or a probability not in [0, 1].
    """

    shape_only = True

    def __init__(
        self,
        prob: float = 1.0,
        scale_range: Range | None = None,
        shift_range: Range | None = None,
        noise_range: Range | None = None,
        brightness_range: Range | None = None,
        color_range: Range | None = None,
        contrast_range: Range | None = None,
        blur_range: Range | None = None,
        rotation_sigma: float = 0.0,
        aspect_sigma: float = 0.0,
        interpolations: Sequence[str] | None = None,
        hmirror: float = 0.0,
        vmirror: float = 0.0,
        shear_range: Range | None = None,
    ) -> None:
        self.prob = _probability("prob", prob)
        self.scale_range = _range("scale_range", scale_range, *FACTOR)
        self.shift_range = _range("shift_range", shift_range, -1.0, 1.0)
        self.noise_range = _range("noise_range", noise_range, 0.0, 1.0)
        self.brightness_range = _range("brightness_range", brightness_range, -1.0, 1.0)
        self.color_range = _range("color_range", color_range, -1.0, 1.0)
        self.contrast_range = _range("contrast_range", contrast_range, -1.0, 1.0)
        self.blur_range = _range("blur_range", blur_range, 0.0, 1.0)
        self.rotation_sigma = _sigma("rotation_sigma", rotation_sigma, ANGLE / 100)
        self.aspect_sigma = _sigma("aspect_sigma", aspect_sigma)
        self.interpolations = _interpolations(interpolations)
        self.hmirror = _probability("hmirror", hmirror)
        self.vmirror = _probability("vmirror", vmirror)
        self.shear_range = _range("shear_range", shear_range, -0.999, 0.999)

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Draw one image's parameters from `generator`."""
        angle, aspect = generator.standard_normal(2).tolist()
        numbers = iter(generator.random(20).tolist())
        drawn: dict[str, Any] = {
            "hmirror": next(numbers) < self.hmirror,
            "vmirror": next(numbers) < self.vmirror,
        }
        if self.rotation_sigma:
            drawn["angle"] = self.rotation_sigma * angle
        if self.aspect_sigma:
            drawn["aspect"] = min(10.0, max(0.1, 1.0 + self.aspect_sigma * aspect))
        geometry = (
            ("scale", 1, self.scale_range),
            ("shift", 2, self.shift_range),
            ("shear", 2, self.shear_range),
        )
        for name, count, limits in geometry:
            own = [next(numbers) for _ in range(count)]
            if limits is not None:
                values = tuple(_uniform(limits, number) for number in own)
                drawn[name] = values if count > 1 else values[0]
        pixels = (
            ("gamma_gray", 1, self.brightness_range),
            ("gamma_color", 3, self.color_range),
            ("contrast", 1, self.contrast_range),
            ("noise", 1, self.noise_range),
            ("blur", 1, self.blur_range),
        )
        for name, count, limits in pixels:
            happens = next(numbers) < self.prob
            own = [next(numbers) for _ in range(count)]
            if limits is not None and happens:
                values = tuple(_uniform(limits, number) for number in own)
                if name.startswith("gamma"):
                    values = tuple(map(human2gamma, values))
                drawn[name] = values if count > 1 else values[0]
        if self.interpolations:
            drawn["interp_method"] = _choose(self.interpolations, float(generator.random()))
        return drawn


class RandomResizedCrop:
    """Shows a random part of the image in all the target, as torchvision's transform of the name.

    Ten times, an area and an aspect ratio are drawn; the first box of them that is within the image
    is placed at random. If none is, the largest central box is taken whose ratio is within `ratio`.

    Parameters
    ----------
    scale : (float, float)
        Area of the part relative to that of the image; uniform.
    ratio : (float, float)
        Width of the part relative to its height; log-uniform.
    hmirror : float
        Probability of a left-right mirror image.

    Raises
    ------
    ValueError
        If a range is empty or not above 0, `scale` goes above 1, or `hmirror` is no probability.
    """

    shape_only = True
    tries = 10

    def __init__(
        self,
        scale: Range = (0.08, 1.0),
        ratio: Range = (3 / 4, 4 / 3),
        hmirror: float = 0.0,
    ) -> None:
        self.scale = _checked("scale", scale, 0.0, 1.0, above=True)
        self.ratio = _checked("ratio", ratio, 0.0, above=True)
        self.hmirror = _probability("hmirror", hmirror)

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Draw one image's `scale`, `aspect`, `shift` and `hmirror` from `generator`."""
        height, width = image.shape[:2]
        *tries, across, down, mirror = generator.random(2 * self.tries + 3).tolist()
        size = self._random_size(height, width, tries)
        if size is None:
            box_width, box_height = self._central_size(height, width)
            left, top = (width - box_width) // 2, (height - box_height) // 2
        else:
            box_width, box_height = size
            left = int(across * (width - box_width + 1))
            top = int(down * (height - box_height + 1))
        box = (left, top, left + box_width, top + box_height)
        drawn = crop_parameters((height, width), (buffer.shape[1], buffer.shape[2]), box)
        drawn["hmirror"] = mirror < self.hmirror
        return drawn

    def _random_size(
        self, height: int, width: int, numbers: Sequence[float]
    ) -> tuple[int, int] | None:
        """Width and height of the first box that is within the image."""
        for area, ratio in zip(numbers[::2], numbers[1::2], strict=True):
            pixels = height * width * _uniform(self.scale, area)
            shape = _log_uniform(self.ratio, ratio)
            box_width = round(math.sqrt(pixels * shape))
            box_height = round(math.sqrt(pixels / shape))
            if 0 < box_width <= width and 0 < box_height <= height:
                return box_width, box_height
        return None

    def _central_size(self, height: int, width: int) -> tuple[int, int]:
        """Width and height of the largest box whose ratio is in range."""
        low, high = self.ratio
        if width < low * height:
            return width, max(1, min(height, round(width / low)))
        if width > high * height:
            return max(1, min(width, round(height * high))), height
        return width, height


class CenterCrop:
    """Shows the central part of the image, of the target's shape.

    Parameters
    ----------
    fraction : float
        Side of the part relative to the largest that fits into the image. 224 / 256 is what
        resizing the shorter side to 256 pixels and cropping 224 x 224 shows.

    Raises
    ------
    ValueError
        If `fraction` is not in [1e-6, 1].
    """

    shape_only = True

    def __init__(self, fraction: float = 1.0) -> None:
        least = 1.0 / FACTOR[1]
        if not least <= fraction <= 1.0:
            raise ValueError(f"fraction must be in [{least:g}, 1], not {fraction!r}")
        self.fraction = fraction

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Return `scale` and `scale_mode`; nothing is drawn."""
        return {"scale": 1.0 / self.fraction, "scale_mode": "shortest"}


class Resize:
    """Shows all of the image in all the target, whatever their shapes are."""

    shape_only = True

    def __call__(
        self, image: NDArray[np.uint8], buffer: NDArray[Any], generator: np.random.Generator
    ) -> dict[str, Any]:
        """Return `scale` and `aspect`; nothing is drawn."""
        height, width = image.shape[:2]
        target = buffer.shape[1], buffer.shape[2]
        return crop_parameters((height, width), target, (0, 0, width, height))


def _uniform(limits: Range, number: float) -> float:
    low, high = limits
    return low + (high - low) * number


def _log_uniform(limits: Range, number: float) -> float:
    low, high = limits
    return min(high, low * math.pow(high / low, number))  # as it might be rounded up


def _choose(names: Sequence[str], number: float) -> str:
    return names[int(number * len(names))]


def _range(name: str, limits: Range | None, least: float, most: float) -> Range | None:
    return None if limits is None else _checked(name, limits, least, most)


def _checked(
    name: str, limits: Range, least: float, most: float = math.inf, above: bool = False
) -> Range:
    """Check (low, high): ordered, finite, within [least, most], above `least` if asked for."""
    try:
        low, high = map(float, limits)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be (low, high), not {limits!r}") from None
    inside = least < low if above else least <= low
    if not (inside and low <= high <= most and math.isfinite(low) and math.isfinite(high)):
        bounds = f"{'(' if above else '['}{least:g}, {most:g}]"
        raise ValueError(
            f"{name} must be (low, high) with low <= high, finite and in {bounds}, not {limits!r}"
        )
    return low, high


def _probability(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a probability in [0, 1], not {value!r}")
    return float(value)


def _sigma(name: str, value: float, most: float = math.inf) -> float:
    if not (0.0 <= value <= most and math.isfinite(value)):
        bound = "" if most == math.inf else f" and <= {most:g}"
        raise ValueError(f"{name} must be a finite number >= 0{bound}, not {value!r}")
    return float(value)


def _interpolations(names: Sequence[str] | None) -> tuple[str, ...]:
    chosen = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    unknown = [name for name in chosen if name not in INTERPOLATIONS]
    if unknown:
        raise ValueError(
            f"interpolations has unknown names {unknown}; known are {', '.join(INTERPOLATIONS)}"
        )
    return chosen
