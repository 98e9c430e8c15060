"""The parameters of an image's augmentation: their names, defaults, ranges and checks.

The parameters of one image are a flat dict. A part of it steers the warp (`GEOMETRY` and
`SAMPLING`, see `geometry`), a part the pixel operations (`PIXELS`, see `pixels`), the rest how the
image is read and written (`PICTURE`). What is left out, or None, has its default.

================  ===============  ================================================================
parameter         default          meaning
================  ===============  ================================================================
angle             0.0              rotation in degrees, counter-clockwise as seen
scale             1.0              2.0 shows the image twice as large
aspect            1.0              the shown part is `aspect` times wider, 1 / `aspect` times higher
shift             (0.0, 0.0)       (x, y) in [-1, 1]: 1.0 shows the part of the image farthest
                                   right, or lowest
shear             (0.0, 0.0)       gradient of horizontal edges (rising to the right) and of
                                   vertical ones (leaning to the right)
hmirror, vmirror  False            mirrored left to right; upside down
scale_mode        "shortest"       "shortest": the image covers the target; "longest": all of it is
                                   seen
interp_method     "linear"         "nearest", "linear", "cubic", "lanczos4" or "area"
supersampling     0                samples per target pixel along each axis; 0 chooses
gamma_gray        None             exponent for all channels, > 0
gamma_color       None             exponents for red, green and blue, > 0
contrast          0.0              in [-1, 1]
noise             0.0              in [0, 1]
blur              0.0              sigma of the Gaussian, relative to the width of the image
order             ()               pixel operations in the order in which they are applied, of
                                   "gamma" (with contrast), "noise" and "blur"; what is left out
                                   comes last, in this order
noise_seed        0                seed of the noise, in [0, 2**63)
color             True             False: grey, one channel
background        None             one number or (red, green, blue) in [0, 255], where the image
                                   does not reach; None: the fill value of the buffer
colorspace        "rgb"            see `COLORSPACES`
================  ===============  ================================================================

Names and meanings follow crumpets 3.0, `randomize_image`.
"""

import sys
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

SCALE_MODES = ("shortest", "longest")
INTERPOLATIONS = ("nearest", "linear", "cubic", "lanczos4", "area")
PIXEL_OPERATIONS = ("gamma", "noise", "blur")
COLORSPACES: Mapping[str, str | None] = {
    "rgb": None,
    "bgr": "COLOR_RGB2BGR",
    "gray": "COLOR_RGB2GRAY",
    "hls": "COLOR_RGB2HLS_FULL",
    "hsv": "COLOR_RGB2HSV_FULL",
    "lab": "COLOR_RGB2LAB",
    "luv": "COLOR_RGB2LUV",
    "xyz": "COLOR_RGB2XYZ",
    "ycrcb": "COLOR_RGB2YCrCb",
    "yuv": "COLOR_RGB2YUV",
}
"""Colour spaces, and the name of OpenCV's conversion of 8-bit images from RGB."""

FACTOR = (1e-6, 1e6)
"""Least and largest `scale`, `aspect` and gamma."""

ANGLE = 1e9
"""Largest `angle` in degrees, in either direction."""


class Parameter(NamedTuple):
    """One parameter: its default, what its values must be, and the check for that.

    `plain` returns the value as plain Python numbers, strings and tuples; it raises TypeError or
    ValueError for what it cannot use.
    """

    default: Any
    must_be: str
    plain: Callable[[Any], Any]


