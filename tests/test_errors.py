import inspect
import pickle
from dataclasses import replace

import cloudpickle
import pytest

from crumpets_like import errors
from crumpets_like.errors import (
    BufferExhausted,
    LoaderClosed,
    LoaderError,
    LoaderTimeout,
    Whereabouts,
    WorkerDied,
    WorkerError,
    WorkerTraceback,
    signal_name,
)

WHERE = Whereabouts(2, 4242, index=17, epoch=3, batch=5)
NO_INDEX = Whereabouts(2, 4242, epoch=3, batch=5)
IDLE = Whereabouts(2, 4242)
SEVERAL = Whereabouts(2, 4242, epoch=3, batch=5, indices=tuple(range(16, 28)))
SHOWN = "16, 17, 18, 19, 20, 21, 22, 23"
COLLATE = Whereabouts(2, 4242, epoch=3, batch=5, during="collate")
EXAMPLES = [
    LoaderError("text"),
    LoaderClosed("closed"),
    BufferExhausted(5, 8),
    BufferExhausted(5, 8, "raise ulimit -f"),
    LoaderTimeout(2.5),
    LoaderTimeout(120, WHERE, "File ...", "Detail."),
    WorkerError("KeyError", "'name'", "Traceback ..."),
    WorkerError("KeyError", "'name'", "Traceback ...", WHERE),
    WorkerDied(SEVERAL, -9, "Why."),
    WorkerDied(WHERE, -9, "Why.", "File ..."),
    WorkerDied(IDLE, 3, ""),
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
    for name in set(errors.__all__) - {"Whereabouts"}:
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
    error = LoaderTimeout(0.5)
    assert (error.seconds, error.cause, error.stack) == (0.5, "", "")
    assert str(error).startswith("No mini-batch arrived within 0.5 seconds. Likely causes: a")
    assert "timeout=" in str(error)
    assert "stack" not in str(error)
    other = LoaderTimeout(0.5, cause="It is mine.")
    assert str(other) == "No mini-batch arrived within 0.5 seconds. It is mine."
    for name in ("where", "worker_id", "pid", "index", "epoch", "batch"):
        assert getattr(error, name) is None


@pytest.mark.parametrize(
    ("where", "sample"), [(WHERE, "the sample with index 17"), (NO_INDEX, "a sample")]
)
def test_loader_timeout_with_a_culprit(where, sample):
    error = LoaderTimeout(0.5, where, "File a, line 3\n")
    assert error.where == where
    assert (error.worker_id, error.pid, error.index) == (2, 4242, where.index)
    assert (error.epoch, error.batch) == (3, 5)
    assert error.stack == "File a, line 3\n"
    assert f"Worker 2 (pid 4242) has not got on with {sample} (epoch 3, mini-batch 5)" in str(error)
    assert str(error).endswith("\nThe worker's stack:\nFile a, line 3")


def test_worker_error():
    error = WorkerError("a.B", "its text", "Traceback\n  line")
    assert (error.class_name, error.text) == ("a.B", "its text")
    assert str(error) == "a.B: its text\n\nTraceback\n  line"
    assert str(WorkerError("B", "text")) == "B: text"
    assert (error.where, error.index, error.indices, error.pid) == (None, None, (), None)
    located = WorkerError("B", "text", where=WHERE)
    assert (located.where, located.worker_id, located.pid) == (WHERE, 2, 4242)
    assert (located.index, located.epoch, located.batch) == (17, 3, 5)


@pytest.mark.parametrize(
    ("where", "task"),
    [
        (WHERE, "the sample with index 17 (epoch 3, mini-batch 5)"),
        (NO_INDEX, "a sample (epoch 3, mini-batch 5)"),
        (
            SEVERAL,
            f"one of 12 samples at once, with the indices {SHOWN}, ... (epoch 3, mini-batch 5)",
        ),
        (COLLATE, "collate (epoch 3, mini-batch 5)"),
        (replace(COLLATE, during="start_epoch", batch=None), "start_epoch (epoch 3)"),
    ],
)
def test_what_a_worker_was_working_on(where, task):
    assert where.task == task
    for error in (LoaderTimeout(1, where), WorkerDied(where, -9, "")):
        assert task in str(error)
        assert error.indices == where.indices
    assert ("on_error" in str(error)) == (not where.during), "which leaves out samples"


@pytest.mark.parametrize(
    ("code", "where", "name", "parts", "missing"),
    [
        (-9, WHERE, "SIGKILL", ["was ended by SIGKILL", "index 17", "out of memory"], ["stack"]),
        (-11, replace(WHERE, index=0), "SIGSEGV", ["by SIGSEGV", "index 0"], ["memory"]),
        (0, IDLE, None, ["ended with exit code 0. Because."], ["index", "memory", "sample"]),
        (3, NO_INDEX, None, ["with exit code 3 while it worked on a sample (epoch 3"], ["index"]),
        (-64, IDLE, "SIGRTMAX", ["SIGRTMAX"], ["memory"]),
    ],
)
def test_worker_died(code, where, name, parts, missing):
    error = WorkerDied(where, code, "Because.")
    assert (error.worker_id, error.pid, error.exit_code) == (2, 4242, code)
    assert (error.where, error.index) == (where, where.index)
    assert (error.epoch, error.batch) == (where.epoch, where.batch)
    assert (error.signal_name, error.why, error.stack) == (name, "Because.", "")
    for part in ["Worker 2 (pid 4242)", "Because.", *parts]:
        assert part in str(error)
    for part in missing:
        assert part not in str(error)


def test_worker_died_with_a_stack():
    error = WorkerDied(WHERE, -11, "Because.", "Fatal Python error\n")
    assert error.stack == "Fatal Python error\n"
    assert str(error).endswith(".\nThe worker's stack:\nFatal Python error")


def test_signal_names():
    assert signal_name(-15) == "SIGTERM"
    assert signal_name(-99) == "signal 99"
    assert signal_name(1) is None


def test_the_traceback_is_shown_as_it_is():
    error = ValueError("mine")
    error.__cause__ = WorkerTraceback("Traceback\n  line 3")
    assert str(error.__cause__) == '\n"""\nTraceback\n  line 3\n"""'
