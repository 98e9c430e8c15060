import gc
import signal

import pytest

from crumpets_like import LoaderClosed
from crumpets_like.broker.engine import Engine
from crumpets_like.broker.options import EngineOptions
from crumpets_like.independent import MOST_SAMPLES, BatchIterator, BatchPlan, CollateWorker
from tests.support.loading import wait_until

BATCHES = [[0, 1, 2], [7], [5, 4, 3, 3, 3, 3, 3, 3]]


def nested(samples):
    return samples, {"sum": sum(samples), "each": tuple(samples)}


@pytest.fixture
def make_engine():
    engines = []

    def make(dataset, collate=nested, start_method="thread", **options):
        options = EngineOptions(
            CollateWorker(collate), dataset, MOST_SAMPLES, 2, start_method=start_method, **options
        )
        engines.append(Engine(options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.stop()


def iterate(engine, batches=BATCHES, epoch=0, window=3):
    return BatchIterator(engine, BatchPlan(epoch, batches), window)


@pytest.mark.parametrize("start_method", ["thread", "fork"])
def test_batches_of_any_length_and_structure(make_engine, start_method):
    engine = make_engine(list(range(0, 80, 10)), start_method=start_method)
    expected = [nested([10 * index for index in batch]) for batch in BATCHES]
    assert list(iterate(engine)) == expected
    assert list(iterate(engine, [])) == []


def test_keys_that_are_no_indices(make_engine):
    engine = make_engine({"a": 1, "b": 2, ("c", 3): 4})
    found = list(iterate(engine, [["a", ("c", 3)], ["b"]]))
    assert [samples for samples, _ in found] == [[1, 4], [2]]


def test_iterators_beside_each_other(make_engine):
    engine = make_engine(range(1000))
    batches = [[n] for n in range(40)]
    iterators = [iterate(engine, batches, epoch, window=2) for epoch in range(4)]
    found = [[] for _ in iterators]
    for _ in range(20):
        for iterator, seen in zip(iterators[::-1], found, strict=True):
            seen.append(next(iterator)[0][0])
    assert found == [list(range(20))] * 4
    assert [samples[0] for samples, _ in iterators[0]] == list(range(20, 40))


def test_what_is_read_of_the_sampler(make_engine):
    engine, read = make_engine(range(100)), []

    def batches():
        for n in range(10):
            read.append(n)
            yield [n]

    iterator = iterate(engine, batches(), window=4)
    assert read == [0, 1, 2, 3]
    next(iterator)
    next(iterator)
    assert read == [0, 1, 2, 3, 4, 5], "one more for each that was received"


def test_one_that_is_dropped_is_closed_by_the_next_use(make_engine):
    engine = make_engine(range(1000))
    iterator = iterate(engine, [[n] for n in range(1000)], window=5)
    next(iterator)
    del iterator
    gc.collect()
    assert list(iterate(engine)) == [nested(batch) for batch in BATCHES]
    assert wait_until(lambda: engine.facts().filling == 0)
    assert (engine.facts().ready, engine.facts().held) == (0, 0)


def test_an_error_ends_the_iterator_only(make_engine):
    def collate(samples):
        if 4 in samples:
            raise LookupError("four")
        return samples

    engine = make_engine(range(10), collate)
    iterator, other = iterate(engine), iterate(engine, [[1], [2]])
    assert [next(iterator), next(iterator)] == [[0, 1, 2], [7]]
    with pytest.raises(LookupError, match="four"):
        next(iterator)
    assert list(iterator) == []
    assert list(other) == [[1], [2]]


def test_a_signal_handler_that_raises_ends_the_engine(make_engine, monkeypatch):
    engine = make_engine(range(10))
    iterator = iterate(engine)

    def interrupted(this):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(engine, "next_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert engine.stopped


def test_after_the_end_of_the_engine(make_engine):
    engine = make_engine(range(10))
    iterator = iterate(engine)
    engine.stop()
    with pytest.raises(LoaderClosed):
        next(iterator)
