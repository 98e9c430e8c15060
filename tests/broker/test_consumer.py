import gc
import logging
import os
import pickle
import threading
import time
import weakref

import numpy as np
import pytest
import zmq

from crumpets_like import LoaderClosed, LoaderError, LoaderTimeout
from crumpets_like.broker import consumer as consumer_module
from crumpets_like.broker.assembly import RawBatch
from crumpets_like.broker.buffers import BufferSpec, SlotLayout
from crumpets_like.broker.consumer import Consumer
from crumpets_like.broker.encoding import encode
from crumpets_like.broker.failures import describe_failure, pack_errors
from crumpets_like.broker.protocol import (
    Failure,
    Item,
    Record,
    Results,
    Segment,
    Status,
    WorkersUp,
)
from crumpets_like.broker.ring import BufferRing
from crumpets_like.broker.segment import NO_SLOT
from crumpets_like.broker.stream import EMPTY, END
from crumpets_like.errors import WorkerTraceback
from tests.support.loading import wait_until
from tests.support.sockets import GARBAGE, Peers, addresses

FIELDS = {"x": BufferSpec((2,), "i4")}


@pytest.fixture
def peers():
    with Peers() as opened:
        yield opened


@pytest.fixture
def made(peers):
    """A consumer that runs, a peer for its results, and one for its control stream."""
    with addresses("consume", "control") as (results, control):
        consumer = Consumer(results, control)
        consumer.start()
        yield consumer, peers.open(zmq.PUSH, results), peers.open(zmq.PUSH, control)
        consumer.stop()


@pytest.fixture
def ring():
    made = BufferRing(SlotLayout(FIELDS, 4), 3, 1, max_buffers=4)
    yield made
    made.close()


def item(number, *, slot=NO_SLOT, pass_id=0, rows=2, status=Status.DONE, frames=(2,)):
    """A finished mini-batch; a segment of one row for each number of frames."""
    segments = [Segment(row, 1, count, row, 0) for row, count in enumerate(frames)]
    return Item(pass_id, number, slot, rows, int(status), segments)


def results(*items):
    return Results(0.5, 7, list(items))


def send_values(peer, *numbers):
    """Send mini-batches without slots that hold their number."""
    frames = [frame for number in numbers for frame in encode({"n": [number]}, None)]
    peer.send(results(*[item(number, frames=(1,)) for number in numbers]), *frames)


class TestRetrieve:
    def test_in_order(self, made):
        consumer, peer, _ = made
        for numbers in [(2,), (1, 4), (0, 3), (5,)]:
            send_values(peer, *numbers)
        assert [consumer.retrieve() for _ in range(6)] == [{"n": [n]} for n in range(6)]
        assert consumer.seconds_per_sample == 0.5
        assert consumer.chunk_samples == 7

    def test_data_is_what_came(self, made):
        consumer, peer, _ = made
        peer.send(results(item(0, frames=(2, 1))), b"a", b"b", b"c")
        raw = consumer.retrieve_data()
        segments = [Segment(0, 1, 2, 0, 0), Segment(1, 1, 1, 1, 0)]
        assert raw == RawBatch(NO_SLOT, 2, Status.DONE, segments, [b"a", b"b", b"c"])

    def test_frames_go_to_the_items_they_belong_to(self, made):
        consumer, peer, _ = made
        items = [item(0, frames=(1,)), item(1, status=Status.FAILED, frames=()), item(2)]
        peer.send(results(*items), b"a", b"error", b"b", b"c")
        frames = [consumer.retrieve_data().frames for _ in range(3)]
        assert frames == [[b"a"], [b"error"], [b"b", b"c"]]

    def test_none_after_stop(self, made):
        consumer, peer, _ = made
        send_values(peer, 0)
        assert consumer.retrieve() == {"n": [0]}
        consumer.stop()
        consumer.stop()
        assert consumer.retrieve_data() is None
        assert consumer.retrieve_data() is None
        with pytest.raises(LoaderClosed):
            consumer.retrieve()

    def test_none_after_stop_also_if_something_was_left(self, made):
        consumer, peer, _ = made
        send_values(peer, 0, 1)
        assert consumer.retrieve() == {"n": [0]}
        consumer.stop()
        assert consumer.retrieve_data() is None

    def test_stop_ends_a_wait_in_another_thread(self, made):
        consumer, _, _ = made
        got = []
        thread = threading.Thread(target=lambda: got.append(consumer.retrieve_data()))
        thread.start()
        consumer.stop()
        thread.join(10)
        assert got == [None]

    def test_the_exception_of_a_sample(self, made):
        consumer, peer, _ = made
        try:
            raise KeyError("the sample")
        except KeyError as error:
            frame = describe_failure(error, "In worker 3.")
        peer.send(results(item(0, status=Status.FAILED, frames=())), frame)
        with pytest.raises(KeyError, match="the sample") as caught:
            consumer.retrieve()
        assert caught.value.__notes__ == ["In worker 3."]
        assert isinstance(caught.value.__cause__, WorkerTraceback)
        assert "test_the_exception_of_a_sample" in str(caught.value.__cause__)

    def test_the_time_is_limited_once_the_workers_are_up(self, made):
        consumer, peer, control = made
        started = []

        def wait():
            started.append(time.monotonic())
            with pytest.raises(LoaderTimeout, match=r"within 0\.2 seconds"):
                consumer.retrieve(timeout=0.2)
            started.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.4)
        assert thread.is_alive(), "workers are not up: starting takes as long as it takes"
        control.send(WorkersUp(1))
        up = time.monotonic()
        thread.join(10)
        assert started[1] - up >= 0.15
        send_values(peer, 0)
        assert consumer.retrieve(timeout=10) == {"n": [0]}, "it can be asked again"


