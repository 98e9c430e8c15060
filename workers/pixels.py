"""Gamma, contrast, noise and blur: the formulas, and what computes them in a worker.

They act on an image of the target size, in RGB or grey, with values 0 to 255. Each rounds to whole
values, so that the order matters here as it does on a device, where
:class:`crumpets_like.torch.Randomizer` computes the same for whole mini-batches.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crumpets_like.workers.parameters import DEFAULTS, pixel_operations

CONTRAST_SLOPE = 3.1395
"""k in the formula of contrast: half of the sigmoid's range in crumpets 3.0."""

RGB_NOISE = (1.0, 0.5, 1.0)
"""Noise in red, green and blue, relative to `noise`."""

NOISE_STEP = 0x9E3779B1
NOISE_MIXERS = (0x7FEB352D, 0x846CA68B)
"""Constants of the hash in :func:`add_noise`: an odd step near 2**32 / golden ratio, and those of
"lowbias32" (Wellons, Prospecting for Hash Functions, 2018)."""

_BLUR_SIGMAS = 4.0  # the Gaussian is cut off where it is 0.03 % of its peak
_BRIGHTEST = 0.999  # where a brightness is cut off, else gamma would be 0 or infinite


def human2gamma(brightness: float) -> float:
    """Turn a brightness that people can judge into an exponent of gamma.

    gamma = 1 - b for b > 0, which is brighter, and 1 / (1 + b) for b <= 0, so that b and -b are
    each other's inverse. As in crumpets 3.0.

    Parameters
    ----------
    brightness : float
        From -1 (black) over 0 (unchanged) to 1 (white); cut off at -0.999 and 0.999.

    Returns
    -------
    float
        From 0.001 to 1000.

    Raises
    ------
    ValueError
        If it is no number.
    """
    if math.isnan(brightness):
        raise ValueError(f"brightness must be a number in [-1, 1], got {brightness!r}.")
    brightness = max(-_BRIGHTEST, min(brightness, _BRIGHTEST))
    return 1.0 - brightness if brightness > 0.0 else 1.0 / (1.0 + brightness)


def apply_pixels(
    image: NDArray[np.uint8], params: Mapping[str, Any], rgb: bool
) -> NDArray[np.uint8]:
    """Apply an image's gamma and contrast, noise and blur, in its own order.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C); not changed.
    params : mapping
        Those of `crumpets_like.workers.parameters.PIXELS`; what is left out has its default.
    rgb : bool
        Whether the channels are red, green and blue. Those of other images are all treated alike.

    Returns
    -------
    numpy.ndarray
        uint8, shape (H, W, C); `image` itself if there is nothing to do.
    """
    params = {**DEFAULTS, **params}
    for operation in pixel_operations(params):
        if operation == "gamma":
            exponents = gammas(params, image.shape[2], rgb)
            image = adjust_gamma(image, exponents, params["contrast"])
        elif operation == "noise":
            image = add_noise(image, params["noise"], params["noise_seed"], rgb)
        else:
            image = blur(image, params["blur"] * image.shape[1])
    return image


def gammas(params: Mapping[str, Any], channels: int, rgb: bool) -> list[float]:
    """Exponent of each channel: `gamma_gray`, in RGB times the channel's `gamma_color`."""
    gray = params["gamma_gray"] or 1.0
    color = params["gamma_color"] if rgb and params["gamma_color"] else [1.0] * channels
    return [gray * one for one in color]


def adjust_gamma(
    image: NDArray[np.uint8], exponents: Sequence[float], contrast: float
) -> NDArray[np.uint8]:
    """Change contrast and gamma.

    With x = value / 255, contrast c and k = 3.1395,

    - c >= 0: y = (1 - c) x + c (1 + tanh(k (2x - 1)) / tanh(k)) / 2, a sigmoid: more contrast;
    - c < 0:  y = (1 + c) x - c (1 + artanh((2x - 1) tanh(k)) / k) / 2, its inverse: less;

    and then the value is 255 y ** gamma. Black and white stay what they are. As in crumpets 3.0.

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C).
    exponents : sequence of float
        gamma of each of the C channels, > 0; below 1 is brighter.
    contrast : float
        In [-1, 1]; 0 is unchanged.
    """
    import cv2

    x = np.arange(256) / 255.0
    z = 2.0 * x - 1.0
    if contrast >= 0.0:
        bent = np.tanh(CONTRAST_SLOPE * z) / math.tanh(CONTRAST_SLOPE)
    else:
        bent = np.arctanh(z * math.tanh(CONTRAST_SLOPE)) / CONTRAST_SLOPE
    y = np.clip(x + abs(contrast) * ((1.0 + bent) / 2.0 - x), 0.0, 1.0)
    y[0] = 0.0  # a small gamma makes much of the least error here
    table = np.rint(255.0 * y[:, np.newaxis] ** np.asarray(exponents)).astype(np.uint8)
    changed = np.asarray(cv2.LUT(image, table[np.newaxis]), np.uint8)
    return changed.reshape(image.shape)  # OpenCV drops an only channel


