"""What an engine does beyond its parts: start, several passes at once, and every way of ending."""

import contextlib
import gc
import mmap
import os
import threading
import time
import weakref

import psutil
import pytest

from crumpets_like import BufferExhausted, LoaderClosed, LoaderTimeout, TurboDataLoader
from crumpets_like.broker import parts as parts_module
from crumpets_like.broker.engine import Engine
from crumpets_like.broker.options import EngineOptions
from crumpets_like.broker.processes import THREAD_NAME
from crumpets_like.broker.producer import Producer
from crumpets_like.broker.ring import BufferRing
from tests.support.loading import START_METHODS, Items, items, wait_until
from tests.support.planning import Unsized, planner


def make_engine(dataset, nworkers=2, template=None, **options):
    options = {"start_method": "thread", **options}
    return Engine(EngineOptions(template or Items(), dataset, 4, nworkers, **options))


def rest(engine, this):
    found = []
    while (batch := engine.next_batch(this)) is not None:
        found += items(batch)
    return found


def processes():
    return psutil.Process().children(recursive=True)


class TestPasses:
    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    def test_several_at_once(self, start_method):
        engine = make_engine(range(100), start_method=start_method)
        try:
            passes = [engine.open(planner(range(100), 8, shuffle=True).open()) for _ in range(3)]
            found = [[] for _ in passes]
            for _ in range(13):
                for this, seen in zip(passes, found, strict=True):
                    seen += items(engine.next_batch(this))
            assert all(engine.next_batch(this) is None for this in passes)
            assert all(sorted(seen) == list(range(100)) for seen in found)
        finally:
            engine.stop()

    def test_one_can_be_left_while_another_goes_on(self):
        engine = make_engine(range(100))
        try:
            first, second = (engine.open(planner(range(100), 8).open()) for _ in range(2))
            engine.next_batch(first)
            engine.next_batch(second)
            engine.close_pass(first)
            engine.close_pass(first)
            assert rest(engine, second) == list(range(8, 100))
            facts = engine.facts()
            assert (facts.filling, facts.ready, facts.held) == (0, 0, 0)
        finally:
            engine.stop()

    def test_two_that_share_a_window_of_their_own(self):
        engine = make_engine(range(8))
        try:
            engine.open(planner(range(8), 4).open())
            second = engine.open(planner(range(8), 4).open())
            third = engine.open(planner(range(8), 4).open(), after=second)
            assert second.window is third.window is not engine._parts.producer.window
            engine.close_pass(second)
            assert rest(engine, third) == list(range(8))
            engine.close_pass(third)
        finally:
            engine.stop()

    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    def test_one_that_nobody_reads_keeps_no_other_waiting(self, start_method):
        engine = make_engine(range(100), start_method=start_method)
        try:
            plans = [planner(range(100), 4).open() for _ in range(3)]
            first, second, third = (engine.open(plan, window=3) for plan in plans)
            assert rest(engine, second) == list(range(100))
            assert items(engine.next_batch(first)) == [0, 1, 2, 3]
            engine.abandon(first)
            assert rest(engine, third) == list(range(100))
            assert first.cancelled
            facts = engine.facts()
            assert (facts.filling, facts.ready, facts.held) == (0, 0, 0)
        finally:
            engine.stop()

    def test_of_samples(self):
        engine = make_engine(None)
        try:
            for _ in range(2):
                this = engine.open(planner(Unsized(range(10)), 4).open())
                assert rest(engine, this) == list(range(10))
        finally:
            engine.stop()

    def test_every_buffer_is_held(self):
        engine = make_engine(range(100), shared_memory=2, max_buffers=3)
        try:
            this = engine.open(planner(range(100), 4).open())
            held = [engine.next_batch(this) for _ in range(3)]
            with pytest.raises(BufferExhausted) as caught:
                engine.next_batch(this)
            assert (caught.value.held, caught.value.limit) == (3, 3)
            del held, caught
            assert len(rest(engine, this)) == 88
        finally:
            engine.stop()

    def test_fewer_buffers_than_were_asked_for(self, monkeypatch):
        """Where the system maps less than max_buffers, that is the limit."""
        space = mmap.PAGESIZE + 3 * 64  # status page and slots
        monkeypatch.setattr("crumpets_like.broker.ring.address_space_left", lambda: space)
        engine = make_engine(range(100), shared_memory=2, max_buffers=50, timeout=10)
        try:
            this = engine.open(planner(range(100), 4).open())
            held = [engine.next_batch(this) for _ in range(3)]
            with pytest.raises(BufferExhausted) as caught:
                engine.next_batch(this)
            assert caught.value.limit == 3
            assert "ulimit -f" in str(caught.value)
            del held, caught
        finally:
            engine.stop()


