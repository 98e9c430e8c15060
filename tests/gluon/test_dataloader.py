"""Batches, lengths and errors, beside what MXNet 1.9.1 gave when it was measured."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

from crumpets_like.gluon import ArrayDataset, BatchSampler, DataLoader, SimpleDataset
from tests.support.gluon import MODES, ORDERS, PROCESSES, as_lists, numbers

TEN = list(range(10))


def test_signature():
    parameters = inspect.signature(DataLoader).parameters
    assert {name: parameter.default for name, parameter in parameters.items()} == {
        "dataset": inspect.Parameter.empty,
        "batch_size": None,
        "shuffle": False,
        "sampler": None,
        "last_batch": None,
        "batch_sampler": None,
        "batchify_fn": None,
        "num_workers": 0,
        "pin_memory": False,
        "pin_device_id": 0,
        "prefetch": None,
        "thread_pool": False,
        "timeout": 120,
        "auto_reload": False,
    }
    kinds = {parameter.kind for parameter in parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_names_are_public_and_torch_is_not_imported():
    code = """
import sys
import crumpets_like.gluon as gluon
list(gluon.DataLoader([1, 2, 3], 2))
assert gluon.__all__ == sorted(gluon.__all__)
assert "torch" not in sys.modules
assert all(hasattr(gluon, name) for name in gluon.__all__)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("mode", ORDERS)
class TestOrder:
    def test_keep_and_discard(self, mode):
        loader = DataLoader(TEN, 4, **mode)
        assert len(loader) == 3
        for _ in range(2):
            assert as_lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        loader = DataLoader(TEN, 4, last_batch="discard", **mode)
        assert len(loader) == 2
        assert as_lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_rollover(self, mode):
        loader = DataLoader(TEN, 4, last_batch="rollover", **mode)
        lengths, passes = [], []
        for _ in range(3):
            lengths.append(len(loader))
            passes.append(as_lists(loader))
        assert lengths == [2, 3, 2]
        assert passes == [
            [[0, 1, 2, 3], [4, 5, 6, 7]],
            [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]],
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ]

    def test_shuffle(self, mode):
        loader = DataLoader(TEN, 4, shuffle=True, **mode)
        np.random.seed(7)
        assert as_lists(loader) == [[8, 5, 0, 2], [1, 9, 7, 3], [6, 4]]
        second = numbers(loader)
        np.random.seed(7)
        orders = [np.arange(10), np.arange(10)]
        for order in orders:
            np.random.shuffle(order)
        assert second == orders[1].tolist()

    def test_sampler_and_batch_sampler(self, mode):
        assert as_lists(DataLoader(TEN, 2, sampler=[9, 1, 5, -1], **mode)) == [[9, 1], [5, 9]]
        lists = [[3], [1, 2], [9, 8, 7]]
        loader = DataLoader(TEN, batch_sampler=lists, **mode)
        assert len(loader) == 3
        assert as_lists(loader) == as_lists(loader) == lists

    def test_keys_of_any_kind(self, mode):
        loader = DataLoader({"a": 1, "b": 2, "c": 3}, 2, sampler="cab", **mode)
        assert as_lists(loader) == [[3, 1], [2]]


def test_rollover_with_auto_reload():
    loader = DataLoader(TEN, 4, last_batch="rollover", auto_reload=True, **PROCESSES)
    lengths, passes = [], []
    for _ in range(3):
        lengths.append(len(loader))
        passes.append(as_lists(loader))
    assert lengths == [3, 2, 3]
    assert [len(batches) for batches in passes] == [2, 3, 2]
    assert passes[1][0] == [8, 9, 0, 1]


