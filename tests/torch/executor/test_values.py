"""Which values count, and copies that go on beside the caller's work."""

import gc
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from crumpets_like.torch.executor import trace  # noqa: E402
from crumpets_like.torch.executor.values import Copies, array_of, checked  # noqa: E402


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([1, 2]), [1, 2]),
        (np.array([1, 2])[::-1], [2, 1]),
        (np.float32(3), 3),
        (torch.tensor(4), 4),
        ([1, 2], None),
        (3.0, None),
        (None, None),
        ("text", None),
        (np.array(["text"]), None),
        (np.array([1, 2], ">f4"), [1, 2]),
        (np.array([(1, 2), (3, 4)], [("small", "u1"), ("large", "f4")])["large"], [2, 4]),
        (np.array([1, 2], np.longdouble), [1, 2]),
        (np.array([1.0, 2.0], object), None),
        (np.ma.masked_array([1, 2], [True, False]), None),
    ],
)
def test_arrays(value, expected):
    found = array_of(value)
    assert (None if found is None else found.tolist()) == expected


def test_memory_maps_and_frozen_arrays(tmp_path):
    mapped = np.memmap(tmp_path / "x", np.int32, "w+", shape=(2,))
    assert array_of(mapped).tolist() == [0, 0]
    frozen = np.arange(2)
    frozen.flags.writeable = False
    assert array_of(frozen).tolist() == [0, 1]


def test_what_is_given_for_bound_names():
    bound = {"a": torch.zeros(2)}
    assert list(checked({"a": np.ones(2), "b": np.ones(2), "c": [1]}, bound, False)) == ["a"]
    with pytest.raises(TypeError, match=r"^Unknown argument b$"):
        checked({"a": np.ones(2), "b": np.ones(2)}, bound, True)
    with pytest.raises(ValueError, match=r"got list for c$"):
        checked({"c": [1]}, bound, True)


@pytest.mark.parametrize(
    "value", [np.ma.masked_array([1, 2]), np.array(["x", "y"]), np.array([1, 2], object), 3.0, None]
)
def test_what_is_no_array_is_not_left_out(value):
    words = rf"got {type(value).__name__} for a"
    with pytest.raises(ValueError, match=words):
        checked({"a": value}, {"a": torch.zeros(2)}, False)
    assert checked({"a": [1, 2], "zz": value}, {"a": torch.zeros(2)}, False) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2).to_sparse(), r"dense tensors, received: torch\.sparse_coo"),
        (torch.ones(2, device="meta"), "on meta, which has none"),
        (torch.ones(3), "Shape not match"),
    ],
)
def test_all_is_checked_before_any_is_written(value, words):
    executor = trace(lambda a, b: a + b).simple_bind("cpu", a=(2,), b=(2,))
    with pytest.raises(ValueError, match=words):
        executor.forward(a=torch.ones(2), b=value)
    with pytest.raises(ValueError, match=words):
        executor.copy_params_from({"a": torch.ones(2), "b": value})
    assert executor.arg_dict["a"].tolist() == [0, 0]


class Source:
    """A tensor in page-locked memory, or not."""

    def __init__(self, pinned):
        self.pinned = pinned

    def is_pinned(self):
        return self.pinned


class Target:
    """An array on a device."""

    def __init__(self, log, is_cuda=True):
        self.log = log
        self.is_cuda = is_cuda
        self.device = "cuda:1"

    def copy_(self, source, non_blocking):
        self.log.append(("copy", non_blocking))


@pytest.fixture
def log(monkeypatch):
    log = []

    class Event:
        def record(self, stream):
            log.append(stream)

        def synchronize(self):
            log.append("wait")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    return log


def test_copies_from_page_locked_memory_keep_it(log):
    copies = Copies()
    source = Source(pinned=True)
    held = weakref.ref(source)
    copies.copy([(Target(log), source), (Target(log), Source(pinned=False))])
    assert log == [("copy", True), ("copy", False), "stream of cuda:1"]
    del source
    gc.collect()
    assert held() is not None
    copies.copy([(Target(log), Source(pinned=False))])
    assert log[3:] == ["wait", ("copy", False)]
    assert held() is None


def test_other_copies_wait(log):
    copies = Copies()
    copies.copy([(Target(log, is_cuda=False), Source(pinned=True))])
    copies.copy([(Target(log), Source(pinned=False))])
    assert log == [("copy", False), ("copy", False)]


class Full(Target):
    """An array whose copy fails."""

    def copy_(self, source, non_blocking):
        raise RuntimeError("out of memory")


def test_a_copy_that_fails_leaves_the_one_before_it_held(log):
    copies = Copies()
    source = Source(pinned=True)
    held = weakref.ref(source)
    with pytest.raises(RuntimeError, match="out of memory"):
        copies.copy([(Target(log), source), (Full(log), Source(pinned=True))])
    assert log == [("copy", True), "stream of cuda:1"]
    del source
    gc.collect()
    assert held() is not None
    copies.copy([])
    assert log[2:] == ["wait"]


def test_copies_are_waited_for_at_the_end(log):
    copies = Copies()
    copies.copy([(Target(log), Source(pinned=True))])
    del copies
    gc.collect()
    assert log[-1] == "wait"
