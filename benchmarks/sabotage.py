"""Kills and stops the workers of a loader at random moments."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable

import psutil

from crumpets_like import TurboDataLoader
from crumpets_like.broker.engine import Engine

_LONGEST_STOP = 0.4  # seconds


class Saboteur:
    """Does it from a thread of its own, while in use as a context manager.

    A sample that ends two workers is to blame for it, as the loader sees it. So no worker is
    killed at a place (the position of its sample in the epoch) where one was killed before.

    Parameters
    ----------
    loader : TurboDataLoader
        Started.
    pause : float
        Mean seconds between two acts; 0: nothing is done.
    seed : int
        Of the acts, not of their moments.

    Attributes
    ----------
    kills, stops : int
        What was done.
    """

    def __init__(self, loader: TurboDataLoader, pause: float, seed: int) -> None:
        self._loader = loader
        self._pause = pause
        self._rng = random.Random(seed)
        self._over = threading.Event()
        self._places: set[int] = set()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="saboteur", daemon=True)
        self.kills = 0
        self.stops = 0

    def __enter__(self) -> Saboteur:
        if self._pause:
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        if self._pause:
            self._thread.join()

    def _work(self) -> None:
        while not self._over.wait(self._rng.expovariate(1 / self._pause)):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._act()

    def _act(self) -> None:
        workers = workers_of_this_process()
        if not workers:
            return
        kind = self._rng.choice(["kill", "kill", "kill", "kill all", "stop", "stop all"])
        victims = workers if kind.endswith("all") else [self._rng.choice(workers)]
        if kind.startswith("kill"):
            for victim in victims:
                self._kill(victim)
            return
        seconds = self._rng.uniform(0.01, _LONGEST_STOP)
        for victim in victims:
            _send(victim, signal.SIGSTOP)
            self.stops += 1
        self._over.wait(seconds)
        for victim in victims:
            _send(victim, signal.SIGCONT)

    def _kill(self, victim: psutil.Process) -> None:
        _send(victim, signal.SIGSTOP)
        # Only a process that stands still tells reliably where it is.
        stopped = _wait_until(lambda: victim.status() == psutil.STATUS_STOPPED, 0.2)
        place = self._place(victim)
        if stopped and place is not None and (place < 0 or place not in self._places):
            self._places.add(place)
            _send(victim, signal.SIGKILL)
            self.kills += 1
        else:
            _send(victim, signal.SIGCONT)

    def _place(self, victim: psutil.Process) -> int | None:
        """Position of the sample that a worker is at, -1 if none; None if the loader is gone."""
        engine = self._loader._engine
        number = victim.name().removeprefix("crumpets-w")
        if not isinstance(engine, Engine) or not number.isdigit():
            return None
        return engine._parts.ring.status.position(int(number))


def workers_of_this_process() -> list[psutil.Process]:
    """The worker processes of all loaders in this process."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("crumpets-w")
    ]


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.001)  # the state of a process cannot be waited for
    return False
