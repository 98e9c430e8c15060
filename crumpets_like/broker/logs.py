"""What the loader's processes log, on its way to the handlers of the training process."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import zmq

from .protocol import Record, pack

__all__ = ["MOST_RECORDS", "forwarded_records", "handle_record", "levels", "to_control"]

logger = logging.getLogger(__name__)

MOST_RECORDS = 50_000  # that wait in a worker; of 100 characters they have some 40 MB

Send: TypeAlias = Callable[[bytes], object]


class _Forward(logging.Handler):
    """Sends records to the training process, as text: arguments may not survive pickling.

    (The standard library's QueueHandler does the same, but its import takes 5 ms.)
    """

    def __init__(self, send: Send, process: str) -> None:
        super().__init__()
        self._send = send
        self._process = process
        self._lost = 0  # since the last one that could be sent

    def emit(self, record: logging.LogRecord) -> None:
        try:
            plain = copy.copy(record)
            plain.msg, plain.args = self.format(record), None
            plain.exc_info = plain.exc_text = plain.stack_info = None
            plain.processName = self._process
            data = _pickled(plain)
            self.tell_lost()
            self._send(data)
        except (zmq.Again, ConnectionError):  # nobody reads: better to lose a line than to stop
            self._lost += 1
        except Exception:  # noqa: BLE001  as every handler
            self.handleError(record)

    def tell_lost(self) -> None:
        """Send how many records could not be sent, if any."""
        if self._lost:
            text = "%d log records were lost: they came faster than they could be handled"
            notice = logging.makeLogRecord(
                {
                    "name": __name__,
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                    "msg": text % self._lost,
                    "processName": self._process,
                }
            )
            self._send(pickle.dumps(notice))
            self._lost = 0


def _pickled(record: logging.LogRecord) -> bytes:
    try:
        return pickle.dumps(record)
    except Exception:  # noqa: BLE001  something of `extra` refuses: its text must do
        for name, value in vars(record).items():
            if not isinstance(value, str | int | float | None):
                setattr(record, name, repr(value))
        return pickle.dumps(record)


def to_control(control: zmq.Socket[Any], token: bytes, worker_id: int = -1) -> Send:
    """How records are sent through a socket; -1: not those of a worker."""
    head = pack(Record(worker_id), token)
    return lambda data: control.send_multipart([head, data], zmq.NOBLOCK)


@contextmanager
def forwarded_records(send: Send, process: str, levels: Mapping[str, int]) -> Iterator[None]:
    """Inside, what this process logs is sent to the training process, not handled here.

    Parameters
    ----------
    send : callable
        Sends a pickled record, or raises zmq.Again or ConnectionError. Only called under the
        handler's lock.
    process : str
        Name of this process in the records.
    levels : mapping of str to int
        Levels of the training process's loggers; ``""`` is the root.
    """
    root = logging.getLogger()
    for other in list(root.manager.loggerDict.values()):
        if isinstance(other, logging.Logger):
            other.handlers.clear()  # a forked process has them all
            other.propagate = True
    forward = _Forward(send, process)
    root.handlers[:] = [forward]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = [logging.NullHandler()]
        with suppress(zmq.Again, ConnectionError):
            forward.tell_lost()


def levels() -> dict[str, int]:
    """The levels that were set in this process, by the names of the loggers."""
    root = logging.getLogger()
    found = {"": root.level}
    for name, other in list(root.manager.loggerDict.items()):
        if isinstance(other, logging.Logger) and other.level:
            found[name] = other.level
    return found


def handle_record(data: bytes) -> None:
    """Give a record to the handlers of this process."""
    try:
        record = pickle.loads(data)
        if record.levelno > logging.root.manager.disable:
            logging.getLogger(record.name).handle(record)
    except BaseException:  # SystemExit, for one: the thread that calls this must go on
        logger.exception("a log record of a worker could not be handled")
