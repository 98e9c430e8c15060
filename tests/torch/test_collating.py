"""The quick collate: as torch's, and in place."""

from __future__ import annotations

import collections

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate  # noqa: E402

from crumpets_like.broker.encoding import Arena, decode, encode  # noqa: E402
from crumpets_like.torch.collating import collate_fast, foreign_collate_functions  # noqa: E402

Pair = collections.namedtuple("Pair", "x y")

BATCHES = {
    "arrays": [np.full((3, 5), i, np.float32) for i in range(4)],
    "tensors": [torch.full((3, 5), float(i)) for i in range(4)],
    "rows": [(np.ones(2), i, str(i), [i / 2, None is i]) for i in range(4)],
    "pairs": [Pair(i, {"a": i}) for i in range(4)],
    "long ints": [2**40, -1],
    "floats": [0.1, float("nan")],
    "mixed arrays": [np.ones(2, np.int32), np.ones(2, np.float32)],
    "one": [{"x": np.ones(1)}],
}


def check(ours, theirs):
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            check(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        for our, their in zip(ours, theirs, strict=True):
            check(our, their)
    else:
        assert ours == theirs


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_as_torch(batch):
    check(collate_fast(batch), default_collate(batch))


@pytest.mark.parametrize(
    "batch",
    [
        [np.ones(2), np.ones(3)],
        [np.ones((2, 3)), np.ones((4, 3))],
        [np.ones(2), 1],
        [torch.ones(2), torch.ones(3)],
        [(1, 2), (1, 2, 3)],
        [[1], 2],
        [1, "a"],
        [1, 2**70],
        [{"a": 1}, {"b": 1}],
        [None],
        [np.array(["a"])],
        [np.ones(2, ">f4")],
        [],
    ],
    ids=str,
)
def test_the_same_errors(batch):
    with pytest.raises(Exception) as theirs:  # noqa: PT011  whatever it is
        default_collate(batch)
    with pytest.raises(type(theirs.value)) as ours:
        collate_fast(batch)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("make", [np.ones, lambda shape: torch.ones(shape)])
def test_large_results_are_made_in_the_slot(make):
    memory = bytearray(1 << 20)
    arena = Arena(memory, 64, 0, 1 << 19)
    joined = collate_fast([make((100, 3))] * 4, arena)
    inside = np.frombuffer(memory, np.uint8)
    assert 64 <= joined.data_ptr() - inside.ctypes.data < 1 << 19
    before = arena._next
    frames = encode({"": (joined,)}, arena)
    assert sum(map(len, frames)) < 500
    assert arena._next == before  # not copied
    (decoded,) = decode(frames, inside[64:])[""]
    assert torch.equal(decoded, joined)


def test_what_does_not_fit_is_made_elsewhere():
    arena = Arena(bytearray(1 << 12), 0, 0, 1 << 12)
    joined = collate_fast([np.ones(400)] * 4, arena)
    assert joined.shape == (4, 400)
    assert len(encode({"": (joined,)}, arena)) == 3


def test_gradients_are_left_to_torch():
    batch = [torch.ones(2, requires_grad=True)] * 2
    assert collate_fast(batch).requires_grad


def test_foreign_functions(monkeypatch):
    from torch.utils.data._utils.collate import default_collate_fn_map

    assert foreign_collate_functions() == {}
    monkeypatch.setitem(default_collate_fn_map, set, sum)
    assert foreign_collate_functions() == {set: sum}
