import errno
import signal

import pytest
import zmq

from crumpets_like.broker.protocol import MOST_BYTES
from crumpets_like.broker.sockets import end_context, open_socket
from tests.support.sockets import addresses


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.term()  # hangs if a socket was left open


def test_they_queue_any_number_of_messages_of_limited_size(context):
    with addresses("work") as (address,):
        receiver = open_socket(context, zmq.PULL, "address", address, bind=True)
        sender = open_socket(context, zmq.PUSH, "address", address, linger=30)
        with receiver, sender:
            for socket in (receiver, sender):
                assert socket.sndhwm == socket.rcvhwm == 0
                assert socket.maxmsgsize == MOST_BYTES
            assert (receiver.linger, sender.linger) == (0, 30)
            for number in range(3000):
                sender.send(b"%d" % number, zmq.NOBLOCK)
            assert [receiver.recv() for _ in range(3000)][-1] == b"2999"


def test_who_connects_before_the_other_binds_waits_only_a_moment(context):
    with addresses("work") as (address,):
        sender = open_socket(context, zmq.PUSH, "address", address)
        sender.send(b"early")
        receiver = open_socket(context, zmq.PULL, "address", address, bind=True)
        with receiver, sender:
            assert receiver.poll(10_000)
            assert receiver.recv() == b"early"
            assert sender.reconnect_ivl < 10


@pytest.mark.parametrize("bind", [True, False])
@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("", ValueError),
        ("nonsense", ValueError),
        ("foo://x", ValueError),
        ("tcp://host", ValueError),
        (None, TypeError),
        (b"ipc:///tmp/x", TypeError),
    ],
)
def test_no_addresses(context, address, error, bind):
    with pytest.raises(error, match=r"^the_argument") as caught:
        open_socket(context, zmq.PULL, "the_argument", address, bind=bind)
    assert repr(address) in str(caught.value)


def test_an_address_that_cannot_be_bound(context):
    with pytest.raises(OSError, match=r"^\[Errno \d+\] the_argument=.* cannot be bound") as caught:
        open_socket(context, zmq.PULL, "the_argument", "ipc:///nowhere/at/all", bind=True)
    assert caught.value.errno == errno.ENOENT
    with open_socket(context, zmq.PULL, "a", "tcp://127.0.0.1:*", bind=True) as first:
        taken = first.last_endpoint.decode()
        with pytest.raises(OSError, match="in use"):
            open_socket(context, zmq.PULL, "b", taken, bind=True)


def test_the_end_of_a_context_is_not_interrupted():
    came = []
    before = signal.signal(signal.SIGALRM, lambda *_: came.append(1))
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    try:
        for _ in range(50):
            context = zmq.Context()
            socket = open_socket(context, zmq.PULL, "address", "tcp://127.0.0.1:*", bind=True)
            end_context(context)
            assert socket.closed
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(came) > 10
    # Threads of libzmq that are left, and their descriptors, are found by the fixture leak_guard.
