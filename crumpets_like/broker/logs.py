"""What the loader's processes log, on its way to the handlers of the training process."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq

from .protocol import Record, pack
from .settings import Settings

__all__ = ["forwarded_records", "handle_record", "levels"]

logger = logging.getLogger(__name__)


class _Forward(logging.Handler):
    """Sends records to the training process, as text: arguments may not survive pickling.

    (The standard library's QueueHandler does the same, but its import takes 5 ms.)
    """

    def __init__(self, control: zmq.Socket[Any], head: bytes, process: str) -> None:
        super().__init__()
        self._control = control
        self._head = head
        self._process = process

    def emit(self, record: logging.LogRecord) -> None:
        try:
            plain = copy.copy(record)
            plain.msg, plain.args = self.format(record), None
            plain.exc_info = plain.exc_text = plain.stack_info = None
            plain.processName = self._process
            self._control.send_multipart([self._head, pickle.dumps(plain)], zmq.NOBLOCK)
        except zmq.Again:  # nobody reads: better to lose a line than to stop
            pass
        except Exception:  # noqa: BLE001  as every handler
            self.handleError(record)


@contextmanager
def forwarded_records(
    control: zmq.Socket[Any], worker_id: int, settings: Settings
) -> Iterator[None]:
    """Inside, what this process logs is sent to the training process, not handled here.

    Parameters
    ----------
    control : zmq.Socket
        To send it through. Only used under the handler's lock.
    worker_id : int
        -1: not a worker.
    settings : Settings
        Hold the levels of the training process's loggers; ``""`` is the root.
    """
    root = logging.getLogger()
    for other in list(root.manager.loggerDict.values()):
        if isinstance(other, logging.Logger):
            other.handlers.clear()  # a forked process has them all
            other.propagate = True
    process = "crumpets-broker" if worker_id < 0 else f"crumpets-w{worker_id}"
    root.handlers[:] = [_Forward(control, pack(Record(worker_id), settings.token), process)]
    for name, level in settings.levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        root.handlers[:] = [logging.NullHandler()]


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
