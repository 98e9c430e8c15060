"""How far ahead an engine requests, and what it counts."""

import numpy as np
import pytest

from tests.broker.test_engine import GATE, make_engine
from tests.support.loading import Items, wait_until
from tests.support.planning import planner


class Naps(Items):
    def prepare(self, sample, batch, buffers):
        GATE.event.wait(0.01)
        super().prepare(sample, batch, buffers)


class Large(Items):
    def __init__(self):
        super().__init__()
        self.add_buffer("large", ((1 << 20,), np.uint8))


class TestWindow:
    def test_more_is_requested_while_it_is_quick_and_tiny(self):
        engine = make_engine(range(100_000))
        try:
            this = engine.open(planner(range(100_000), 4).open())
            assert this.requested == 4
            for _ in range(2000):
                engine.next_batch(this)
            assert this.requested - this.retrieved > 20
        finally:
            engine.stop()

    def test_not_while_it_is_slow(self):
        GATE.__init__()
        engine = make_engine(range(1000), template=Naps())
        try:
            this = engine.open(planner(range(1000), 4).open())
            for _ in range(5):
                engine.next_batch(this)
            assert this.requested - this.retrieved <= 6
        finally:
            engine.stop()

    @pytest.mark.parametrize(
        ("retrieved", "seconds", "window"),
        [(0, [1.0], 4), (23, [1.0, 0.001, 1.0], 12), (24, [1.0, 0.001], 4)],
    )
    def test_memory_for_large_ones_is_taken_early_or_never(self, retrieved, seconds, window):
        engine = make_engine(range(8), template=Large())
        try:
            engine._retrieved = retrieved
            assert [engine._window(pace) for pace in seconds][-1] == window
        finally:
            engine.stop()

    def test_no_more_than_the_user_says(self):
        engine = make_engine(range(100_000), prefetch=3)
        try:
            this = engine.open(planner(range(100_000), 4).open())
            for _ in range(500):
                engine.next_batch(this)
                assert this.requested - this.retrieved <= 3
        finally:
            engine.stop()


def test_samples_are_what_the_facts_count():
    engine = make_engine(range(12), template=Items(), shared_memory=3)
    try:
        this = engine.open(planner(range(12), 4).open())
        assert wait_until(lambda: engine.facts().ready == 3 and engine.facts().up_since)
        facts = engine.facts()
        assert (facts.free, facts.filling, facts.held) == (0, 0, 0)
        assert len(facts.busy_seconds) == 2
        held = engine.next_batch(this)
        assert np.array_equal(held[0]["item"], range(4))
        facts = engine.facts()
        assert (facts.ready, facts.held) == (2, 1)
    finally:
        engine.stop()
