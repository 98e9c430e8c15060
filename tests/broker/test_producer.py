import pickle
import threading

import numpy as np
import pytest
import zmq

from crumpets_like.broker import Producer
from crumpets_like.broker.assembly import RawBatch
from crumpets_like.broker.buffers import BufferSpec, SlotLayout
from crumpets_like.broker.producer import Pass
from crumpets_like.broker.protocol import Cancel, Kind, Stop, Waiting
from crumpets_like.broker.ring import BufferRing
from crumpets_like.broker.stream import END, Stream
from tests.support.loading import wait_until
from tests.support.planning import Unsized, planner
from tests.support.sockets import Peers, addresses


class Bench:
    """A producer, the end of its socket, and passes."""

    def __init__(self, peers, address, ring, window=4, mini_batch_size=2):
        self.broker = peers.open(zmq.PULL, address, bind=True)
        self.ring = ring
        self.passes = []
        self.producer = Producer(address, peers.context, ring, mini_batch_size, window)

    def open(self, plan, window=None, **options):
        if not hasattr(plan, "epoch"):
            plan = planner(plan, 4, **options).open()
        this = Pass(self.producer.new_id(), plan, Stream(), window or self.producer.window)
        self.producer.open(this)
        self.passes.append(this)
        return this

    def go_on(self, this):
        self.producer.refill(this)
        self.producer.fill(this)

    def received(self):
        """Numbers, slots, positions of the mini-batches of one message, and what they hold."""
        message, frames = self.broker.receive()
        if message.kind == Kind.INDICES:
            keys = np.frombuffer(frames[0], np.int64).tolist()
        else:
            keys = [pickle.loads(frame) for frame in frames]
        heads = [(head.number, head.rows, head.position) for head in message.batches]
        return message, heads, keys

    def stop(self):
        for this in self.passes:
            self.producer.cancel(this)
            assert this.join(10)
        self.producer.stop()


@pytest.fixture
def ring():
    made = BufferRing(SlotLayout({"x": BufferSpec((), "u1")}, 2), 4, 1, max_buffers=8)
    yield made
    made.close()


@pytest.fixture
def make(ring):
    made = []
    with addresses("work") as (address,), Peers() as peers:

        def make_bench(**options):
            made.append(Bench(peers, address, ring, **options))
            return made[-1]

        yield make_bench
        for bench in made:
            bench.stop()