def add_noise(image: NDArray[np.uint8], strength: float, seed: int, rgb: bool) -> NDArray[np.uint8]:
    """Add noise that is the same wherever it is computed.

    Each channel gets 255 · strength · u, with u uniform in (-1, 1): deviation 255 · strength /
    sqrt(3). In RGB it imitates a camera, which has twice as many green sensors: green gets half of
    it, red and blue get it on a grid of half the resolution, which is then doubled bilinearly
    (deviation times 0.625 away from the border). As in crumpets 3.0.

    u comes from a hash of the seed and of the pixel's number p = (channel · H + row) · W + column
    (in a grid of half the resolution: channel · H · W + row · width + column), in integers modulo
    2**32, where a and b are the halves of the seed after SplitMix64's mixing:

        x = 0x9E3779B1 · p + a
        x = (x ^ x >> 16) · 0x7FEB352D ^ b
        x = (x ^ x >> 15) · 0x846CA68B
        u = ((x >> 16) + 1/2) / 2**15 - 1

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C).
    strength : float
        In [0, 1].
    seed : int
        0 <= seed < 2**63.
    rgb : bool
        Whether the channels are red, green and blue.
    """
    import cv2

    height, width, channels = image.shape
    gains = noise_gains(channels, rgb)
    first, second = noise_keys([seed])[0]
    noisy = np.empty_like(image)
    for channel, gain in enumerate(gains):
        coarse = rgb and channel != 1
        rows, columns = ((height + 1) // 2, (width + 1) // 2) if coarse else (height, width)
        start = channel * height * width
        x = np.arange(start, start + rows * columns, dtype=np.uint32)
        x *= NOISE_STEP
        x += first
        x ^= x >> 16
        x *= NOISE_MIXERS[0]
        x ^= second
        x ^= x >> 15
        x *= NOISE_MIXERS[1]
        x >>= 16
        noise = x.astype(np.float32).reshape(rows, columns)
        noise *= 2.0**-15
        noise += 2.0**-16 - 1.0
        if coarse:  # 17 bits and weights of sixteenths: exact in single precision, in any order
            doubled = cv2.resize(noise, (2 * columns, 2 * rows), interpolation=cv2.INTER_LINEAR)
            noise = np.asarray(doubled, np.float32)[:height, :width]
        noise *= np.float32(255.0 * strength * gain)
        noise += image[..., channel]
        np.rint(noise, out=noise)
        noisy[..., channel] = np.clip(noise, 0.0, 255.0, out=noise)
    return noisy


def noise_gains(channels: int, rgb: bool) -> tuple[float, ...]:
    """Noise in each channel, relative to its strength."""
    return RGB_NOISE if rgb else (1.0,) * channels


def noise_keys(seeds: Sequence[int]) -> NDArray[np.uint32]:
    """Two words for each seed, shape (n, 2): SplitMix64 (Steele et al., 2014), one step.

    Seeds that follow each other, such as a user's own, have nothing in common then.
    """
    x = np.array(seeds, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return np.stack((x, x >> np.uint64(32)), axis=1).astype(np.uint32)


def blur(image: NDArray[np.uint8], sigma: float) -> NDArray[np.uint8]:
    """Convolve with a Gaussian, along both axes.

    Weights are exp(-d**2 / (2 sigma**2)) for whole distances d up to 4 sigma (rounded up), over
    their sum. Beyond the border the image is mirrored at its outermost pixels
    (``cv2.BORDER_REFLECT_101``).

    Parameters
    ----------
    image : numpy.ndarray
        uint8, shape (H, W, C).
    sigma : float
        In pixels, > 0.
    """
    import cv2

    kernel = blur_kernels(np.array([sigma]))[0].astype(np.float32)
    # cv2.GaussianBlur rounds the weights of bytes to 1/256: slower, and off by up to 3 values.
    blurred = cv2.sepFilter2D(image, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(cv2.convertScaleAbs(blurred), np.uint8).reshape(image.shape)  # rounds


def blur_kernels(sigmas: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of :func:`blur` for several images, shape (n, 2 r + 1).

    r is the largest of their radii; weights beyond an image's own radius are 0, so that no image
    depends on which others it is with.
    """
    radii = np.maximum(np.ceil(_BLUR_SIGMAS * sigmas), 1.0)[:, np.newaxis]
    distances = np.arange(-radii.max(), radii.max() + 1.0)
    spread = np.maximum(sigmas, 1e-3)[:, np.newaxis]  # an image without blur: the pixel itself
    weights = np.exp(-0.5 * (distances / spread) ** 2) * (np.abs(distances) <= radii)
    kernels: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return kernels
