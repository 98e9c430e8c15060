import sys

import numpy as np
import pytest

from crumpets_like.sources import check_last_batch, choose_source, is_indexable
from tests.support.planning import OwnIterator, Sized, Unsized, planner

LISTS = [[0, 1], [2]]


class Indexable:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return index


class TestIsIndexable:
    @pytest.mark.parametrize("data", [[], range(3), "abc", {}, np.zeros(3), Indexable()])
    def test_datasets(self, data):
        assert is_indexable(data)

    @pytest.mark.parametrize("data", [iter([]), {1, 2}, Sized([]), Unsized([]), OwnIterator(3)])
    def test_iterables(self, data):
        assert not is_indexable(data)

    def test_torch(self):
        data = pytest.importorskip("torch").utils.data

        class Stream(data.IterableDataset):
            def __iter__(self):
                return iter(range(10))

            def __len__(self):
                return 10

        assert hasattr(Stream, "__getitem__")
        assert not is_indexable(Stream())
        plans = planner(Stream(), 4)
        assert plans.iterations() == 3
        assert [list(batch) for batch in plans.open()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        assert is_indexable(data.TensorDataset(pytest.importorskip("torch").zeros(3)))

    def test_torch_half_imported(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", object())
        assert is_indexable([1])


class TestChooseSource:
    def choose(self, iterable=range(3), **options):
        defaults = {"shuffle": False, "sampler": None, "batch_sampler": None, "last_batch": "keep"}
        return choose_source(iterable, **{**defaults, **options})

    @pytest.mark.parametrize(
        ("options", "argument", "own_order", "length"),
        [
            ({}, "iterable", True, 3),
            ({"shuffle": True}, "iterable", True, 3),
            ({"sampler": [2, 1]}, "sampler", False, 2),
            ({"sampler": iter([])}, "sampler", False, None),
            ({"batch_sampler": LISTS}, "batch_sampler", False, 2),
            ({"iterable": Sized("abcd")}, "iterable", False, 4),
            ({"iterable": Unsized("abcd")}, "iterable", False, None),
        ],
    )
    def test_source(self, options, argument, own_order, length):
        source = self.choose(**options)
        assert source.argument == argument
        assert source.own_order is own_order
        assert source.length() == length

    def test_a_length_that_raises_is_none(self):
        class Abstract(Unsized):
            def __len__(self):
                raise NotImplementedError

        assert self.choose(sampler=Abstract([])).length() is None

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shuffle": True, "sampler": [2]}, r"shuffle=True .* sampler=\[2\]"),
            ({"shuffle": True, "batch_sampler": LISTS}, r"shuffle=True .* batch_sampler=\[\[0"),
            ({"sampler": [2], "batch_sampler": LISTS}, r"sampler=\[2\] .* batch_sampler=\[\[0"),
            (
                {"last_batch": "discard", "batch_sampler": LISTS},
                r"last_batch='discard' .* batch_sampler",
            ),
            ({"last_batch": "rollover", "batch_sampler": LISTS}, r"last_batch='rollover'"),
            ({"iterable": {3, 4}, "shuffle": True}, r"shuffle=True needs .* \{3, 4\}"),
            ({"iterable": {3, 4}, "sampler": [2]}, r"sampler=\[2\] needs .* \{3, 4\}"),
            ({"iterable": {3, 4}, "batch_sampler": LISTS}, r"batch_sampler=.* needs .* \{3, 4\}"),
        ],
    )
    def test_conflicts(self, options, message):
        with pytest.raises(ValueError, match=message):
            self.choose(**options)
        with pytest.raises(ValueError, match=message):  # at construction
            planner(options.pop("iterable", range(3)), 2, **options)

    def test_an_empty_sampler_is_a_sampler(self):
        with pytest.raises(ValueError, match="shuffle"):
            self.choose(shuffle=True, sampler=[])

    @pytest.mark.parametrize("argument", ["iterable", "sampler", "batch_sampler"])
    @pytest.mark.parametrize("value", [3, 2.5, object()])
    def test_not_iterable(self, argument, value):
        with pytest.raises(TypeError, match=f"^{argument} must be iterable, got"):
            self.choose(**{argument: value})


class TestChecks:
    @pytest.mark.parametrize("word", ["keep", "discard", "rollover"])
    def test_last_batch(self, word):
        assert check_last_batch(word) == word

    @pytest.mark.parametrize("word", ["drop", "", None, 3, np.zeros(2)])
    def test_unknown_last_batch(self, word):
        with pytest.raises(ValueError, match=r"^last_batch must be 'keep', 'discard' or 'roll"):
            check_last_batch(word)
        with pytest.raises(ValueError, match=r"^last_batch"):
            planner(range(3), 2, last_batch=word)
