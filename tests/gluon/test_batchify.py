import numpy as np
import pytest

from crumpets_like.gluon import default_batchify_fn


def check(batch, expected):
    assert type(batch) is np.ndarray
    assert batch.dtype == expected.dtype
    np.testing.assert_array_equal(batch, expected)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([1, 2, 3], np.array([1, 2, 3])),
        ([1.5, 2], np.array([1.5, 2.0])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], "f4")),
        ([np.ones((2, 3), "u1")] * 2, np.ones((2, 2, 3), "u1")),
        ([np.array(5, "i2")], np.array([5], "i2")),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([b"ab", b"c"], np.array([b"ab", b"c"])),
        (["ab", "c"], np.array(["ab", "c"])),
    ],
)
def test_one_array(samples, expected):
    check(default_batchify_fn(samples), expected)


def test_tuples_become_a_list():
    batch = default_batchify_fn([(np.zeros(2, "f4"), 1), (np.ones(2, "f4"), 2)])
    assert type(batch) is list
    check(batch[0], np.array([[0, 0], [1, 1]], "f4"))
    check(batch[1], np.array([1, 2]))
    nested = default_batchify_fn([(1, (2, 3)), (4, (5, 6))])
    assert [type(item) for item in nested] == [np.ndarray, list]
    check(nested[1][1], np.array([3, 6]))


def test_tensors():
    torch = pytest.importorskip("torch")
    samples = list(torch.arange(6, dtype=torch.float32).reshape(3, 2))
    check(default_batchify_fn(samples), np.arange(6, dtype="f4").reshape(3, 2))
    check(default_batchify_fn(list(torch.arange(3))), np.arange(3))


def test_what_has_no_one_shape():
    for samples in ([np.zeros(2), np.zeros(3)], [[1, 2], [3]], [np.zeros(2), 1]):
        with pytest.raises(ValueError, match=r"stacks samples of one shape .*batchify_fn"):
            default_batchify_fn(samples)
    with pytest.raises(ValueError, match=r"tuples of one length, .* the lengths 2, 1"):
        default_batchify_fn([(1, 2), (3,)])


@pytest.mark.parametrize("sample", [None, {"a": 1}, 1 << 70])
def test_what_is_no_number(sample):
    kind = type(sample).__name__
    with pytest.raises(TypeError, match=rf"but a sample is a {kind}: .* Give a batchify_fn"):
        default_batchify_fn([sample, sample])
