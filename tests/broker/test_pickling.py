import json
import pickle
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from crumpets_like.broker.pickling import dump_object, find_unpicklable, load_object


def test_plain_pickle_where_it_can():
    assert dump_object(Fraction(1, 2)) == pickle.dumps(Fraction(1, 2), protocol=5)


def test_cloudpickle_where_it_must():
    assert load_object(dump_object(lambda: 7))() == 7


def test_what_travels_by_value_keeps_its_slots():
    class Slots:
        __slots__ = {"__private": "", "value": "documented"}

    value = Slots()
    value.value = 5
    data = dump_object(value)
    code = f"import pickle; v = pickle.loads({data!r}); assert v.value == 5; v.other = 1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "AttributeError: 'Slots' object has no attribute 'other'" in done.stderr


def test_the_error_is_the_one_of_cloudpickle():
    with pytest.raises(TypeError):
        dump_object(i for i in ())


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("inner",)


class TestFindUnpicklable:
    def test_nothing_to_find(self):
        assert find_unpicklable({"a": [1, lambda: 7], "b": Holder(c=2)}, "x") is None

    @pytest.mark.parametrize(
        ("wrap", "path"),
        [
            (lambda bad: bad, "x"),
            (lambda bad: Holder(fine=1, inner=bad), "x.inner"),
            (lambda bad: [1, (2, {"key": bad})], "x[1][1]['key']"),
            (lambda bad: np.array([[1, "a"], [None, bad]], object), "x.flat[3]"),
            (lambda bad: np.array(bad, object), "x.flat[0]"),
        ],
    )
    def test_path_of_the_innermost(self, wrap, path):
        assert find_unpicklable(wrap(open), "x") is None
        generator = (i for i in ())
        assert find_unpicklable(wrap(generator), "x") == path

    def test_what_another_way_of_pickling_cannot(self):
        value = {"a": [1, {2}]}
        assert find_unpicklable(value, "x") is None
        assert find_unpicklable(value, "x", json.dumps) == "x['a'][1]"

    def test_slots(self):
        value = Slotted()
        value.inner = (i for i in ())
        assert find_unpicklable(value, "x") == "x.inner"

    def test_a_cycle(self):
        value = Holder(bad=(i for i in ()))
        value.own = [value]
        assert find_unpicklable({"first": [value.own], "second": 1}, "x") is not None
