import logging
import pickle
import threading
from contextlib import contextmanager

import pytest
import zmq

from crumpets_like.broker.logs import forwarded_records, handle_record, levels, to_control
from crumpets_like.broker.protocol import Record
from tests.support.sockets import Peers, addresses

NAME = "tests.forwarded"


@pytest.fixture
def own_logging():
    """Loggers are as they were afterwards; yields one that has a handler of its own."""
    root, mine = logging.getLogger(), logging.getLogger(NAME)
    loggers = [other for other in root.manager.loggerDict.values() if hasattr(other, "handlers")]
    before = [(o, o.handlers[:], o.level, o.propagate) for o in (root, *loggers)]
    mine.addHandler(Collecting())
    yield mine
    mine.handlers.clear()
    for other, handlers, level, propagate in before:
        other.handlers[:] = handlers
        other.setLevel(level)
        other.propagate = propagate


class Collecting(logging.Handler):
    """Keeps the records."""

    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


class Unpicklable:
    def __init__(self):
        self.lock = threading.Lock()

    def __repr__(self):
        return "<it>"


@contextmanager
def forwarding(levels=None):
    """A function that receives the next record, while records are forwarded."""
    with addresses("control") as (address,), Peers() as peers:
        control = peers.open(zmq.PULL, address, bind=True)

        def receive():
            message, (frame,) = control.receive()
            assert message == Record(3)
            return pickle.loads(frame)

        sender = peers.open(zmq.PUSH, address).socket
        with forwarded_records(
            to_control(sender, b"", 3), "crumpets-w3", levels or {"": logging.INFO}
        ):
            yield receive


class TestForwarding:
    def test_text_and_facts(self, own_logging):
        with forwarding() as receive:
            own_logging.warning("number %d of %s", 5, Unpicklable(), extra={"mine": 7})
            record = receive()
        assert record.getMessage() == "number 5 of <it>"
        assert (record.name, record.levelname, record.mine) == (NAME, "WARNING", 7)
        assert (record.filename, record.funcName) == ("test_logs.py", "test_text_and_facts")
        assert record.processName == "crumpets-w3"

    def test_tracebacks_are_text_that_is_there_once(self, own_logging):
        with forwarding() as receive:
            try:
                raise KeyError(Unpicklable())
            except KeyError:
                own_logging.exception("failed", stack_info=True)
            record = receive()
        text = logging.Formatter("%(message)s").format(record)
        assert text.startswith("failed\nTraceback")
        assert text.count("KeyError: <it>") == 1
        assert text.count("Stack (most recent call last)") == 1

    def test_handlers_of_the_training_process_get_nothing_here(self, own_logging):
        """Where a worker is forked, it has all of them."""
        (handler,) = own_logging.handlers
        own_logging.propagate = False
        with forwarding() as receive:
            own_logging.error("once")
            assert receive().getMessage() == "once"
        assert handler.records == []

    def test_levels(self, own_logging):
        with forwarding(levels={"": logging.ERROR, NAME: logging.DEBUG}) as receive:
            logging.getLogger("tests.another").warning("not this one")
            own_logging.debug("this one")
            logging.getLogger("tests.another").error("and this one")
            assert [receive().getMessage() for _ in range(2)] == ["this one", "and this one"]

    def test_what_cannot_be_pickled_is_sent_as_text(self, own_logging, capsys):
        with forwarding() as receive:
            own_logging.error("text", extra={"mine": Unpicklable(), "number": 7})
            record = receive()
        assert (record.getMessage(), record.mine, record.number) == ("text", "<it>", 7)
        assert record.levelno == logging.ERROR
        assert capsys.readouterr().err == ""

    def test_what_cannot_be_formatted_is_an_error_of_logging(self, own_logging, capsys):
        with forwarding() as receive:
            own_logging.error("lost %d", "text")
            own_logging.error("not lost")
            assert receive().getMessage() == "not lost"
        assert "Logging error" in capsys.readouterr().err

    @pytest.mark.parametrize("error", [zmq.Again(), ConnectionResetError()])
    def test_nobody_is_kept_waiting(self, own_logging, capsys, error):
        """Records are lost while nobody takes them; how many is told, also at the end."""
        sent, taken = [], [False, False, True, False, False]

        def send(data):
            if taken and not taken.pop(0):
                raise error
            sent.append(pickle.loads(data))

        with forwarded_records(send, "crumpets-w3", {"": logging.INFO}):
            for number in range(4):
                own_logging.error("number %d", number)
        assert [record.getMessage().split(":")[0] for record in sent] == [
            "2 log records were lost",
            "2 log records were lost",
        ]
        assert {(record.processName, record.levelname) for record in sent} == {
            ("crumpets-w3", "WARNING")
        }
        assert capsys.readouterr().err == ""

    def test_nothing_is_sent_afterwards(self, own_logging, capsys):
        with forwarding():
            pass
        own_logging.error("the socket is closed")
        assert capsys.readouterr().err == ""


class TestLevels:
    def test_only_those_that_were_set(self, own_logging):
        own_logging.setLevel(logging.DEBUG)
        logging.getLogger(f"{NAME}.child.grandchild")
        found = levels()
        assert found[""] == logging.getLogger().level
        assert found[NAME] == logging.DEBUG
        assert f"{NAME}.child" not in found
        assert f"{NAME}.child.grandchild" not in found


class TestHandling:
    def record(self, **changes):
        record = logging.makeLogRecord(
            {"name": NAME, "levelno": logging.INFO, "msg": "text", **changes}
        )
        return pickle.dumps(record)

    def test_it_reaches_the_handlers(self, own_logging):
        handle_record(self.record())
        (record,) = own_logging.handlers[0].records
        assert record.getMessage() == "text"

    def test_those_that_are_disabled(self, own_logging):
        logging.disable(logging.CRITICAL)
        try:
            handle_record(self.record())
        finally:
            logging.disable(logging.NOTSET)
        assert own_logging.handlers[0].records == []

    def test_filters_are_asked(self, own_logging):
        own_logging.addFilter(lambda record: record.msg != "drop this")
        try:
            handle_record(self.record(msg="drop this"))
            handle_record(self.record(msg="keep this"))
        finally:
            own_logging.filters.clear()
        assert [record.msg for record in own_logging.handlers[0].records] == ["keep this"]

    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError("mine")])
    def test_a_handler_that_raises_does_not_end_the_thread(self, own_logging, caplog, error):
        class Raises(logging.Handler):
            def emit(self, record):
                raise error

        own_logging.addHandler(Raises())
        handle_record(self.record())
        assert "a log record of a worker could not be handled" in caplog.text
        assert type(error).__name__ in caplog.text

    @pytest.mark.parametrize("data", [b"", b"no pickle", pickle.dumps("no record")])
    def test_what_is_no_record(self, caplog, data):
        handle_record(data)
        assert "a log record of a worker could not be handled" in caplog.text
