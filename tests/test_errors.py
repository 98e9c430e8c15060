import inspect
import pickle

import cloudpickle
import pytest

from crumpets_like import errors
from crumpets_like.errors import (
    BufferExhausted,
    LoaderClosed,
    LoaderError,
    LoaderTimeout,
    WorkerDied,
    WorkerError,
    WorkerTraceback,
    signal_name,
)

EXAMPLES = [
    LoaderError("text"),
    LoaderClosed("closed"),
    BufferExhausted(5, 8),
    LoaderTimeout(2.5),
    LoaderTimeout(120, " Worker 1 is busy."),
    WorkerError("KeyError", "'name'", "Traceback ..."),
    WorkerDied(1, 4242, -9, 17, "Why."),
    WorkerDied(0, 4242, 3, None, ""),
    WorkerTraceback("Traceback ..."),
]


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_pickle_round_trip(error, dumps):
    error.add_note("a note")
    error.extra = [1]
    copy = pickle.loads(dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


def test_every_class_is_tried():
    classes = {c for _, c in inspect.getmembers(errors, inspect.isclass)}
    assert {type(error) for error in EXAMPLES} == {c for c in classes if issubclass(c, Exception)}


def test_what_users_catch():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), LoaderError)
    assert issubclass(LoaderError, RuntimeError)
    assert issubclass(BufferExhausted, MemoryError)
    assert issubclass(LoaderTimeout, TimeoutError)


def test_buffer_exhausted():
    error = BufferExhausted(held=5, limit=8)
    assert (error.held, error.limit) == (5, 8)
    text = str(error)
    assert "All 8 buffers" in text
    assert "5 mini-batches" in text
    assert "max_buffers" in text


def test_loader_timeout():
    error = LoaderTimeout(0.5, " The rest.")
    assert (error.seconds, error.detail) == (0.5, " The rest.")
    assert str(error).startswith("No mini-batch arrived within 0.5 seconds. The rest. Likely")
    assert "timeout=" in str(error)


def test_worker_error():
    error = WorkerError("a.B", "its text", "Traceback\n  line")
    assert (error.class_name, error.text) == ("a.B", "its text")
    assert str(error) == "a.B: its text\n\nTraceback\n  line"
    assert str(WorkerError("B", "text")) == "B: text"


@pytest.mark.parametrize(
    ("code", "index", "name", "parts", "missing"),
    [
        (-9, 17, "SIGKILL", ["was ended by SIGKILL", "index 17", "out of memory"], []),
        (-11, 0, "SIGSEGV", ["was ended by SIGSEGV", "index 0"], ["memory"]),
        (0, None, None, ["ended with exit code 0"], ["index", "memory"]),
        (3, 5, None, ["ended with exit code 3", "index 5"], ["memory"]),
        (-64, None, "SIGRTMAX", ["SIGRTMAX"], ["memory"]),
    ],
)
def test_worker_died(code, index, name, parts, missing):
    error = WorkerDied(2, 4242, code, index, "Because.")
    assert (error.worker_id, error.pid, error.exit_code) == (2, 4242, code)
    assert (error.index, error.signal_name, error.why) == (index, name, "Because.")
    for part in ["Worker 2 (pid 4242)", "Because.", *parts]:
        assert part in str(error)
    for part in missing:
        assert part not in str(error)


def test_signal_names():
    assert signal_name(-15) == "SIGTERM"
    assert signal_name(-99) == "signal 99"
    assert signal_name(1) is None


def test_the_traceback_is_shown_as_it_is():
    error = ValueError("mine")
    error.__cause__ = WorkerTraceback("Traceback\n  line 3")
    assert str(error.__cause__) == '\n"""\nTraceback\n  line 3\n"""'