class Bad:
    """A dataset that can read no sample between 4 and 8, nor 9."""

    def __len__(self):
        return 14

    def __getitem__(self, index):
        if 4 <= index < 8 or index == 9:
            raise ValueError(index)
        return index


class TestSkipped:
    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    @pytest.mark.parametrize(
        ("batch_size", "batches", "delivered"),
        [
            (4, [[0, 1, 2, 3], [8, 10, 11], [12, 13]], [4, 7, 9]),
            (8, [[0, 1, 2, 3], [8, 10, 11, 12, 13]], [4, 9]),
        ],
    )
    def test_empty_mini_batches_are_left_out(self, start_method, batch_size, batches, delivered):
        engine = make_engine(Bad(), start_method=start_method, on_error="skip")
        try:
            this = engine.open(planner(range(14), batch_size).open())
            found, counts = [], []
            while (batch := engine.next_batch(this)) is not None:
                assert all(len(mini_batch["item"]) for mini_batch in batch)
                found.append(items(batch))
                counts.append(this.delivered)
                del batch
            assert (found, counts) == (batches, delivered)
            facts = engine.facts()
            assert (facts.skipped, facts.held, facts.filling, facts.ready) == (5, 0, 0, 0)
        finally:
            engine.stop()

    def test_a_pass_of_nothing(self):
        engine = make_engine(Bad(), on_error="skip")
        try:
            for _ in range(20):  # more than there are slots
                this = engine.open(planner(range(14), 4, sampler=[4, 5, 6, 7, 9]).open())
                assert engine.next_batch(this) is None
                assert this.delivered == 0
        finally:
            engine.stop()


class Sleeps(Items):
    """Takes its time, but gets on."""

    def prepare(self, sample, batch, buffers):
        time.sleep(0.05)
        super().prepare(sample, batch, buffers)


class TestTimeout:
    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    def test_without_a_culprit(self, start_method):
        """Nobody is ended, and it can be asked again."""
        options = {"start_method": start_method, "timeout": 0.4}
        engine = Engine(EngineOptions(Sleeps(), range(40), 40, 1, **options))
        try:
            assert wait_until(lambda: engine.facts().up_since)
            pids = {process.pid for process in processes()}
            this = engine.open(planner(range(40), 40).open())
            with pytest.raises(LoaderTimeout, match=r"within 0\.4 seconds") as caught:
                engine.next_batch(this)
            assert (caught.value.seconds, caught.value.where) == (0.4, None)
            found = None
            while found is None:
                with contextlib.suppress(LoaderTimeout):
                    found = engine.next_batch(this)
            assert items(found) == list(range(40))
            assert {process.pid for process in processes()} == pids
        finally:
            engine.stop()


class TestStop:
    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_nothing_is_left(self, start_method):
        engine = make_engine(range(100), start_method=start_method)
        this = engine.open(planner(range(100), 8).open())
        (mini_batch, _) = engine.next_batch(this)
        assert processes()
        engine.stop()
        engine.stop()
        assert processes() == []
        assert [t for t in threading.enumerate() if t.name.startswith(THREAD_NAME)] == []
        with pytest.raises(LoaderClosed):
            engine.next_batch(this)
        with pytest.raises(LoaderClosed):
            engine.open(planner(range(100), 8).open())
        assert mini_batch["item"].tolist() == [0, 1, 2, 3]

    def test_while_another_thread_waits(self):
        engine = make_engine(Gated(), nworkers=1)
        this = engine.open(planner(range(8), 4).open())
        caught = []

        def wait():
            try:
                engine.next_batch(this)
            except LoaderClosed as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert GATE.entered.wait(10)

        def open_gate():  # once the stop is under way: before, the batch would come
            assert wait_until(lambda: engine._parts.stopped)
            GATE.event.set()

        opener = threading.Thread(target=open_gate)
        opener.start()
        engine.stop()
        thread.join(10)
        opener.join(10)
        assert len(caught) == 1

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_of_the_user_changes_nothing(self):
        engine = make_engine(range(100), start_method="fork")
        this = engine.open(planner(range(100), 8).open())
        engine.next_batch(this)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # holds copies of all descriptors while the parent stops
            engine.close_pass(this)
            engine._finalizer()
            os.close(write)
            os.read(read, 1)
            os._exit(engine.usable or this.cancelled)
        try:
            assert rest(engine, this) == list(range(8, 100))
            engine.stop()
            assert [process.pid for process in processes()] == [pid]
        finally:
            os.close(read)
            os.close(write)
            status = os.waitpid(pid, 0)[1]
        assert status == 0


