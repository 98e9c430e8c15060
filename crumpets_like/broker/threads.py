"""Workers that are threads of the training process."""

from __future__ import annotations

import threading
import time
from typing import Any

import zmq

from .processes import THREAD_NAME, Wakeup
from .runner import Runner
from .settings import Settings
from .sockets import end_context
from .worker_loop import serve

__all__ = ["WorkerThreads"]


class WorkerThreads:
    """Workers that are threads of this process, and what they share.

    Nobody can end a thread that is in a sample. So what is shared is closed by whoever needs it
    last: by :meth:`stop`, or by a thread that is later.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._users = 1  # the threads that run, and who calls stop()
        self._wakeup = Wakeup()
        self._context: zmq.Context[Any] = zmq.Context()

    def start(self, runner: Runner, settings: Settings, worker_id: int) -> None:
        """Start one more."""
        thread = threading.Thread(
            target=self._serve,
            args=(runner, settings, worker_id),
            name=f"{THREAD_NAME}w{worker_id}",
            daemon=True,
        )
        with self._lock:
            self._users += 1
        try:
            thread.start()
        except BaseException:
            self._leave()
            raise
        self._threads.append(thread)

    def _serve(self, runner: Runner, settings: Settings, worker_id: int) -> None:
        try:
            serve(runner, self._context, settings, worker_id, [self._wakeup.fileno()])
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            end_context(self._context)
            self._wakeup.close()

    def stop(self, seconds: float) -> None:
        """Let them end, once; waits at most so long for those that are in a sample."""
        deadline = time.monotonic() + seconds
        self._wakeup.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._leave()
