"""Where a consumer receives."""

import socket

import pytest
import zmq

from crumpets_like.broker.consumer import Consumer
from crumpets_like.broker.failures import describe_failure
from crumpets_like.broker.protocol import Failure
from tests.broker.test_consumer import send_values
from tests.support.sockets import Peers, addresses


@pytest.fixture
def peers():
    with Peers() as opened:
        yield opened


class TestAddresses:
    def test_connect_instead_of_bind(self, peers):
        with addresses("consume", "control") as (result_address, control_address):
            peer = peers.open(zmq.PUSH, result_address, bind=True)
            control = peers.open(zmq.PUSH, control_address, bind=True)
            consumer = Consumer(result_address, control_address, bind=False)
            consumer.start()
            consumer.start()
            try:
                send_values(peer, 0)
                assert consumer.retrieve() == {"n": [0]}
                control.send(Failure(0), describe_failure(ValueError("text")))
                with pytest.raises(ValueError, match="text"):
                    consumer.retrieve()
            finally:
                consumer.stop()

    def test_tcp(self, peers):
        with (
            socket.create_server(("127.0.0.1", 0)) as a,
            socket.create_server(("127.0.0.1", 0)) as b,
        ):
            ports = [probe.getsockname()[1] for probe in (a, b)]
        consumer = Consumer(*(f"tcp://127.0.0.1:{port}" for port in ports))
        consumer.start()
        try:
            send_values(peers.open(zmq.PUSH, f"tcp://127.0.0.1:{ports[0]}"), 0)
            assert consumer.retrieve() == {"n": [0]}
        finally:
            consumer.stop()

    @pytest.mark.parametrize("bind", [True, False])
    @pytest.mark.parametrize("argument", ["result_address", "control_address"])
    @pytest.mark.parametrize(
        ("address", "error"),
        [("nonsense", ValueError), ("foo://x", ValueError), (None, TypeError), (5, TypeError)],
    )
    def test_no_address(self, argument, address, error, bind):
        with addresses("consume", "control") as (results, control):
            arguments = {"result_address": results, "control_address": control}
            with pytest.raises(error, match=f"^{argument}.*{address}"):
                Consumer(**{**arguments, argument: address}, bind=bind)

    def test_an_address_that_cannot_be_bound(self):
        with pytest.raises(FileNotFoundError, match=r"result_address=.* cannot be bound"):
            Consumer("ipc:///nowhere/at/all", "ipc:///nowhere/else")

    @pytest.mark.parametrize(
        ("timeout", "error"), [(0, ValueError), (-1, ValueError), (0.5, TypeError)]
    )
    def test_recv_timeout(self, timeout, error):
        with pytest.raises(error, match="recv_timeout must be"):
            Consumer("ipc:///a", "ipc:///b", recv_timeout=timeout)
