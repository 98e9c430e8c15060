"""The way of an exception from a worker to the caller."""

import sys
import threading
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumpets_like import LoaderError, LoaderTimeout, WorkerDied, WorkerError
from crumpets_like.broker.failures import (
    copy_exception,
    describe_failure,
    pack_errors,
    rebuild_exception,
    unpack_errors,
)
from crumpets_like.broker.pickling import dump_object
from crumpets_like.errors import Whereabouts, WorkerTraceback


class Mine(Exception):
    def __init__(self, code, *, hint):
        super().__init__(code)
        self.hint = hint


class Reduced(Exception):
    """Its own __reduce__ tells its arguments only."""

    def __reduce__(self):
        return Reduced, self.args


class Twice(Exception):
    """Its first argument changes when it is unpickled."""

    def __init__(self, code):
        super().__init__(f"code {code}")


class Lazy(Exception):
    def __str__(self):
        raise RuntimeError


class Thing:
    """Has no equality, and an address in its repr."""


def there_and_back(error, note=""):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return rebuild_exception(describe_failure(caught, note))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 5),
        KeyError((1, 2)),
        OSError(2, "no such file", "name"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        KeyboardInterrupt(),
        SystemExit(3),
        ExceptionGroup("two", [ValueError(1), TypeError("x")]),
        AssertionError(),
        Reduced("text"),
    ],
    ids=repr,
)
def test_keep_their_type_and_arguments(error):
    copy = there_and_back(error, "In worker 3.")
    assert type(copy) is type(error)
    assert repr(copy.args) == repr(error.args)
    assert str(copy) == str(error)
    assert copy.__notes__ == ["In worker 3."]
    assert isinstance(copy.__cause__, WorkerTraceback)
    assert "there_and_back" in str(copy.__cause__)
    assert "In worker 3." in str(copy.__cause__)


def test_also_with_arguments_that_cannot_be_compared():
    copy = there_and_back(LookupError(Thing(), np.arange(3)))
    assert type(copy) is LookupError
    assert isinstance(copy.args[0], Thing)
    assert copy.args[1].tolist() == [0, 1, 2]


def test_attributes_too():
    error = ValueError("x")
    error.extra = [1]
    assert there_and_back(error).extra == [1]


def test_local_classes():
    class Local(Exception):
        pass

    copy = there_and_back(Local("text"))
    assert type(copy).__name__ == "Local"


@pytest.mark.parametrize(
    ("error", "name", "text"),
    [
        (Mine(5, hint="x"), "Mine", "5"),
        (Twice(5), "Twice", "code 5"),
        (ValueError(threading.Lock()), "ValueError", "lock"),
    ],
)
def test_what_cannot_travel_keeps_its_name_and_text(error, name, text):
    copy = there_and_back(error)
    assert isinstance(copy, WorkerError)
    assert copy.class_name == name
    assert text in copy.text
    assert "there_and_back" in copy.worker_traceback


def test_a_text_that_cannot_be_made():
    copy = there_and_back(Lazy())
    assert isinstance(copy, WorkerError)
    assert copy.text == "<its text could not be made>"


def test_a_class_that_is_not_known_here(monkeypatch):
    module = types.ModuleType("only_there")
    exec("class Odd(Exception): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_there", module)
    described = describe_failure(module.Odd("text", 5), where=Whereabouts(1, 42, index=3))
    monkeypatch.undo()
    error = rebuild_exception(described)
    assert isinstance(error, WorkerError)
    assert (error.class_name, error.text) == ("Odd", "('text', 5)")
    assert (error.where, error.index) == (Whereabouts(1, 42, index=3), 3)


def test_stop_iteration_would_end_the_callers_loop():
    assert isinstance(there_and_back(StopIteration(5)), WorkerError)
    assert isinstance(there_and_back(GeneratorExit()), WorkerError)


@pytest.mark.parametrize("data", [b"", b"no pickle", describe_failure(KeyError())[:-5]])
def test_what_cannot_be_read(data):
    error = rebuild_exception(data)
    assert isinstance(error, LoaderError)
    assert "could not be unpickled" in str(error)


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary())))
def test_several_with_their_rows_or_positions(errors):
    assert unpack_errors(pack_errors(errors)) == errors
    assert unpack_errors(pack_errors(tuple(errors))) == errors


def test_each_of_several_is_whole():
    packed = pack_errors([(3, describe_failure(KeyError("a"))), (70, describe_failure(OSError(5)))])
    (row, first), (position, second) = unpack_errors(packed)
    assert (row, position) == (3, 70)
    assert repr(rebuild_exception(first)) == "KeyError('a')"
    assert repr(rebuild_exception(second)) == "OSError(5)"


class TestCopies:
    @pytest.mark.parametrize("error", [OSError(2, "no such file", "name"), Reduced("text")])
    def test_all_but_the_traceback(self, error):
        error = there_and_back(error, "a note")
        try:
            raise error
        except Exception:  # noqa: BLE001
            copied = copy_exception(error)
        assert type(copied) is type(error)
        assert copied.args == error.args
        assert getattr(copied, "filename", None) == getattr(error, "filename", None)
        assert copied.__notes__ == ["a note"]
        assert copied.__cause__ is error.__cause__
        assert copied.__traceback__ is None

    def test_what_cannot_be_copied_is_raised_itself(self):
        error = Mine(1, hint="text")
        assert copy_exception(error) is error


class Batch:
    """A key that stands for several samples."""

    def __init__(self, keys):
        self._crumpets_keys = keys


@pytest.mark.parametrize(
    "make", [lambda where: WorkerDied(where, -9, "why"), lambda where: LoaderTimeout(2, where)]
)
@pytest.mark.parametrize(
    ("keys", "index", "indices", "others", "text"),
    [
        (["a"], None, (), ("a",), "the sample with key 'a' (epoch 3"),
        (["a", 1], None, (), ("a", 1), "one of 2 samples at once, with the keys 'a', 1 (epoch 3"),
        ([7], 7, (), (), "the sample with index 7 (epoch 3"),
        ([Batch([6, 7])], None, (6, 7), (), "of 2 samples at once, with the indices 6, 7 (epoch 3"),
        ([Batch([])], None, (), (), "a sample (epoch 3"),
    ],
)
def test_keys_that_the_broker_has_not_unpickled(make, keys, index, indices, others, text):
    where = Whereabouts(0, 5, epoch=3, batch=1, keys=tuple(dump_object(key) for key in keys))
    error = rebuild_exception(describe_failure(make(where)))
    error = rebuild_exception(describe_failure(error))  # as where a worker has raised it again
    assert (error.index, error.indices, error.where.keys) == (index, indices, others)
    assert (error.worker_id, error.batch) == (0, 1)
    assert text in str(error)


def test_keys_that_cannot_be_unpickled():
    where = Whereabouts(0, 5, epoch=3, batch=1, keys=(b"strange",))
    error = rebuild_exception(describe_failure(WorkerDied(where, -9, "why")))
    assert error.where.keys == ()
    assert "a sample (epoch 3" in str(error)
