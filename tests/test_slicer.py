from itertools import count, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like.slicer import Slicer

small = st.none() | st.integers(0, 12)


class Recorder:
    """An iterator over 0, 1, 2, ... that knows how many items were read."""

    def __init__(self, length=None):
        self.read = 0
        self.length = length

    def __iter__(self):
        return self

    def __next__(self):
        if self.read == self.length:
            raise StopIteration
        self.read += 1
        return self.read - 1


def lists(chunks):
    return [list(chunk) for chunk in chunks]


class TestChunks:
    @pytest.mark.parametrize(
        ("item", "expected"),
        [
            (slice(0, 6, 2), [[0, 1], [2, 3], [4, 5]]),
            (slice(1, 6, 2), [[1, 2], [3, 4], [5]]),
            (slice(2, 10, 3), [[2, 3, 4], [5, 6, 7], [8, 9]]),
            (slice(None, None, 4), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
            (slice(7, None, 5), [[7, 8, 9]]),
            (slice(0, 3), [[0], [1], [2]]),
            (slice(0, 3, 0), [[0], [1], [2]]),
            (slice(0, 99, 5), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
            (slice(0, 0, 2), []),
            (slice(5, 3, 2), []),
            (slice(99, None, 2), []),
        ],
    )
    def test_examples(self, item, expected):
        assert lists(Slicer(range(10))[item]) == expected

    @settings(deadline=None)
    @given(st.integers(0, 15), st.lists(st.tuples(small, small, small), max_size=4))
    def test_slicing_again_goes_on(self, length, items):
        slicer = Slicer(range(length))
        rest = list(range(length))
        for start, stop, step in items:
            window = rest[start:stop]
            size = step or 1
            chunks = [window[i : i + size] for i in range(0, len(window), size)]
            assert lists(slicer[start:stop:step]) == chunks
            skipped = start or 0
            rest = rest[max(min(skipped, stop), stop) if stop is not None else len(rest) :]

    def test_one_iterator_is_shared(self):
        source = iter(range(10))
        slicer = Slicer(source)
        assert lists(slicer[:4:2]) == [[0, 1], [2, 3]]
        assert next(source) == 4
        assert lists(slicer[:4:2]) == [[5, 6], [7, 8]]

    def test_endless(self):
        assert lists(islice(Slicer(count())[3::2], 2)) == [[3, 4], [5, 6]]

    def test_none_is_an_item(self):
        assert lists(Slicer([None] * 3)[::2]) == [[None, None], [None]]

    def test_exhaustion_is_quiet(self):
        slicer = Slicer(range(3))
        assert lists(slicer[::2]) == [[0, 1], [2]]
        assert lists(slicer[::2]) == []
        assert lists(slicer[5:9:2]) == []


class TestLaziness:
    def test_nothing_is_read_before_a_chunk_is_asked_for(self):
        source = Recorder()
        chunks = Slicer(source)[4:20:3]
        assert source.read == 0
        chunk = next(chunks)
        assert source.read == 5
        assert next(chunk) == 4
        assert source.read == 5
        assert next(chunk) == 5
        assert source.read == 6

    def test_nothing_is_read_past_the_stop(self):
        source = Recorder()
        slicer = Slicer(source)
        lists(slicer[2:9:4])
        assert source.read == 9
        lists(slicer[5:3:2])
        assert source.read == 12

    def test_the_rest_of_a_chunk_is_skipped(self):
        chunks = Slicer(range(10))[::4]
        first = next(chunks)
        assert next(first) == 0
        assert list(next(chunks)) == [4, 5, 6, 7]
        assert list(first) == []

    def test_an_untouched_chunk_is_skipped_too(self):
        first, second, third = Slicer(range(10))[::4]
        assert [list(first), list(second), list(third)] == [[], [], []]

    def test_an_error_of_the_iterable_comes_through(self):
        def fail():
            yield 0
            raise KeyError("broken")

        with pytest.raises(KeyError, match="broken"):
            lists(Slicer(fail())[::2])


class TestArguments:
    @pytest.mark.parametrize("item", [3, None, "a", (1, 2), 1.5])
    def test_no_slice(self, item):
        with pytest.raises(ValueError, match=r"takes a slice .* got"):
            Slicer(range(3))[item]

    @pytest.mark.parametrize("value", [-1, 1.5, "2", [1]])
    @pytest.mark.parametrize("name", ["start", "stop", "step"])
    def test_bad_values_are_refused_at_once(self, name, value):
        source = Recorder(3)
        arguments = {"start": None, "stop": None, "step": None, name: value}
        with pytest.raises(ValueError, match=f"{name} of a slice .* got"):
            Slicer(source)[slice(*arguments.values())]
        assert source.read == 0

    def test_no_iterable(self):
        with pytest.raises(TypeError):
            Slicer(3)
