import gc
import random
import threading
import weakref

import numpy as np
import pytest

from crumpets_like import BufferExhausted, LoaderClosed, Worker, WorkerError
from crumpets_like.broker.local import LocalEngine
from crumpets_like.broker.options import EngineOptions
from tests.support.loading import Items, items
from tests.support.planning import Unsized, planner


@pytest.fixture
def make():
    engines = []

    def make_engine(template=None, dataset=None, size=2, **options):
        data = range(100) if dataset is None else dataset
        engines.append(LocalEngine(EngineOptions(template or Items(), data, size, 0, **options)))
        return engines[-1]

    yield make_engine
    for engine in engines:
        engine.stop()


def batches(engine, plan):
    this = engine.open(plan)
    found = []
    while (batch := engine.next_batch(this)) is not None:
        found.append([items([mini_batch]) for mini_batch in batch])
    assert engine.next_batch(this) is None
    return found


class TestPasses:
    @pytest.mark.parametrize("shared_memory", [True, 1, 0])
    def test_batches_of_mini_batches(self, make, shared_memory):
        engine = make(shared_memory=shared_memory)
        expected = [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8]]]
        for _ in range(2):
            assert batches(engine, planner(range(9), 4).open()) == expected

    def test_samples(self, make):
        assert batches(make(), planner(Unsized(range(5)), 4).open()) == [[[0, 1], [2, 3]], [[4]]]

    def test_keys(self, make):
        table = {"a": 1, "b": 2, (3, 4): 5}
        plan = planner(table, 2, sampler=list(table)).open()
        assert batches(make(dataset=table), plan) == [[[1, 2]], [[5]]]

    def test_several_at_once(self, make):
        engine = make()
        plans = planner(range(8), 4)
        first, second = engine.open(plans.open()), engine.open(plans.open())
        assert items(engine.next_batch(first)) == [0, 1, 2, 3]
        assert items(engine.next_batch(second)) == [0, 1, 2, 3]
        engine.close_pass(first)
        assert items(engine.next_batch(second)) == [4, 5, 6, 7]
        assert second.join(0)

    def test_nothing_is_read_ahead(self, make):
        source = Unsized(range(20))
        engine = make()
        this = engine.open(planner(source, 4).open())
        assert source.read == 0
        engine.next_batch(this)
        assert source.read == 4

    def test_everything_runs_in_the_callers_thread(self, make):
        class Notes(Worker):
            def process(self, sample):
                return {"here": threading.current_thread() is threading.main_thread()}

        engine = make(Notes())
        (batch,) = engine.next_batch(engine.open(planner(range(2), 2).open()))
        assert batch["here"].all()


class TestWorker:
    def test_the_template_stays_as_it_is_and_the_dataset_is_the_callers(self, make):
        class Changes(Items):
            def setup(self):
                self.value = 1

            def prepare(self, sample, batch, buffers):
                sample.append(self.value)
                super().prepare(0, batch, buffers)

        template, dataset = Changes(), [[], []]
        batches(make(template, dataset), planner(dataset, 2).open())
        assert not hasattr(template, "value")
        assert template.worker_id == -1
        assert dataset == [[1], [1]]

    def test_a_template_that_cannot_be_copied(self, make):
        template = Items()
        template.lock = threading.Lock()
        with pytest.raises(TypeError, match=r"worker_template\.lock"):
            make(template)

    def test_setup_and_teardown(self, make):
        class Notes(Items):
            def setup(self):
                CALLS.append("setup")

            def teardown(self):
                CALLS.append("teardown")

        CALLS.clear()
        engine = make(Notes())
        assert CALLS == ["setup"]
        engine.stop()
        engine.stop()
        assert CALLS == ["setup", "teardown"]

    def test_an_error_in_setup(self, make):
        class Fails(Items):
            def setup(self):
                raise KeyError("in setup")

        with pytest.raises(KeyError, match="in setup"):
            make(Fails())

    def test_seeded_globals_are_the_workers_only(self, make):
        class Draws(Worker):
            def process(self, sample):
                return {"draw": random.random(), "other": float(np.random.random())}

        engine = make(Draws(), seed=3, seed_globals=True)
        state = random.getstate(), np.random.get_state()[1].tolist()
        plans = planner(range(4), 2)
        first = engine.open(plans.open())
        draws = [engine.next_batch(first)[0]["draw"].tolist() for _ in range(2)]
        assert len({*draws[0], *draws[1]}) == 4
        assert (random.getstate(), np.random.get_state()[1].tolist()) == state
        again = make(Draws(), seed=3, seed_globals=True)
        (batch,) = again.next_batch(again.open(planner(range(4), 4).open()))[:1]
        assert batch["draw"].tolist() == draws[0]


CALLS = []


class TestErrors:
    def test_a_sample_s_own(self, make):
        class Fails(Items):
            def prepare(self, sample, batch, buffers):
                if sample == 3:
                    raise LookupError("mine")
                super().prepare(sample, batch, buffers)

        engine = make(Fails(), shared_memory=3)
        this = engine.open(planner(range(9), 4).open())
        with pytest.raises(LookupError, match="mine") as caught:
            engine.next_batch(this)
        assert "sample with index 3" in caught.value.__notes__[0]
        engine.close_pass(this)
        del this, caught
        gc.collect()
        assert engine.ring.held == 0

    def test_stop_iteration_is_no_end(self, make):
        class Fails(Worker):
            def process(self, sample):
                raise StopIteration("mine")

        engine = make(Fails())
        with pytest.raises(WorkerError, match="StopIteration: mine") as caught:
            engine.next_batch(engine.open(planner(range(9), 4).open()))
        assert isinstance(caught.value.__cause__, StopIteration)
        assert (caught.value.index, caught.value.epoch) == (0, 0)

    def test_all_buffers_are_held(self, make):
        engine = make(max_buffers=3)
        this = engine.open(planner(range(40), 4).open())
        held = engine.next_batch(this)
        with pytest.raises(BufferExhausted) as caught:
            engine.next_batch(this)
        assert (caught.value.held, caught.value.limit) == (2, 3), "one is of the next batch"
        del held, caught
        assert items(engine.next_batch(this)) == [4, 5, 6, 7], "nothing was lost"

    def test_stopped(self, make):
        engine = make()
        this = engine.open(planner(range(8), 4).open())
        (batch, _) = engine.next_batch(this)
        engine.stop()
        for use in (lambda: engine.next_batch(this), lambda: engine.open(planner([1], 1).open())):
            with pytest.raises(LoaderClosed):
                use()
        assert batch["item"].tolist() == [0, 1]


def test_facts(make):
    engine = make(shared_memory=4)
    this = engine.open(planner(range(8), 4).open())
    held = engine.next_batch(this)
    facts = engine.facts()
    assert (facts.held, facts.filling, facts.ready) == (2, 0, 0)
    assert facts.seconds_reading > 0
    assert len(facts.busy_seconds) == 1
    assert facts.busy_seconds[0] > 0
    assert facts.up_since is not None
    assert not facts.reads_ahead
    assert not facts.works_ahead
    del held
    assert engine.facts().free == 4


def test_an_abandoned_engine_is_stopped():
    CALLS.clear()

    class Notes(Items):
        def teardown(self):
            CALLS.append("teardown")

    engine = LocalEngine(EngineOptions(Notes(), range(4), 2, 0))
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None
    assert CALLS == ["teardown"]