class Gate:
    def __init__(self):
        self.entered = threading.Event()
        self.event = threading.Event()


GATE = Gate()


class Gated:
    """A dataset (of thread workers) that waits, and then lets the garbage collector run."""

    def __init__(self):
        GATE.__init__()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        GATE.entered.set()
        assert GATE.event.wait(20)
        gc.collect()
        return index


class Samples:
    """The same as an iterable, whose thread is in the middle of reading."""

    def __init__(self):
        GATE.__init__()

    def __iter__(self):
        for index in range(8):
            GATE.entered.set()
            assert GATE.event.wait(20)
            gc.collect()
            yield index


def all_ended():
    return not processes() and not any(
        thread.name.startswith(THREAD_NAME) for thread in threading.enumerate()
    )


class TestAbandoned:
    """Nobody stops it: the garbage collector does, in whatever thread it runs."""

    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    def test_in_the_callers_thread(self, start_method):
        engine = make_engine(range(100), start_method=start_method)
        engine.next_batch(engine.open(planner(range(100), 4).open()))
        engine = weakref.ref(engine)
        gc.collect()
        assert engine() is None
        assert all_ended()

    @pytest.mark.parametrize("fails", [False, True])
    def test_after_an_error(self, fails):
        """The traceback of what was raised leads to the engine."""
        engine = make_engine(["no number"])
        if fails:
            engine._parts.consumer.fail(ValueError("all of it"))
        this = engine.open(planner(range(1), 4).open())
        with pytest.raises(ValueError, match="all of it" if fails else "invalid literal") as caught:
            engine.next_batch(this)
        assert engine.knows(caught.value)
        assert engine.usable == (not fails)
        del this, caught
        engine = weakref.ref(engine)
        gc.collect()
        assert engine() is None
        assert all_ended()

    @pytest.mark.parametrize("make", [Gated, Samples])
    def test_in_a_thread_of_its_own(self, make):
        gc.collect()
        gc.disable()
        try:
            loader = TurboDataLoader(make(), 4, Items(), 1, start_method="thread").start()
            iterator = iter(loader)
            loader.user = iterator  # a cycle: it knows the loader, which knows it
            assert GATE.entered.wait(10)
            reference = weakref.ref(loader)
            del loader, iterator
            assert reference() is not None
            GATE.event.set()
            assert wait_until(lambda: reference() is None)
            assert wait_until(all_ended)
        finally:
            gc.enable()

    def test_while_an_iterable_waits_for_a_slot(self):
        engine = make_engine(None)
        this = engine.open(planner(Unsized(range(1000)), 4).open())
        assert wait_until(lambda: this.requested == 4)
        thread = this.thread
        del engine
        gc.collect()
        thread.join(10)
        assert not thread.is_alive()


class Unpicklable(Items):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class TestFailedStart:
    """Whatever fails at the start: its error is raised, and nothing is left."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self):
        yield
        assert all_ended()  # descriptors, files: see the leak guard

    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_a_template_that_cannot_be_pickled(self, start_method):
        with pytest.raises(TypeError, match=r"worker_template\.lock cannot be sent"):
            make_engine(range(4), template=Unpicklable(), start_method=start_method)

    @pytest.mark.parametrize("start_method", ["fork", "thread"])
    @pytest.mark.parametrize(
        "step",
        ["sweep", "Payload", "ring_for", "make_addresses", "Consumer", "Producer", "Settings"],
    )
    def test_any_step(self, monkeypatch, step, start_method):
        def fail(*arguments, **options):
            raise OSError(f"{step} failed")

        monkeypatch.setattr(parts_module, step, fail)
        with pytest.raises(OSError, match=f"{step} failed"):
            make_engine(range(4), start_method=start_method)

    def test_the_last_step(self, monkeypatch):
        def fail(self):
            raise MemoryError("touch failed")

        monkeypatch.setattr(BufferRing, "touch", fail)
        with pytest.raises(MemoryError, match="touch failed"):
            make_engine(range(4))

    def test_ctrl_c(self, monkeypatch):
        def fail(self, *arguments, **options):
            raise KeyboardInterrupt

        monkeypatch.setattr(Producer, "__init__", fail)
        with pytest.raises(KeyboardInterrupt):
            make_engine(range(4), start_method="fork")
