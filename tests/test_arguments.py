import re

import numpy as np
import pytest

from crumpets_like.arguments import check_count, check_flag, check_on_error


def test_count():
    assert check_count("n", 3) == 3
    assert type(check_count("n", np.int64(3))) is int


@pytest.mark.parametrize("value", [0, -1])
def test_count_too_small(value):
    with pytest.raises(ValueError, match=f"^n must be at least 1, got {value}$"):
        check_count("n", value)


@pytest.mark.parametrize("value", [2.5, "4", None, False])
def test_count_of_another_type(value):
    with pytest.raises(TypeError, match=f"^n must be an integer, got {re.escape(repr(value))}"):
        check_count("n", value)


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_])
def test_flag(value):
    assert check_flag("f", value) is bool(value)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_no_flag(value):
    with pytest.raises(TypeError, match=f"^f must be True or False, got {value!r}"):
        check_flag("f", value)


@pytest.mark.parametrize("value", ["raise", "skip", print, lambda index, error: None])
def test_on_error(value):
    assert check_on_error(value) is value


@pytest.mark.parametrize("value", ["ignore", "", None, 1, b"skip", np.array(["raise", "skip"])])
def test_on_error_of_another_kind(value):
    text = f"^on_error must be 'raise', 'skip' or callable, got {re.escape(repr(value))}$"
    with pytest.raises(ValueError, match=text):
        check_on_error(value)