@pytest.mark.parametrize("mode", MODES)
class TestBatches:
    def test_tuples_give_a_list_of_arrays(self, mode):
        images = np.random.default_rng(0).random((10, 3, 40, 40)).astype("f4")
        labels = np.arange(10, dtype="u1")
        dataset = ArrayDataset(images, labels).transform_first(lambda image: image * 2)
        start = 0
        for batch in DataLoader(dataset, 4, **mode):
            assert type(batch) is list
            assert [(type(array), array.dtype) for array in batch] == [
                (np.ndarray, np.float32),
                (np.ndarray, np.uint8),
            ]
            stop = start + len(batch[1])
            np.testing.assert_array_equal(batch[0], images[start:stop] * 2)
            np.testing.assert_array_equal(batch[1], labels[start:stop])
            batch[0][:] = 0  # they are the caller's own
            batch[1][:] = 0
            start = stop
        assert start == 10

    def test_plain_samples_give_one_array(self, mode):
        for dataset in (np.arange(10, dtype="i2"), [float(x) for x in TEN], SimpleDataset(TEN)):
            batches = list(DataLoader(dataset, 4, **mode))
            assert {type(batch) for batch in batches} == {np.ndarray}
            expected = np.asarray([dataset[0]]).dtype
            assert {batch.dtype for batch in batches} == {expected}
            assert numbers(batches) == TEN

    def test_tensors_are_a_dataset(self, mode):
        torch = pytest.importorskip("torch")
        data = torch.arange(50_000, dtype=torch.float32).reshape(10, 5000)
        batches = list(DataLoader(data, 4, **mode))
        assert {type(batch) for batch in batches} == {np.ndarray}
        np.testing.assert_array_equal(np.concatenate(batches), data.numpy())

    def test_batchify_fn(self, mode):
        loader = DataLoader(TEN, 4, batchify_fn=lambda data: {"sum": sum(data), "x": data}, **mode)
        assert list(loader)[2] == {"sum": 17, "x": [8, 9]}

    def test_kept_batches_stay(self, mode):
        data = np.arange(40 * 5000, dtype=np.int64).reshape(40, 5000)
        batches = list(DataLoader(data, 4, **mode))
        np.testing.assert_array_equal(np.concatenate(batches), data)

    def test_an_empty_dataset(self, mode):
        loader = DataLoader([], 4, **mode)
        assert len(loader) == 0
        assert list(loader) == []


class Epochs(SimpleDataset):
    """Knows what gluon does not: nothing of it must be called."""

    def set_epoch(self, epoch):
        raise AssertionError("set_epoch")

    def __getitems__(self, indices):
        raise AssertionError("__getitems__")


@pytest.mark.parametrize("mode", MODES)
def test_only_items_of_a_dataset_are_used(mode):
    assert as_lists(DataLoader(Epochs(TEN), 5, **mode)) == [TEN[:5], TEN[5:]]


@pytest.mark.parametrize("mode", ORDERS)
class TestErrorsOfSamples:
    def test_type_and_text_are_kept_and_the_next_pass_works(self, mode, tmp_path):
        mark = tmp_path / "broken"
        mark.touch()

        def transform(number):
            if number == 5 and mark.exists():
                raise ZeroDivisionError("number 5 it was")
            return number

        loader = DataLoader(SimpleDataset(TEN).transform(transform), 4, **mode)
        for _ in range(2):
            it = iter(loader)
            assert next(it).tolist() == [0, 1, 2, 3]
            with pytest.raises(ZeroDivisionError) as caught:
                next(it)
            assert str(caught.value) == "number 5 it was"
            assert list(it) == []
            del caught
        mark.unlink()
        assert as_lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    def test_of_the_sampler(self, mode):
        def sampler():
            yield from range(5)
            raise OSError("no more")

        it = iter(DataLoader(TEN, 4, sampler=sampler(), **mode))
        assert next(it).tolist() == [0, 1, 2, 3]
        with pytest.raises(OSError, match=r"^no more$"):
            next(it)

    def test_of_the_index(self, mode):
        with pytest.raises(IndexError):
            list(DataLoader(TEN, 4, sampler=[0, 10], **mode))

    def test_wrong_lists(self, mode):
        with pytest.raises(ValueError, match="batch_sampler gave an empty list"):
            list(DataLoader(TEN, batch_sampler=[[]], **mode))
        message = r"must give lists of indices, got 3 \(int\).* is given as sampler"
        with pytest.raises(TypeError, match=message):
            list(DataLoader(TEN, batch_sampler=[3], **mode))


def test_a_sampler_without_a_length_is_iterated():
    loader = DataLoader(TEN, batch_sampler=iter(BatchSampler(TEN, 5)))
    with pytest.raises(TypeError, match="len"):
        len(loader)
    assert as_lists(loader) == [TEN[:5], TEN[5:]]
