"""When samples are read: by which call, and how many ahead."""

import gc
import threading

import pytest

from crumpets_like.gluon import ArrayDataset, DataLoader, SimpleDataset
from tests.support.gluon import MODES, WORKERS, ReadLog, numbers, settle

TEN = list(range(10))


def reads_of_the_first(loader, log):
    settle(loader)
    return log.numbers().count(0)


def make(tmp_path, **arguments):
    log = ReadLog(tmp_path / "log")
    dataset = ArrayDataset(TEN, TEN[::-1]).transform_first(log)
    return DataLoader(dataset, 1, num_workers=1, **arguments), log


class TestAutoReload:
    """The example in gluon's own documentation."""

    @pytest.mark.parametrize("thread_pool", [False, True])
    def test_off(self, tmp_path, thread_pool):
        loader, log = make(tmp_path, thread_pool=thread_pool)
        assert reads_of_the_first(loader, log) == 0
        for count in (1, 2, 3):
            assert len(list(loader)) == 10
            assert reads_of_the_first(loader, log) == count

    @pytest.mark.parametrize("thread_pool", [False, True])
    def test_on(self, tmp_path, thread_pool):
        loader, log = make(tmp_path, thread_pool=thread_pool, auto_reload=True)
        assert reads_of_the_first(loader, log) == 1
        it, it2, it3, it4 = (iter(loader) for _ in range(4))
        assert reads_of_the_first(loader, log) == 1
        next(it2)  # takes the pass that was read ahead
        assert reads_of_the_first(loader, log) == 1
        next(it)  # there is none any more
        assert reads_of_the_first(loader, log) == 2
        assert len(list(it3)) == 10  # its own pass, and one is read ahead at the end
        assert reads_of_the_first(loader, log) == 4
        assert len(list(it)) == 9
        assert reads_of_the_first(loader, log) == 4
        next(it4)
        assert reads_of_the_first(loader, log) == 4
        assert len(list(it2)) == len(list(it4)) == 9


@pytest.mark.parametrize("mode", WORKERS)
class TestPrefetch:
    def test_one_more_with_each_next(self, tmp_path, mode):
        for number, (prefetch, ahead) in enumerate([(None, 4), (3, 3), (-2, 0)]):
            log = ReadLog(tmp_path / str(number))
            dataset = SimpleDataset(list(range(40))).transform(log)
            loader = DataLoader(dataset, 1, prefetch=prefetch, **mode)
            it = iter(loader)
            for asked in range(1, 5):
                next(it)
                settle(loader)
                assert sorted(log.numbers()) == list(range(ahead + asked))

    def test_of_a_pass_ahead(self, tmp_path, mode):
        log = ReadLog(tmp_path / "log")
        dataset = SimpleDataset(list(range(40))).transform(log)
        loader = DataLoader(dataset, 1, prefetch=3, auto_reload=True, **mode)
        settle(loader)
        assert sorted(log.numbers()) == list(range(3))
        it = iter(loader)
        for asked in range(1, 4):
            next(it)
            settle(loader)
            assert sorted(log.numbers()) == list(range(3 + asked))
        assert len(list(it)) == 37
        settle(loader)
        assert sorted(log.numbers()) == sorted([*range(40), *range(3)])

    def test_nothing_is_read_ahead_of_the_next_pass(self, tmp_path, mode):
        log = ReadLog(tmp_path / "log")
        loader = DataLoader(SimpleDataset(TEN).transform(log), 2, prefetch=20, **mode)
        list(loader)
        settle(loader)
        assert sorted(log.numbers()) == TEN


def test_without_workers_nothing_is_read_ahead(tmp_path):
    log = ReadLog(tmp_path / "log")
    loader = DataLoader(SimpleDataset(TEN).transform(log), 2, prefetch=3, auto_reload=True)
    loader.refresh()
    it = iter(loader)
    assert log.numbers() == []
    next(it)
    assert log.numbers() == [0, 1]
    list(it)
    assert log.numbers() == TEN


class TestRefreshAndClean:
    def test_refresh(self, tmp_path):
        loader, log = make(tmp_path)
        loader.refresh()
        assert reads_of_the_first(loader, log) == 1
        assert len(list(loader)) == 10
        assert reads_of_the_first(loader, log) == 1
        assert len(list(loader)) == 10
        assert reads_of_the_first(loader, log) == 2

    def test_refresh_replaces_what_waits(self, tmp_path):
        loader, log = make(tmp_path, auto_reload=True)
        assert reads_of_the_first(loader, log) == 1
        loader.refresh()
        assert reads_of_the_first(loader, log) == 2
        assert len(list(loader)) == 10
        assert reads_of_the_first(loader, log) == 3

    def test_clean(self, tmp_path):
        loader, log = make(tmp_path, auto_reload=True)
        assert reads_of_the_first(loader, log) == 1
        loader.clean()
        loader.clean()
        next(iter(loader))
        assert reads_of_the_first(loader, log) == 2


@pytest.mark.parametrize("mode", MODES)
class TestIndependentIterators:
    def test_side_by_side(self, mode):
        loader = DataLoader(TEN, 3, **mode)
        iterators = [iter(loader) for _ in range(4)]
        rounds = [[next(it).tolist() for it in iterators] for _ in range(4)]
        assert rounds == [[batch] * 4 for batch in ([0, 1, 2], [3, 4, 5], [6, 7, 8], [9])]
        assert [list(it) for it in iterators] == [[]] * 4

    def test_one_is_left_while_others_go_on(self, mode):
        loader = DataLoader(TEN, 1, prefetch=2, **mode)
        first, second = iter(loader), iter(loader)
        assert (next(first).item(), next(second).item(), next(first).item()) == (0, 0, 1)
        del first
        gc.collect()
        assert numbers(loader) == TEN
        assert [batch.item() for batch in second] == TEN[1:]

    def test_more_than_there_are_workers(self, mode):
        loader = DataLoader(TEN, 2, prefetch=0, **mode)
        iterators = [iter(loader) for _ in range(20)]
        assert [numbers(it) for it in iterators] == [TEN] * 20

    def test_nested_loops(self, mode):
        loader = DataLoader(TEN[:4], 2, **mode)
        pairs = [(a.tolist(), b.tolist()) for a in loader for b in loader]
        assert pairs == [(a, b) for a in ([0, 1], [2, 3]) for b in ([0, 1], [2, 3])]


def test_an_iterator_that_threads_share():
    entered, go = threading.Event(), threading.Event()

    def wait(number):
        entered.set()
        assert go.wait(20)
        return number

    it = iter(DataLoader(SimpleDataset([0, 1]).transform(wait), 1))
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(next(it).item())) for _ in range(2)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive(), "it waits for the first"
    go.set()
    for thread in threads:
        thread.join()
    assert seen == [0, 1]