class TestIndices:
    def test_as_many_as_the_window_allows_in_one_message(self, make):
        bench = make(window=3)
        this = bench.open(range(20))
        bench.go_on(this)
        message, heads, indices = bench.received()
        assert (message.pass_id, message.epoch, message.kind) == (1, 0, Kind.INDICES)
        assert heads == [(0, 2, 0), (1, 2, 2), (2, 2, 4)]
        assert indices == list(range(6))
        assert len({head.slot for head in message.batches}) == 3
        bench.go_on(this)
        assert bench.broker.silent()

    def test_it_goes_on_as_mini_batches_are_received(self, make):
        bench = make(window=4)
        this = bench.open(range(20))
        bench.go_on(this)
        bench.received()
        bench.producer.retrieved(this)
        bench.go_on(this)
        _, heads, indices = bench.received()
        assert (heads, indices) == ([(4, 2, 8)], [8, 9])

    def test_few_messages_for_a_large_window(self, make, ring):
        bench = make(window=8)
        this = bench.open(range(100))
        bench.go_on(this)
        _, heads, _ = bench.received()
        assert len(heads) == 8
        bench.producer.retrieved(this)
        ring.give_back(0)
        bench.go_on(this)
        assert bench.broker.silent(), "one of eight is not worth a message"
        bench.producer.retrieved(this)
        ring.give_back(1)
        bench.go_on(this)
        _, heads, _ = bench.received()
        assert len(heads) == 2, "a quarter is"

    def test_but_what_is_waited_for_is_sent_at_once(self, make):
        bench = make(window=8)
        this = bench.open(range(100))
        bench.producer.grant(this, 3)
        bench.producer.fill(this)
        message, heads, _ = bench.received()
        assert heads == [(0, 2, 0)]
        assert message.batches[0].slot == 3

    def test_short_last_batches_and_the_end(self, make):
        bench = make(window=4, mini_batch_size=3)
        this = bench.open(range(6))
        bench.go_on(this)
        _, heads, indices = bench.received()
        # Two batches of 4 and 2 samples, in mini-batches of at most 3.
        assert heads == [(0, 3, 0), (1, 1, 3), (2, 2, 4)]
        assert indices == list(range(6))
        assert [count[:2] for count in this.counts] == [(2, 4), (1, 2)]
        assert this.exhausted
        assert this.stream._total == 3

    def test_no_more_than_there_are_slots(self, make, ring):
        bench = make(window=100)
        bench.go_on(bench.open(range(1000)))
        _, heads, _ = bench.received()
        assert len(heads) == ring.limit == bench.producer.granted
        assert bench.producer.waiting == 0

    def test_the_successor_is_requested_once_a_pass_is_exhausted(self, make):
        bench = make(window=4)
        plans = planner(range(4), 4)
        first, second = bench.open(plans.open()), bench.open(plans.open())
        first.successor = second
        bench.go_on(first)
        message, heads, _ = bench.received()
        assert (message.pass_id, message.epoch, len(heads)) == (1, 0, 2)
        bench.go_on(first)
        message, heads, _ = bench.received()
        assert (message.pass_id, message.epoch, len(heads)) == (2, 1, 2)

    def test_an_error_of_the_sampler_comes_in_its_turn(self, make):
        def sampler():
            yield from range(4)
            raise KeyError("sampler")

        bench = make(window=8)
        this = bench.open(range(9), sampler=sampler())
        bench.go_on(this)
        _, heads, _ = bench.received()
        assert len(heads) == 2
        assert this.stream._total == 2
        assert isinstance(this.stream._error, KeyError)

    def test_ctrl_c_in_the_sampler_loses_nothing(self, make):
        def sampler():
            yield from range(4)
            raise KeyboardInterrupt

        bench = make(window=8)
        this = bench.open(range(9), sampler=sampler())
        with pytest.raises(KeyboardInterrupt):
            bench.go_on(this)
        _, heads, _ = bench.received()
        assert [number for number, _, _ in heads] == [0, 1]
        assert this.requested == 2

    def test_reading_is_timed(self, make):
        bench = make()
        bench.go_on(bench.open(range(9)))
        assert bench.producer.seconds_reading > 0


class Mapping(dict):
    """A dataset of keys."""


class TestKeys:
    def open(self, bench, keys):
        return bench.open(Mapping.fromkeys(keys), sampler=keys)

    def test_each_is_a_frame(self, make):
        bench = make()
        bench.go_on(self.open(bench, ["a", ("b", 1), "c"]))
        message, heads, keys = bench.received()
        assert message.kind == Kind.KEYS
        assert heads == [(0, 2, 0), (1, 1, 2)]
        assert keys == ["a", ("b", 1), "c"]

    def test_indices_and_keys_do_not_share_a_message(self, make):
        bench = make()
        bench.go_on(self.open(bench, [1, 2, 3, 4, "a", "b", "c", "d"]))
        messages = [bench.received() for _ in range(2)]
        assert [message.kind for message, _, _ in messages] == [Kind.INDICES, Kind.KEYS]
        assert [keys for _, _, keys in messages] == [[1, 2, 3, 4], ["a", "b", "c", "d"]]
        assert [heads for _, heads, _ in messages] == [
            [(0, 2, 0), (1, 2, 2)],
            [(2, 2, 4), (3, 2, 6)],
        ]

    def test_keys_that_cannot_be_pickled(self, make):
        bench = make(window=8)
        lock = threading.Lock()
        this = self.open(bench, ["a", "b", "c", "d", "e", lock])
        bench.go_on(this)
        _, heads, _ = bench.received()
        assert len(heads) == 2
        assert this.stream._total == 2
        assert "A key could not be pickled" in this.stream._error.__notes__[0]
        assert bench.producer.granted == 8
        assert bench.producer.waiting == 6, "no slot is lost"


class Gate:
    """An iterable whose items are given one by one."""

    def __init__(self, length):
        self.length = length
        self.permits = threading.Semaphore(0)
        self.asked = 0

    def __iter__(self):
        for item in range(self.length):
            self.asked += 1
            assert self.permits.acquire(timeout=20)
            yield {"item": item}

    def give(self, count):
        for _ in range(count):
            self.permits.release()


