"""The supervisor: the clean, single-threaded process that starts workers and sees them end.

Every start method has one. ``"forkserver"`` and ``"spawn"``: it is a fresh interpreter, which
forks the workers (after it has imported the modules they need) or starts a fresh interpreter
for each. ``"fork"``: it is itself forked from the training process, before our threads
and sockets exist there. ``"thread"``: it only starts the broker.

The broker is its child, too. If the supervisor ends, the kernel ends the workers; if the training
process ends, the supervisor ends them.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import msgpack

from .processes import (
    BROKER_DIED,
    PASSED_OVER,
    STARTING_UP,
    death_descriptor,
    name_process,
    thread_count,
    wait_readable,
)
from .settings import MOST_DESCRIPTORS, UNICODE_ERRORS, Settings

__all__ = ["main", "supervise"]

_GRACE = 1.0  # seconds that workers get to end by themselves
_DUMP_SECONDS = 0.1  # that a worker gets to write its stack
_MOST_STACK = 1 << 16  # bytes
_MOST_DUMPS = 1 << 20  # bytes, at the end of a worker's file, in which its crash is looked for
_CRASHES = (b"Fatal Python error: ", b"Traceback (most recent call last):")  # how they begin


def main(channel: int, uid: str) -> NoReturn:
    """Entry of a supervisor that is a fresh interpreter."""
    supervise(socket.socket(fileno=channel), uid)


def supervise(channel: socket.socket, uid: str) -> NoReturn:
    """Body of the supervisor process.

    Parameters
    ----------
    channel : socket
        Brings the settings and, by its end, the stop.
    uid : str
        Names the private folder of the sockets, which nobody else may be left to remove.
    """
    code = 1
    try:
        _open_standard_streams()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Nohup, for one, has SIGHUP ignored; and children must wait to be reaped here.
        for number in (signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # What a batch system sends to all processes of a job is for the training process.
        for number in PASSED_OVER:
            signal.signal(number, signal.SIG_IGN)
        settings = _receive_settings(channel)
        code = 0 if settings is None else _Supervisor(settings, channel).run()
    except Exception:  # noqa: BLE001  there is nobody else to tell
        with contextlib.suppress(OSError):
            channel.sendall(traceback.format_exc().encode(errors="replace"))
        _leave(uid, code)  # here, or what the frames hold would be closed first, with warnings
    finally:
        _leave(uid, code)


def _leave(uid: str, code: int) -> NoReturn:
    """Remove the folder and end this process; by a signal that all of its session gets."""
    with contextlib.suppress(Exception):
        from .addresses import remove_directory  # not before: start-up does not wait for it

        remove_directory(uid)
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    if code < 0:  # the training process, which would do it, is gone
        os.killpg(0, -code)
    os._exit(code)


def _open_standard_streams() -> None:
    """Where they were closed, no file of ours must get their numbers: user code may print."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _receive_settings(channel: socket.socket) -> Settings | None:
    """Wait for the settings; None if the training process has given up."""
    descriptors: list[int] = []
    mark = b"!"
    while mark == b"!":
        mark, some, _, _ = socket.recv_fds(channel, 1, MOST_DESCRIPTORS)
        descriptors += some
    unpacker = msgpack.Unpacker(unicode_errors=UNICODE_ERRORS)
    while data := channel.recv(1 << 16):
        unpacker.feed(data)
        for fields in unpacker:
            settings = Settings._make(fields)
            expected = 2 + len(settings.shared)
            if len(descriptors) != expected:  # the kernel drops what is too many
                raise OSError(
                    f"The loader's supervisor got {len(descriptors)} of {expected} descriptors. "
                    "Likely cause: the limit of open files; raise it (ulimit -n), or put the "
                    "dataset's items into fewer SharedLists."
                )
            ring, payload, *shared = descriptors
            return settings._replace(ring=ring, payload=payload, shared=shared)
    return None


class _Worker(NamedTuple):
    worker_id: int
    pid: int
    start: int  # number of the process among all that were started
    dump: int  # descriptor of the file for its stack