class TestSkipped:
    def test_some_and_all(self, made, ring):
        """An empty mini-batch is marked as such, its slot comes back, and each is counted."""
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        items, frames = [], []
        for number, rows in enumerate([[0], [], [0, 1], [1]]):
            segments = [Segment(0, 2, int(bool(rows)), 5, len(rows))]
            items.append(Item(0, number, ring.take(), 2, int(Status.DONE), segments))
            if rows:
                frames.append(pack_errors([(row, describe_failure(KeyError())) for row in rows]))
        peer.send(results(*items), *frames)
        found = []
        for _ in range(4):
            batch = consumer.retrieve()
            found.append((batch if batch is EMPTY else len(batch["x"]), consumer.skipped))
            del batch
        assert found == [(1, 1), (2, 1), (EMPTY, 3), (1, 4)]
        assert (ring.held, ring.idle) == (0, 4)
        assert repr(EMPTY) == "EMPTY"


class TestControlStream:
    def test_an_exception_is_raised(self, made):
        consumer, peer, control = made
        send_values(peer, 0)
        assert wait_until(lambda: consumer._default._ready.qsize() == 1)
        control.send(Failure(2), describe_failure(OSError(5, "text"), "a note"))
        assert consumer.retrieve() == {"n": [0]}, "what was ready comes first"
        for retrieve in (consumer.retrieve, consumer.retrieve_data, consumer.retrieve):
            with pytest.raises(OSError, match="text"):
                retrieve()
        assert consumer.failure.args == (5, "text")

    def test_it_ends_all_passes(self, made):
        consumer, _, control = made
        before = consumer.open(1, in_order=True)
        control.send(Failure(-1), describe_failure(ValueError("first")))
        with pytest.raises(ValueError, match="first"):
            consumer.retrieve(before)
        control.send(Failure(-1), describe_failure(ValueError("second")))
        with pytest.raises(ValueError, match="first"):
            consumer.retrieve(consumer.open(2, in_order=True))

    def test_it_wakes_who_waits_for_a_slot(self, made, ring):
        consumer, _, control = made
        consumer.set_buffer_manager(ring)
        control.send(Failure(-1), describe_failure(ValueError()))
        assert ring.wait_for_return(10)

    def test_log_records_reach_their_handlers(self, made, caplog):
        consumer, peer, control = made
        record = logging.makeLogRecord({"name": "mine", "levelno": 30, "msg": "text"})
        with caplog.at_level(logging.WARNING):
            control.send(Record(2), b"no record at all")
            control.send(Record(2), pickle.dumps(record))
            assert wait_until(lambda: len(caplog.records) == 2)
        assert [(r.name, r.getMessage()) for r in caplog.records][1:] == [("mine", "text")]
        assert consumer.failure is None
        send_values(peer, 0)
        assert consumer.retrieve() == {"n": [0]}

    def test_a_log_handler_that_exits_does_not_end_the_run(self, made, caplog):
        """It runs in the receiving thread, which others depend on."""
        consumer, peer, control = made

        class Exits(logging.Handler):
            def emit(self, record):
                raise SystemExit(3)

        logger, handler = logging.getLogger("mine"), Exits()
        logger.addHandler(handler)
        try:
            record = logging.makeLogRecord({"name": "mine", "levelno": 30, "msg": "text"})
            control.send(Record(2), pickle.dumps(record))
            assert wait_until(lambda: "could not be handled" in caplog.text)
        finally:
            logger.removeHandler(handler)
        send_values(peer, 0)
        assert consumer.retrieve() == {"n": [0]}
        assert consumer._thread.is_alive()

    def test_a_class_that_is_not_known_here(self, made):
        consumer, _, control = made
        control.send(Failure(0), b"no pickle at all")
        with pytest.raises(LoaderError, match="could not be unpickled"):
            consumer.retrieve()

    def test_workers_are_up(self, made):
        consumer, _, control = made
        assert consumer.up_since is None
        before = time.perf_counter()
        control.send(WorkersUp(2))
        assert wait_until(lambda: consumer.up_since is not None)
        assert before <= consumer.up_since <= time.perf_counter()


