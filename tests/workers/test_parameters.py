"""The checks of an image's parameters."""

import json
from typing import Any

import msgpack
import numpy as np
import pytest

from crumpets_like.workers.parameters import (
    DEFAULTS,
    PARAMETERS,
    check_parameters,
    geometry_of,
    pixel_operations,
)


def test_defaults_pass_their_own_checks() -> None:
    assert check_parameters(DEFAULTS, "defaults") == DEFAULTS


def test_none_is_the_default() -> None:
    assert check_parameters(dict.fromkeys(PARAMETERS), "nothing") == DEFAULTS


def test_values_become_plain() -> None:
    given = {
        "angle": np.float32(0.5),
        "scale": 2,
        "shift": np.array([0.25, -1.0]),
        "hmirror": np.bool_(True),
        "vmirror": 0,
        "supersampling": np.int64(2),
        "gamma_color": [1, 2, np.float64(3)],
        "order": ["blur", "gamma"],
        "noise_seed": np.int64(2**62),
        "background": np.uint8(7),
    }
    plain = check_parameters(given, "given")
    assert plain == {
        "angle": 0.5,
        "scale": 2.0,
        "shift": (0.25, -1.0),
        "hmirror": True,
        "vmirror": False,
        "supersampling": 2,
        "gamma_color": (1.0, 2.0, 3.0),
        "order": ("blur", "gamma"),
        "noise_seed": 2**62,
        "background": 7.0,
    }
    assert type(plain["hmirror"]) is bool
    assert type(plain["scale"]) is float
    assert type(plain["supersampling"]) is int
    json.dumps(plain)
    msgpack.packb(plain)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"zoom": 2}, "unknown parameter 'zoom'; known are angle, scale, aspect, shift, shear"),
        ({"angle": float("nan")}, "angle must be a finite number of degrees, not nan"),
        ({"angle": "90"}, "angle must be a finite number of degrees, not '90'"),
        ({"scale": 0.0}, r"scale must be a factor from 1e-06 to 1e\+06, not 0.0"),
        ({"scale": -1.0}, "not -1.0"),
        ({"aspect": float("inf")}, "aspect must be a factor"),
        ({"shift": (0.0,)}, r"shift must be \(x, y\), both in \[-1, 1\], not \(0.0,\)"),
        ({"shift": (0.0, 1.1)}, "shift must be"),
        ({"shift": 0.5}, "shift must be"),
        ({"shear": (1.0, 1.0)}, r"shear must be .* with x \* y < 1"),
        ({"hmirror": "no"}, "hmirror must be true or false, not 'no'"),
        ({"vmirror": 2}, "vmirror must be true or false"),
        ({"scale_mode": "fit"}, "scale_mode must be one of 'shortest', 'longest', not 'fit'"),
        ({"interp_method": "bicubic"}, "'nearest', 'linear', 'cubic', 'lanczos4', 'area', not"),
        ({"interp_method": ["linear"]}, "interp_method must be one of"),
        ({"supersampling": 1.5}, "supersampling must be an integer from 0"),
        ({"supersampling": 17}, "not 17"),
        ({"gamma_gray": 0.0}, "gamma_gray must be None or a factor"),
        ({"gamma_color": (1.0, 1.0)}, "gamma_color must be None or three factors"),
        ({"contrast": 1.5}, r"contrast must be in \[-1, 1\]"),
        ({"noise": -0.1}, r"noise must be in \[0, 1\]"),
        ({"blur": 2.0}, "blur must be"),
        ({"order": ("blur", "blur")}, "order must be different names"),
        ({"order": "gamma"}, "order must be different names"),
        ({"order": ("sharpen",)}, "order must be different names"),
        ({"noise_seed": 2**63}, "noise_seed must be an integer"),
        ({"background": 256}, "background must be None, or one or three numbers"),
        ({"background": (1, 2)}, "background must be"),
        ({"colorspace": "cmyk"}, "colorspace must be one of 'rgb', 'bgr', 'gray', .*not 'cmyk'"),
        ({"color": None, "colorspace": "RGB"}, "not 'RGB'"),
    ],
)
def test_wrong_parameters_are_named(params: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"^image_params.*{reason}"):
        check_parameters(params, "image_params")


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="image_params must be a mapping of parameters, not list"):
        check_parameters([("angle", 3)], "image_params")  # type: ignore[arg-type]


def test_geometry_is_complete() -> None:
    assert geometry_of({"angle": 5.0, "noise": 1.0}) == {
        "angle": 5.0,
        "scale": 1.0,
        "aspect": 1.0,
        "shift": (0.0, 0.0),
        "shear": (0.0, 0.0),
        "hmirror": False,
        "vmirror": False,
        "scale_mode": "shortest",
    }


def test_pixel_operations_that_are_present_in_their_order() -> None:
    assert pixel_operations({}) == ()
    assert pixel_operations(DEFAULTS) == ()
    assert pixel_operations({"contrast": 0.1}) == ("gamma",)
    assert pixel_operations({"gamma_gray": 1.1, "blur": 0.1}) == ("gamma", "blur")
    everything = {"gamma_color": (1.0, 1.1, 1.2), "blur": 0.1, "noise": 0.1}
    assert pixel_operations(everything) == ("gamma", "noise", "blur")
    reverse = {**everything, "order": ("blur", "noise", "gamma")}
    assert pixel_operations(reverse) == ("blur", "noise", "gamma")
    assert pixel_operations({**everything, "order": ("noise",)}) == ("noise", "gamma", "blur")
    assert pixel_operations({"noise": 0.1, "order": ("blur", "noise")}) == ("noise",)