def _number(low: float, high: float) -> Callable[[Any], float]:
    def plain(value: Any) -> float:
        # Floats first: to ask an abstract class takes longer than all the rest.
        if type(value) is not float and not isinstance(value, Real):
            raise TypeError
        number = float(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return plain


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def plain(value: Any) -> int:
        if not isinstance(value, Integral):
            raise TypeError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return plain


def _numbers(count: int, low: float, high: float) -> Callable[[Any], tuple[float, ...]]:
    number = _number(low, high)

    def plain(value: Any) -> tuple[float, ...]:
        numbers = tuple(number(item) for item in value)
        if len(numbers) != count:
            raise ValueError
        return numbers

    return plain


def _flag(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    if not isinstance(value, bool | np.bool_ | Integral) or value not in (0, 1):
        raise TypeError
    return bool(value)


def _one_of(names: Any) -> Callable[[Any], str]:
    def plain(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError
        return value

    return plain


def _shear(value: Any) -> tuple[float, ...]:
    x, y = _numbers(2, -1e3, 1e3)(value)
    if not x * y < 1.0:  # 1.0 makes a line of the image
        raise ValueError
    return x, y


def _order(value: Any) -> tuple[str, ...]:
    names = tuple(value)
    if isinstance(value, str) or len(set(names)) < len(names) or set(names) - {*PIXEL_OPERATIONS}:
        raise ValueError
    return names


def _background(value: Any) -> float | tuple[float, ...]:
    number = _number(0.0, 255.0)
    return number(value) if isinstance(value, Real) else _numbers(3, 0.0, 255.0)(value)


def _names(names: Any) -> str:
    return "one of " + ", ".join(map(repr, names))


_FACTOR_TEXT = f"a factor from {FACTOR[0]:g} to {FACTOR[1]:g}"

GEOMETRY: Mapping[str, Parameter] = {
    "angle": Parameter(0.0, "a finite number of degrees", _number(-ANGLE, ANGLE)),
    "scale": Parameter(1.0, _FACTOR_TEXT, _number(*FACTOR)),
    "aspect": Parameter(1.0, _FACTOR_TEXT, _number(*FACTOR)),
    "shift": Parameter((0.0, 0.0), "(x, y), both in [-1, 1]", _numbers(2, -1.0, 1.0)),
    "shear": Parameter((0.0, 0.0), "(x, y), finite, with x * y < 1", _shear),
    "hmirror": Parameter(False, "true or false", _flag),
    "vmirror": Parameter(False, "true or false", _flag),
    "scale_mode": Parameter("shortest", _names(SCALE_MODES), _one_of(SCALE_MODES)),
}
"""Parameters of `geometry.make_transform`."""

SAMPLING: Mapping[str, Parameter] = {
    "interp_method": Parameter("linear", _names(INTERPOLATIONS), _one_of(INTERPOLATIONS)),
    "supersampling": Parameter(0, "an integer from 0 (automatic) to 16", _integer(0, 16)),
}
"""How a warp takes its samples."""

PIXELS: Mapping[str, Parameter] = {
    "gamma_gray": Parameter(None, f"None or {_FACTOR_TEXT}", _number(*FACTOR)),
    "gamma_color": Parameter(
        None, f"None or three factors from {FACTOR[0]:g} to {FACTOR[1]:g}", _numbers(3, *FACTOR)
    ),
    "contrast": Parameter(0.0, "in [-1, 1]", _number(-1.0, 1.0)),
    "noise": Parameter(0.0, "in [0, 1]", _number(0.0, 1.0)),
    "blur": Parameter(0.0, "in [0, 1] (sigma relative to the width)", _number(0.0, 1.0)),
    "order": Parameter((), f"different names out of {PIXEL_OPERATIONS}", _order),
    "noise_seed": Parameter(0, "an integer in [0, 2**63)", _integer(0, 2**63 - 1)),
}
"""Parameters of `pixels.apply_pixels`."""

PICTURE: Mapping[str, Parameter] = {
    "color": Parameter(True, "true or false", _flag),
    "background": Parameter(None, "None, or one or three numbers in [0, 255]", _background),
    "colorspace": Parameter("rgb", _names(COLORSPACES), _one_of(COLORSPACES)),
}
"""How an image is read and written."""

PARAMETERS: Mapping[str, Parameter] = {**GEOMETRY, **SAMPLING, **PIXELS, **PICTURE}

GAZE: Mapping[str, Parameter] = {
    "sample_ratio": Parameter(1.0, "in (0, 1]", _number(sys.float_info.min, 1.0)),
    "jitter": Parameter(
        0.0, "finite and >= 0 (relative to the width)", _number(0.0, sys.float_info.max)
    ),
    "interpolate": Parameter(False, "true or false", _flag),
    "blur": PIXELS["blur"],
    "maxnorm": Parameter(False, "true or false", _flag),
}
"""Parameters of a gaze map."""

DEFAULTS: Mapping[str, Any] = {name: known.default for name, known in PARAMETERS.items()}


def check_parameters(
    params: Mapping[str, Any], source: str, known: Mapping[str, Parameter] = PARAMETERS
) -> dict[str, Any]:
    """Return `params` as plain Python values, with the default in place of None.

    Parameters
    ----------
    params : mapping
        Some of the known ones.
    source : str
        What gave the parameters, for the error text.
    known : mapping of str to Parameter
        Which there are, by name.

    Raises
    ------
    TypeError
        If `params` is no mapping.
    ValueError
        If a name is unknown or a value is out of range; the text has the known names, or what the
        value must be.
    """
    if type(params) is not dict and not isinstance(params, Mapping):
        raise TypeError(f"{source} must be a mapping of parameters, not {type(params).__name__}")
    checked = {}
    for name, value in params.items():
        parameter = known.get(name)
        if parameter is None:
            raise ValueError(
                f"{source} has an unknown parameter {name!r}; known are {', '.join(known)}"
            )
        if value is None:
            checked[name] = parameter.default
            continue
        try:
            checked[name] = parameter.plain(value)
        except (TypeError, ValueError):
            raise ValueError(
                f"{source}: {name} must be {parameter.must_be}, not {value!r}"
            ) from None
    return checked


def geometry_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `geometry.make_transform` out of an image's parameters."""
    return {name: params.get(name, known.default) for name, known in GEOMETRY.items()}


def pixel_operations(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pixel operations that `params` ask for, in the order to apply them in.

    Parameters
    ----------
    params : mapping
        Parameters of an image; what is left out has its default.

    Returns
    -------
    tuple of str
        Of "gamma", "noise" and "blur": those of `order` first, in that order.

    Raises
    ------
    ValueError
        If `order` has another name.
    """
    gamma = (
        params.get("gamma_gray") is not None
        or params.get("gamma_color") is not None
        or params.get("contrast")
    )
    noise, blur = params.get("noise"), params.get("blur")
    if not (gamma or noise or blur):
        return ()
    present = {"gamma": gamma, "noise": noise, "blur": blur}
    order = dict.fromkeys((*(params.get("order") or ()), *PIXEL_OPERATIONS))
    try:
        return tuple(name for name in order if present[name])
    except KeyError as error:
        raise ValueError(
            f"order has an unknown pixel operation {error.args[0]!r}; known are "
            f"{', '.join(PIXEL_OPERATIONS)}"
        ) from None