class TestGarbage:
    @pytest.mark.parametrize("number", range(len(GARBAGE)))
    @pytest.mark.parametrize("stream", ["results", "control"])
    def test_is_dropped_and_logged_and_the_run_goes_on(self, made, caplog, stream, number):
        consumer, peer, control = made
        (peer if stream == "results" else control).send_raw(GARBAGE[number])
        with caplog.at_level(logging.WARNING):
            assert wait_until(lambda: caplog.records)
        assert "dropped a" in caplog.text
        assert len(caplog.text) < 1000
        send_values(peer, 0)
        assert consumer.retrieve() == {"n": [0]}

    def test_a_message_on_the_wrong_stream(self, made, caplog):
        consumer, peer, control = made
        with caplog.at_level(logging.WARNING):
            peer.send(WorkersUp(1))
            control.send(results())
            assert wait_until(lambda: len(caplog.records) == 2)
        assert "a WorkersUp on the stream of results" in caplog.text
        assert "a Results on the control stream" in caplog.text
        assert consumer.up_since is None


class TestSlots:
    def test_arrays_are_views_of_the_ring(self, made, ring):
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        slot = ring.take()
        rows = ring.layout.rows_at(ring.mapping, ring.geometry.offset(slot), 0, 4)
        rows["x"][...] = np.arange(8).reshape(4, 2)
        peer.send(results(item(0, slot=slot, rows=3, frames=(0,))))
        batch = consumer.retrieve()
        assert list(batch) == ["x"]
        assert batch["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert ring.held == 1
        batch["x"][0, 0] = 99
        assert rows["x"][0, 0] == 99
        del batch
        assert ring.held == 0

    @pytest.mark.parametrize(
        ("status", "pass_id"),
        [(Status.CANCELLED, 0), (Status.DONE, 77), (Status.FAILED, 77), (Status.CANCELLED, 77)],
    )
    def test_what_nobody_wants_goes_back(self, made, ring, status, pass_id):
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        slot = ring.take()
        unwanted = item(0, slot=slot, status=status, pass_id=pass_id, frames=())
        peer.send(results(unwanted), *([b"error"] if status == Status.FAILED else []))
        assert wait_until(lambda: ring.idle == 3)

    def test_a_failed_mini_batch_gives_its_slot_back(self, made, ring):
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        failed = item(0, slot=ring.take(), status=Status.FAILED, frames=())
        peer.send(results(failed), describe_failure(ValueError("mine")))
        with pytest.raises(ValueError, match="mine") as caught:
            consumer.retrieve()
        assert consumer.raised == id(caught.value)
        assert (ring.held, ring.idle) == (0, 3)

    @pytest.mark.parametrize("in_order", [True, False])
    def test_a_pass_that_is_closed_while_a_mini_batch_arrives(
        self, made, ring, monkeypatch, in_order
    ):
        """It arrives between the caller's last look and the thread's: somebody gives it back."""
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        stream = consumer.open(5, in_order=in_order)
        plain = stream.add

        def add(number, batch):
            consumer.close(5)
            plain(number, batch)

        monkeypatch.setattr(stream, "add", add)
        peer.send(results(item(0, slot=ring.take(), pass_id=5, frames=(0,))))
        assert wait_until(lambda: ring.idle == 3)

    def test_a_closed_pass_gives_back_what_was_ready_and_what_comes_late(self, made, ring):
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        stream = consumer.open(5, in_order=True)
        slots = [ring.take() for _ in range(3)]
        ready = [item(n, slot=slots[n], pass_id=5, frames=(0,)) for n in (0, 2)]
        peer.send(results(*ready))
        assert wait_until(lambda: stream.received == 2)
        consumer.close(5)
        consumer.close(5)
        assert ring.idle == 2
        peer.send(results(item(1, slot=slots[1], pass_id=5, frames=(0,))))
        assert wait_until(lambda: ring.idle == 3)
        with pytest.raises(LoaderClosed):
            consumer.retrieve(stream)


class TestPasses:
    def test_several_at_once(self, made):
        consumer, peer, _ = made
        streams = {number: consumer.open(number, in_order=True) for number in (1, 2)}
        frames = [f for n in range(4) for f in encode({"n": [n]}, None)]
        items = [item(n // 2, pass_id=1 + n % 2, frames=(1,)) for n in range(4)]
        peer.send(results(*items), *frames)
        assert [consumer.retrieve(streams[2]) for _ in range(2)] == [{"n": [1]}, {"n": [3]}]
        assert [consumer.retrieve(streams[1]) for _ in range(2)] == [{"n": [0]}, {"n": [2]}]

    def test_end(self, made):
        consumer, peer, _ = made
        send_values(peer, 1, 0)
        consumer._default.end(2)
        assert [consumer.retrieve() for _ in range(2)] == [{"n": [0]}, {"n": [1]}]
        assert consumer.retrieve() is END
        assert consumer.retrieve_data() is END
        assert repr(END) == "END"


class TestLife:
    def test_the_error_of_the_receiving_thread_itself(self, made, ring, monkeypatch):
        """Who waits for a mini-batch, or for a slot, would never hear of it otherwise."""
        consumer, peer, _ = made
        consumer.set_buffer_manager(ring)
        send_values(peer, 0)
        assert wait_until(lambda: consumer._default._ready.qsize() == 1)

        def fails(*arguments, **options):
            raise MemoryError("no more")

        monkeypatch.setattr(consumer_module, "unpack", fails)
        send_values(peer, 1)
        assert consumer.retrieve() == {"n": [0]}, "what was ready comes first"
        with pytest.raises(LoaderError, match=r"thread has failed: MemoryError\('no more'\)") as c:
            consumer.retrieve()
        assert isinstance(c.value.__cause__, MemoryError)
        assert ring.wait_for_return(10)
        consumer._thread.join(10)
        assert not consumer._thread.is_alive()

    def test_the_thread_waits_without_polling(self, made):
        consumer, _, _ = made
        before = time.thread_time_ns(), os.times()
        assert not consumer._thread.join(0.3)
        assert os.times().user - before[1].user < 0.1

    def test_a_watched_descriptor(self, peers):
        with addresses("consume", "control") as (result_address, control_address):
            consumer = Consumer(result_address, control_address)
            read, write = os.pipe()
            consumer.watch(read, lambda: LoaderError("the other process has ended"))
            consumer.start()
            try:
                send_values(peers.open(zmq.PUSH, result_address), 0)
                assert wait_until(lambda: consumer._default._ready.qsize() == 1)
                os.close(write)
                assert consumer.retrieve() == {"n": [0]}
                with pytest.raises(LoaderError, match="has ended"):
                    consumer.retrieve()
            finally:
                consumer.stop()
                os.close(read)

    def test_an_abandoned_consumer_ends_by_itself(self):
        with addresses("consume", "control") as (result_address, control_address):
            consumer = Consumer(result_address, control_address)
            consumer.start()
            thread, reference = consumer._thread, weakref.ref(consumer)
            del consumer
            gc.collect()
            assert reference() is None
            thread.join(10)
            assert not thread.is_alive()

    def test_abandoned_in_the_receiving_thread_itself(self, peers, monkeypatch):
        """The thread holds the last reference while it takes a message in."""
        inside, dropped = threading.Event(), threading.Event()
        plain = consumer_module.unpack

        def unpack(*arguments, **options):
            inside.set()
            assert dropped.wait(10)
            return plain(*arguments, **options)

        monkeypatch.setattr(consumer_module, "unpack", unpack)
        with addresses("consume", "control") as (result_address, control_address):
            consumer = Consumer(result_address, control_address)
            consumer.start()
            thread, reference = consumer._thread, weakref.ref(consumer)
            send_values(peers.open(zmq.PUSH, result_address), 0)
            assert inside.wait(10)
            del consumer
            assert reference() is not None
            dropped.set()
            thread.join(10)
            assert not thread.is_alive()
            assert reference() is None

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_leaves_it_alone(self, made):
        consumer, peer, _ = made
        pid = os.fork()
        if pid == 0:
            consumer.__del__()
            os._exit(consumer._stopping)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        send_values(peer, 0)
        assert consumer.retrieve() == {"n": [0]}