class _Supervisor:
    def __init__(self, settings: Settings, channel: socket.socket) -> None:
        settings.apply()
        self._settings = settings
        self._channel = channel
        self._pid = os.getpid()
        self._trainer = death_descriptor(settings.trainer)
        self._workers: dict[int, _Worker] = {}  # by their death descriptors
        self._dumps_from: dict[int, int] = {}  # offset of the stack that was asked for
        self._method = settings.start_method
        self._settings_file = -1  # descriptor
        self._starts = 0
        name_process("crumpets-superv")
        if os.getppid() != settings.trainer:
            raise ProcessLookupError("The training process has ended.")

    def run(self) -> int:
        """Start everything, watch it, end it; returns the exit code."""
        broker_side, self._broker = socket.socketpair()
        self._broker_pid = self._fork_broker(broker_side)
        broker_side.close()
        self._broker_death = death_descriptor(self._broker_pid)
        self._import_modules()
        if self._broker_is_bound():
            if self._method != "thread":
                gc.freeze()  # or each worker's first collection would copy every page it looks at
                for worker_id in range(self._settings.nworkers):
                    self._start_worker(worker_id)
            self._watch()
        return self._shut_down()

    def _fork_broker(self, channel: socket.socket) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            from .server import broker_process  # not before: it runs beside our own imports

            self._channel.close()
            self._broker.close()
            broker_process(self._settings, self._pid, channel)
            code = 0
        finally:
            os._exit(code)

    def _import_modules(self) -> None:
        """Import what the workers need, so that each of them does not have to."""
        sys.path += self._settings.folders
        if self._method in ("spawn", "thread"):
            return
        # numpy.random is imported on first use, which every worker would pay for.
        names = ["crumpets_like.broker.worker_loop", "numpy.random"]
        if self._method == "forkserver":
            names += self._settings.modules
        with _ending_with(self._channel):
            if wait_readable([self._channel.fileno()], 0):  # it has ended before
                return
            _import(names[:2])
            from .logs import forwarded_records  # not before: it needs what was imported by now

            send = lambda record: self._broker.sendall(msgpack.packb(record))  # noqa: E731
            with forwarded_records(send, "crumpets-superv", self._settings.levels):
                _import(names[2:])
                self._check_threads()

    def _check_threads(self) -> None:
        """Whether workers can be forked from this process; else they are spawned."""
        import logging

        threads = thread_count()
        if threads > 1 and self._method == "forkserver":
            logging.getLogger(__name__).warning(
                "The process that workers are forked from has %d threads, since importing one of "
                "%s starts some: workers are spawned instead, which takes longer to start.",
                threads,
                self._settings.modules[:8],
            )
            self._method = "spawn"

    def _broker_is_bound(self) -> bool:
        channel, broker = self._channel.fileno(), self._broker.fileno()
        ready = wait_readable([channel, broker, self._broker_death, self._trainer], None)
        return channel not in ready and broker in ready and bool(self._broker.recv(1))

    def _start_worker(self, worker_id: int) -> None:
        from .memory import anonymous_file

        self._starts += 1
        dump = anonymous_file(f"crumpets-stack-{worker_id}", 0)
        start = self._spawn_worker if self._method == "spawn" else self._fork_worker
        pid = start(worker_id, dump)
        self._workers[death_descriptor(pid)] = _Worker(worker_id, pid, self._starts, dump)

    def _fork_worker(self, worker_id: int, dump: int) -> int:
        pid = os.fork()
        if pid == 0:
            from .worker_loop import worker_process

            self._channel.close()
            self._broker.close()
            dumps = [worker.dump for worker in self._workers.values()]
            for descriptor in [*self._workers, *dumps, self._broker_death, self._trainer]:
                os.close(descriptor)
            worker_process(
                self._settings, worker_id, self._starts, self._pid, self._broker_pid, dump
            )
        return pid

    def _spawn_worker(self, worker_id: int, dump: int) -> int:
        import subprocess

        from .launch import interpreter_command
        from .memory import anonymous_file

        settings = self._settings
        if self._settings_file < 0:  # not for everyone's eyes, as the command line is
            self._settings_file = anonymous_file("crumpets-settings", 0)
            os.pwrite(self._settings_file, settings.pack(), 0)
        call = (
            "from crumpets_like.broker.supervisor import spawned; "
            f"spawned({self._settings_file}, {worker_id}, {self._starts}, {self._pid}, "
            f"{self._broker_pid}, {dump})"
        )
        process = subprocess.Popen(
            interpreter_command(call),
            pass_fds=[
                self._settings_file,
                settings.ring,
                settings.payload,
                *settings.shared,
                dump,
            ],
            stdin=subprocess.DEVNULL,
        )
        process.returncode = 0  # reaped by its process id below: Popen must not wait for it
        return process.pid

    def _watch(self) -> None:
        """Report and replace workers until there is a reason to stop."""
        poller = select.poll()
        for source in (self._channel, self._broker, self._broker_death, self._trainer):
            poller.register(source, select.POLLIN)
        for descriptor in self._workers:
            poller.register(descriptor, select.POLLIN)
        requests = msgpack.Unpacker()
        while True:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if ready & {self._channel.fileno(), self._broker_death, self._trainer}:
                return
            for descriptor in ready & self._workers.keys():
                poller.unregister(descriptor)
                exit_ = msgpack.packb(self._reap(descriptor))
                try:
                    self._broker.sendall(exit_)
                except ConnectionError:  # the broker is ending, too
                    return
            if self._broker.fileno() in ready:
                data = self._broker.recv(1 << 12)
                if not data:
                    return
                requests.feed(data)
                wanted = list(requests)
                self._end_workers({worker_id for action, worker_id in wanted if action == "end"})
                for worker_id in [worker_id for action, worker_id in wanted if action == "start"]:
                    before = set(self._workers)
                    self._start_worker(worker_id)
                    for descriptor in self._workers.keys() - before:
                        poller.register(descriptor, select.POLLIN)

    def _end_workers(self, worker_ids: set[int]) -> None:
        """End workers that do not get on; first they say where they are, all in the same time."""
        ending = {
            d: worker for d, worker in self._workers.items() if worker.worker_id in worker_ids
        }
        for descriptor, worker in ending.items():
            self._dumps_from[descriptor] = os.fstat(worker.dump).st_size
            os.kill(worker.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_SECONDS
        alive = set(ending)
        while alive and (ended := wait_readable(list(alive), deadline - time.monotonic())):
            alive.difference_update(ended)
        for worker in ending.values():  # those that have ended are not reaped yet
            os.kill(worker.pid, signal.SIGKILL)

    def _reap(self, descriptor: int) -> tuple[int, int, int, int, str]:
        """Worker id, process id, start, exit code and stack of a worker that has ended."""
        worker_id, pid, start, dump = self._workers.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        os.close(descriptor)
        stack = _last_words(dump, self._dumps_from.pop(descriptor, 0))
        os.close(dump)
        return worker_id, pid, start, os.waitstatus_to_exitcode(status), stack

    def _shut_down(self) -> int:
        """Give everybody a moment to end, then end them; returns the exit code.

        A negative one, the number of a signal, is for subprocesses of user code, too.
        """
        if gone := self._trainer_is_gone():  # nobody is left to work for
            self._signal_workers(signal.SIGKILL)
        self._broker.close()  # the broker ends, and tells workers to
        if not wait_readable([self._broker_death], _GRACE):
            os.kill(self._broker_pid, signal.SIGKILL)
        _, status = os.waitpid(self._broker_pid, 0)
        failed = os.waitstatus_to_exitcode(status) != 0
        self._signal_workers(signal.SIGKILL if failed else STARTING_UP)
        deadline = time.monotonic() + _GRACE
        while self._workers:
            ready = wait_readable(list(self._workers), deadline - time.monotonic())
            if not ready:
                self._signal_workers(signal.SIGKILL)
                ready = list(self._workers)
            for descriptor in ready:
                self._reap(descriptor)
        if gone or self._trainer_is_gone():
            return -signal.SIGKILL
        return BROKER_DIED if failed else 0

    def _trainer_is_gone(self) -> bool:
        """Whether the training process was killed: its channel ends before that can be seen."""
        ready = wait_readable([self._trainer, self._channel.fileno()], 0)
        if not ready or self._trainer in ready:
            return bool(ready)
        with contextlib.suppress(ConnectionError):  # it has left something unread
            return not self._channel.recv(1, socket.MSG_PEEK)
        return True

    def _signal_workers(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            os.kill(worker.pid, number)


def _last_words(dump: int, start: int) -> str:
    """What a worker has said from `start` on; of a crash that alone, not what was asked before."""
    start = max(start, os.fstat(dump).st_size - _MOST_DUMPS)
    text = os.pread(dump, _MOST_DUMPS, start)
    crash = max(map(text.rfind, _CRASHES))
    text = text[crash : crash + _MOST_STACK] if crash >= 0 else text[-_MOST_STACK:]
    return text.decode(errors="replace")


def _import(names: list[str]) -> None:
    for name in names:
        # A module that cannot be imported here fails in the worker, with its traceback.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


@contextlib.contextmanager
def _ending_with(channel: socket.socket) -> Iterator[None]:
    """Inside, where nothing waits for it, the end of the channel ends this process.

    It sends SIGIO, of which a process dies.
    """
    flags = fcntl.fcntl(channel, fcntl.F_GETFL)
    fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(channel, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        yield
    finally:
        fcntl.fcntl(channel, fcntl.F_SETFL, flags)


def spawned(
    settings: int, worker_id: int, start: int, parent: int, broker: int, dump: int
) -> NoReturn:
    """Entry of a worker that is a fresh interpreter; `settings` is a descriptor of a file."""
    from .worker_loop import worker_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unpacked = Settings.unpack(os.pread(settings, os.fstat(settings).st_size, 0))
    unpacked.apply()
    worker_process(unpacked, worker_id, start, parent, broker, dump)
