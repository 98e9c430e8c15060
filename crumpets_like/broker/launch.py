"""Starting and ending the supervisor, seen from the training process."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

from ..errors import LoaderError
from .interrupts import interrupts_deferred
from .processes import (
    BROKER_DIED,
    GOOD_BYE,
    death_descriptor,
    search_path,
    thread_limits,
    wait_readable,
)
from .settings import MOST_DESCRIPTORS, Settings

__all__ = ["SupervisorHandle", "interpreter_command"]


def interpreter_command(call: str) -> list[str]:
    """Command line of a fresh interpreter with this one's module search path.

    Raises
    ------
    RuntimeError
        If the path of the interpreter is not known (embedded Python).
    """
    if not sys.executable:
        raise RuntimeError(
            "sys.executable is empty (an embedded Python?), so no fresh interpreter can be "
            'started: set it, or use start_method="fork" or "thread".'
        )
    return [sys.executable, "-c", f"import sys; sys.path[:] = {search_path()!r}; {call}"]


def _above_standard(end: socket.socket) -> socket.socket:
    """The same with a descriptor that is none of the standard streams, which may be closed."""
    import fcntl

    with end:
        return socket.socket(fileno=fcntl.fcntl(end.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class SupervisorHandle:
    """The supervisor process as its parent sees it.

    Parameters
    ----------
    start_method : str
        ``"fork"`` forks this process, everything else starts a fresh interpreter.
    uid : str
        Names the private folder of the sockets.
    threads : int
        Most threads of a numerical library that a worker imports.

    Attributes
    ----------
    pid : int
        Process id.
    death : int
        Death descriptor.
    """

    def __init__(self, start_method: str, uid: str, threads: int = 1) -> None:
        self._channel, theirs = map(_above_standard, socket.socketpair())
        try:
            with theirs:
                if start_method == "fork":
                    self.pid = self._fork(theirs, uid)
                else:
                    self.pid = self._start_interpreter(theirs, uid, threads)
            self.death = death_descriptor(self.pid)
        except BaseException:
            self._channel.close()
            raise
        self.exit_code: int | None = None
        self._lock = threading.Lock()

    def _fork(self, theirs: socket.socket, uid: str) -> int:
        for stream in (sys.stdout, sys.stderr):  # or both processes would write what is buffered
            with contextlib.suppress(Exception):
                stream.flush()
        with interrupts_deferred(), warnings.catch_warnings(), _no_collection():
            warnings.simplefilter("ignore", DeprecationWarning)  # whoever asks for "fork" knows
            pid = os.fork()
            if not pid:  # the user's garbage: a finalizer may wait for a thread that is not there
                gc.freeze()
        if pid:
            return pid
        try:
            os.setsid()
            self._channel.close()
            from .supervisor import supervise

            supervise(theirs, uid)
        finally:
            os._exit(1)

    def _start_interpreter(self, theirs: socket.socket, uid: str, threads: int) -> int:
        arguments = f"{theirs.fileno()}, {uid!r}"
        call = f"from crumpets_like.broker.supervisor import main; main({arguments})"
        process = subprocess.Popen(
            interpreter_command(call),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **thread_limits(threads)},
        )
        process.returncode = 0  # reaped here, by its process id: Popen must not warn or wait
        return process.pid

    def configure(self, settings: Settings, ring: int, payload: int) -> None:
        """Send the settings and the descriptors: now it starts the broker and the workers.

        Raises
        ------
        LoaderError
            If it has ended already.
        """
        descriptors = [ring, payload, *settings.shared]
        try:
            for start in range(0, len(descriptors), MOST_DESCRIPTORS):
                some = descriptors[start : start + MOST_DESCRIPTORS]
                socket.send_fds(self._channel, [b"!"], some)
            self._channel.sendall(b"." + settings.pack())
        except ConnectionError as error:
            wait_readable([self.death], None)
            raise self.why_ended() from error

    def end(self, timeout: float) -> None:
        """End it and everything it started, after `timeout` seconds by force."""
        with contextlib.suppress(OSError):  # it may have ended
            self._channel.sendall(GOOD_BYE)
            self._channel.shutdown(socket.SHUT_RDWR)  # children that the user forked have it, too
        self._channel.close()
        if not wait_readable([self.death], timeout):
            os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def close(self) -> None:
        """Close the death descriptor, which nobody may watch any more."""
        os.close(self.death)

    def why_ended(self) -> LoaderError:
        """What to tell the caller when it has ended without being asked."""
        code = self._reap()
        who = "broker" if code == BROKER_DIED else "supervisor"
        return LoaderError(
            f"The loader's {who} process ended unexpectedly (supervisor pid {self.pid}, exit code "
            f"{code}), so no more mini-batches can come. {self._last_words()} stop() and start() "
            "the loader to go on."
        )

    def _last_words(self) -> str:
        """What it said why, else what is likely."""
        said = b""
        with contextlib.suppress(OSError):
            while wait_readable([self._channel.fileno()], 0):
                some = self._channel.recv(1 << 16)
                if not some:
                    break
                said += some
        if said:
            return f"It raised an exception:\n{said.decode(errors='replace').rstrip()}\n"
        return (
            "Likely cause: it was killed, from outside or for lack of memory (see the kernel log)."
        )

    def _reap(self) -> int | None:
        """Exit code of the process, which has ended; None if user code has taken it."""
        with self._lock:
            if self.exit_code is None:
                # Its session, where a stopped broker would be left; the id is its own until here.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    _, status = os.waitpid(self.pid, 0)
                    self.exit_code = os.waitstatus_to_exitcode(status)
            return self.exit_code
