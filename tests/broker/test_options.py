"""Numbers that a loader's options lead to."""

import pytest

from crumpets_like import Worker
from crumpets_like.broker.options import EngineOptions
from tests.support.loading import Items


class Collating(Worker):
    def collate(self, results):
        return super().collate(results)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "buffers", "prefetch", "adaptive"),
        [
            ({}, 6, 6, True),
            ({"prefetch": 2}, 6, 2, False),
            ({"prefetch": 20}, 6, 6, False),
            ({"shared_memory": 5}, 5, 5, False),
            ({"shared_memory": 1}, 1, 1, False),
            ({"shared_memory": 5, "prefetch": 9}, 5, 5, False),
            ({"shared_memory": False}, 0, 6, False),
            ({"shared_memory": 0, "prefetch": 9}, 0, 9, False),
            ({"max_buffers": 4}, 4, 4, True),
        ],
    )
    def test_numbers(self, options, buffers, prefetch, adaptive):
        made = EngineOptions(Items(), range(9), 4, 3, **options)
        assert (made.buffers, made.prefetch, made.adaptive) == (buffers, prefetch, adaptive)

    def test_the_callers_thread_has_two_buffers(self):
        assert EngineOptions(Items(), range(9), 4, 0).buffers == 2

    def test_an_own_collate_gets_the_whole_mini_batch(self):
        assert EngineOptions(Worker(), range(9), 4, 3).splittable
        assert EngineOptions(Items(), range(9), 4, 3).splittable
        assert not EngineOptions(Collating(), range(9), 4, 3).splittable
