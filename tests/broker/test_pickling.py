import pickle
from fractions import Fraction

import pytest

from crumpets_like.broker.pickling import dump_object, load_object


def test_plain_pickle_where_it_can():
    assert dump_object(Fraction(1, 2)) == pickle.dumps(Fraction(1, 2), protocol=5)


def test_cloudpickle_where_it_must():
    assert load_object(dump_object(lambda: 7))() == 7


def test_the_error_is_the_one_of_cloudpickle():
    with pytest.raises(TypeError):
        dump_object(i for i in ())