class TestSamples:
    def test_are_read_in_a_thread_within_the_window(self, make):
        bench = make(window=3)
        items = Unsized(range(20))
        this = bench.open(items)
        bench.producer.refill(this)
        received = [bench.received() for _ in range(3)]
        assert all(message.kind == Kind.SAMPLES for message, _, _ in received)
        assert [heads for _, heads, _ in received] == [[(n, 2, 2 * n)] for n in range(3)]
        assert [keys for _, _, keys in received] == [[0, 1], [2, 3], [4, 5]]
        assert bench.broker.silent()
        assert items.read == 8, "whole batches are read, of two mini-batches each"
        bench.producer.cancel(this)
        assert this.join(10)

    def test_each_is_sent_as_soon_as_it_is_read(self, make):
        bench, gate = make(), Gate(8)
        this = bench.open(gate)
        bench.producer.refill(this)
        gate.give(4)
        assert bench.received()[2] == [{"item": 0}, {"item": 1}]
        gate.give(4)
        assert [bench.received()[2] for _ in range(3)][-1] == [{"item": 6}, {"item": 7}]

    def test_the_end(self, make):
        bench = make(window=8)
        this = bench.open(Unsized(range(6)))
        bench.producer.refill(this)
        assert this.join(10)
        assert this.exhausted
        assert this.stream._total == 3
        assert bench.producer.waiting == 5, "the slots that were not needed are still there"

    def test_an_error_comes_in_its_turn(self, make):
        def items():
            yield from range(4)
            raise LookupError("iterable")

        bench = make()
        this = bench.open(items())
        bench.producer.refill(this)
        assert this.join(10)
        assert this.stream._total == 2
        assert isinstance(this.stream._error, LookupError)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_errors_that_are_no_exceptions_too(self, make, error):
        def items():
            yield 0
            raise error

        bench = make()
        this = bench.open(items())
        bench.producer.refill(this)
        assert this.join(10)
        assert isinstance(this.stream._error, error)

    def test_samples_that_cannot_be_pickled(self, make):
        bench = make(window=8)
        this = bench.open(Unsized([1, 2, 3, 4, threading.Lock()]))
        bench.producer.refill(this)
        assert this.join(10)
        assert this.stream._total == 2
        assert "A sample of the iterable could not be pickled" in this.stream._error.__notes__[0]
        assert bench.producer.waiting == 6

    def test_cancel_while_it_waits_for_a_slot(self, make):
        bench = make()
        this = bench.open(Unsized(range(100)))
        bench.producer.refill(this)
        assert wait_until(lambda: this.requested == 4)
        bench.producer.cancel(this)
        assert this.join(10)

    def test_cancel_again_where_ctrl_c_has_interrupted_it(self, make):
        bench = make()
        this = bench.open(Unsized(range(4)))
        assert not this.join(0.1), "it waits for a slot"
        this.cancelled = True  # so far the interrupted call has come
        bench.producer.cancel(this)
        assert this.join(10)

    def test_cancel_while_it_reads(self, make):
        bench, gate = make(), Gate(100)
        this = bench.open(gate)
        bench.producer.refill(this)
        assert wait_until(lambda: gate.asked == 1)
        bench.producer.cancel(this)
        assert not this.join(0.05)
        gate.give(4)
        assert this.join(10)
        assert bench.broker.silent()
        assert bench.producer.waiting == 4

    def test_one_thread_ends_and_another_goes_on(self, make):
        """Whoever is woken by a cancel may not be the one that was cancelled."""
        bench = make()
        for _ in range(20):
            old, new = (bench.open(Unsized(range(8))) for _ in range(2))
            bench.producer.cancel(old)
            assert old.join(10)
            assert new.thread.is_alive()
            bench.producer.refill(new)
            for slot in range(4):
                assert bench.received()[0].pass_id == new.id
                bench.producer.retrieved(new)
                bench.ring.give_back(slot)
            bench.producer.cancel(new)
            assert new.join(10)


class TestWaiting:
    def test_the_broker_hears_what_is_awaited(self, make):
        bench = make()
        this = bench.open(range(20))
        bench.producer.tell_waiting(this, 0, 2)
        assert bench.broker.receive() == (Waiting(1, 0, 0, 2.0), [])
        this.stream.add(0, RawBatch(0, 2, 0, [], []))
        bench.producer.tell_waiting(this, 1, 2.5)
        assert bench.broker.receive() == (Waiting(1, 1, 1, 2.5), [])


class TestCancel:
    def test_of_streams_the_broker_forgets_the_workers(self, make):
        """Also if nothing of the pass is under way."""
        bench = make(window=2)
        plan = planner(range(4), 4).open()
        plan.worker = 1
        this = bench.open(plan)
        bench.go_on(this)
        message, _, _ = bench.received()
        assert {head.worker for head in message.batches} == {1}
        for _ in message.batches:
            bench.producer.retrieved(this)
        bench.producer.cancel(this)
        assert bench.broker.receive() == (Cancel(1), [])

    def test_the_broker_hears_of_it_once(self, make):
        bench = make()
        this = bench.open(range(20))
        bench.go_on(this)
        bench.received()
        bench.producer.cancel(this)
        bench.producer.cancel(this)
        assert bench.broker.receive() == (Cancel(1), [])
        assert bench.broker.silent()
        assert bench.producer.granted == 0, "the slots come back through the consumer"
        bench.go_on(this)
        assert bench.broker.silent(), "nothing more is requested of it"

    def test_not_where_nothing_is_under_way(self, make):
        bench = make()
        this = bench.open(range(4))
        bench.go_on(this)
        bench.received()
        bench.producer.retrieved(this)
        bench.producer.retrieved(this)
        bench.producer.cancel(this)
        assert bench.broker.silent()
        assert bench.producer.granted == 2, "slots that wait are for the next pass"

    def test_slots_that_wait_serve_the_next_pass(self, make):
        bench = make(window=4)
        this = bench.open(range(2))
        bench.go_on(this)
        bench.received()
        bench.producer.cancel(this)
        bench.broker.receive()
        bench.go_on(bench.open(range(20)))
        message, heads, _ = bench.received()
        assert message.pass_id == 2
        assert len(heads) == 4


class TestWindows:
    def test_each_has_its_own_slots(self, make):
        bench = make(window=2)
        one, two = bench.open(range(20)), bench.open(range(20), bench.producer.open_window(3))
        bench.go_on(one)
        assert len(bench.received()[1]) == 2
        bench.go_on(two)
        message, heads, _ = bench.received()
        assert (message.pass_id, len(heads)) == (two.id, 3)
        assert bench.producer.granted == 5

    def test_what_is_received_is_replaced_at_once(self, make):
        bench = make()
        this = bench.open(range(40), bench.producer.open_window(7))
        bench.go_on(this)
        bench.received()
        bench.producer.retrieved(this)
        bench.go_on(this)
        assert bench.received()[1] == [(7, 2, 14)]

    def test_slots_come_back(self, make, ring):
        bench = make()
        window = bench.producer.open_window(5)
        this = bench.open(range(4), window)
        bench.go_on(this)
        message, heads, _ = bench.received()
        assert (len(heads), bench.producer.waiting) == (2, 3)
        bench.producer.cancel(this)
        bench.producer.close_window(window)
        assert (bench.producer.granted, bench.producer.waiting) == (0, 0)
        for head in message.batches:
            ring.give_back(head.slot)
        assert sum(1 for _ in iter(ring.take, None)) == ring.limit


def test_stop(ring):
    with addresses("work") as (address,), Peers() as peers:
        bench = Bench(peers, address, ring)
        bench.producer.stop()
        assert bench.broker.receive() == (Stop(), [])


def test_ids_are_new_and_not_that_of_the_default_pass(make):
    producer = make().producer
    assert [producer.new_id() for _ in range(3)] == [1, 2, 3]


def test_an_end_that_is_reached_is_seen_by_the_caller(make):
    bench = make()
    this = bench.open(range(0))
    bench.go_on(this)
    assert this.stream.get(0) is END
    assert not this.counts


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"address": "nonsense"}, ValueError),
        ({"address": None}, TypeError),
        ({"mini_batch_size": 0}, ValueError),
        ({"mini_batch_size": 2.5}, TypeError),
        ({"window": -1}, ValueError),
        ({"window": True}, TypeError),
    ],
)
def test_arguments(ring, change, error):
    ((argument, value),) = change.items()
    with Peers() as peers:
        arguments = {
            "address": "ipc:///tmp/x",
            "context": peers.context,
            "ring": ring,
            "mini_batch_size": 2,
            "window": 4,
        }
        with pytest.raises(error, match=f"^{argument}.*{value}"):
            Producer(**{**arguments, **change})
