"""Scenarios: code that runs in a fresh interpreter, with everything that it leaves behind.

For what cannot be tried inside the test's own process: crashes, exits, signals, resource limits,
user code in ``__main__``, and leaks at the end of a process.
"""

from __future__ import annotations

import base64
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.support.leftovers import (
    files,
    new_shared_memory,
    remove_shared_memory,
    shared_memory,
)
from tests.support.processes import MARK, Family, describe, kill, new_mark

T = TypeVar("T")

_STEP = 0.01  # seconds between two looks
_DUMP_TIME = 5.0  # seconds that a hanging process has to dump its stacks

_DRIVER = """
import base64, pickle, sys
paths, call = pickle.loads(base64.b64decode(sys.argv.pop()))
sys.path.extend(path for path in paths if path not in sys.path)
function, arguments = pickle.loads(call)
function(*arguments)
"""


@dataclass(frozen=True)
class Result:
    """How a scenario ended.

    Parameters
    ----------
    returncode : int
        Exit code; ``-n`` if signal n ended it.
    stdout, stderr : str
        What it and its child processes wrote, those included that ended after it.
    seconds : float
        From its start to its end.
    gone_after : float
        Seconds from its end to the end of its last descendant, or to the end of the grace time.
    processes, shared_memory, files : tuple of str
        What was left at the end of the grace time; `files` are those in its temporary folder.
    """

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    gone_after: float
    processes: tuple[str, ...]
    shared_memory: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Everything that was left, one line each."""
        return self.processes + self.shared_memory + self.files

    def check(self, returncode: int = 0) -> Result:
        """Return the result itself if it left nothing and its exit code is `returncode`.

        Raises
        ------
        AssertionError
            Otherwise, with all that is known.
        """
        if self.returncode == returncode and not self.leftovers:
            return self
        raise AssertionError(
            f"exit code {self.returncode} (expected {returncode}) after {self.seconds:.1f} s\n"
            + "".join(f"left behind: {line}\n" for line in self.leftovers)
            + f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


class Running:
    """A scenario that runs; what `interact` gets.

    Attributes
    ----------
    pid : int
        Number of the scenario's own process.
    """

    def __init__(self, process: subprocess.Popen[bytes], family: Family, output: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._family = family
        self._output = output

    def wait_for(self, text: str, timeout: float = 30.0) -> str:
        """Wait until stdout contains `text`, at most `timeout` seconds; return all of stdout.

        Raises
        ------
        AssertionError
            If the scenario ends first, or the time is over.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None
            output = self._output.read_text(errors="replace")
            if text in output:
                return output
            if ended or time.monotonic() > deadline:
                why = "it ended" if ended else f"{timeout:g} s are over"
                raise AssertionError(f"{text!r} not in the output when {why}:\n{output}")
            time.sleep(_STEP)

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal, with `group` to the whole process group as Ctrl-C in a terminal does."""
        if group:
            os.killpg(self.pid, number)
        else:
            self._process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """The living processes that stem from the scenario."""
        return self._family.members()


def run_scenario(
    code: str | Callable[..., object],
    *arguments: object,
    timeout: float = 60.0,
    grace: float = 3.0,
    env: Mapping[str, str | None] | None = None,
    options: Sequence[str] = (),
    interact: Callable[[Running], object] | None = None,
) -> Result:
    """Run code in a fresh interpreter, in an empty folder.

    Parameters
    ----------
    code : str or callable
        Text of a script, or a function of an importable module.
    *arguments
        Arguments of the function; the rest of ``sys.argv`` of a script.
    timeout : float
        Seconds; a scenario that still runs then hangs.
    grace : float
        Seconds that its processes have to end after it.
    env : mapping, optional
        More environment variables; None removes one.
    options : sequence of str
        Options of the interpreter.
    interact : callable, optional
        Called with the `Running` scenario.

    Returns
    -------
    Result
        `Result.check` turns a bad end into a failure. Everything left is removed.

    Raises
    ------
    AssertionError
        If it hangs; the message holds the stacks of all its threads.
    """
    base = Path(tempfile.mkdtemp(prefix="cs"))
    try:
        return _run(base, code, arguments, timeout, grace, env or {}, options, interact)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _run(
    base: Path,
    code: str | Callable[..., object],
    arguments: tuple[object, ...],
    timeout: float,
    grace: float,
    env: Mapping[str, str | None],
    options: Sequence[str],
    interact: Callable[[Running], object] | None,
) -> Result:
    temporary, folder = base / "t", base / "w"
    temporary.mkdir()
    folder.mkdir()
    mark = new_mark()
    variables: dict[str, str | None] = {**os.environ, "TMPDIR": str(temporary), MARK: mark, **env}
    command = [
        sys.executable,
        *("-X", "faulthandler", "-W", "default::ResourceWarning"),
        *options,
        *_program(base, code, arguments),
    ]
    shared_before = shared_memory()
    with (
        open(base / "stdout", "wb") as stdout,
        open(base / "stderr", "wb") as stderr,
    ):
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    family = Family.of(process.pid, mark)
    hangs = False
    try:
        if interact is not None:
            interact(Running(process, family, base / "stdout"))
        try:
            process.wait(max(0.0, started + timeout - time.monotonic()))
        except subprocess.TimeoutExpired:
            hangs = True
            _dump_stacks(process)
        ended = time.monotonic()
        deadline = ended + (0.0 if hangs else grace)
        alive = _wait_until_empty(family.members, deadline)
        gone = time.monotonic()
        lines = tuple(describe(member) for member in alive)
        segments = tuple(
            _wait_until_empty(lambda: new_shared_memory(shared_before, family), deadline)
        )
        remove_shared_memory(segments)
    finally:
        kill([*family.members(), *_own(process)])
        process.wait()
    output = (base / "stdout").read_text(errors="replace")
    errors = (base / "stderr").read_text(errors="replace")
    if hangs:
        raise AssertionError(
            f"the scenario still ran after {timeout:g} s, with {len(lines)} descendants\n"
            + "".join(f"{line}\n" for line in lines)
            + f"--- stdout\n{output}\n--- stderr\n{errors}"
        )
    left = tuple(sorted(files(temporary)))
    return Result(
        process.returncode, output, errors, ended - started, gone - ended, lines, segments, left
    )


def _program(
    base: Path, code: str | Callable[..., object], arguments: tuple[object, ...]
) -> list[str]:
    if isinstance(code, str):
        script = base / "scenario.py"
        script.write_text(code, encoding="utf-8")
        return [str(script), *map(str, arguments)]
    module: Any = getattr(code, "__module__", None)
    if module == "__main__" or "<locals>" in getattr(code, "__qualname__", ""):
        raise TypeError(f"a scenario needs a function of an importable module, not {code!r}")
    # Two steps, since the function's own module is found through these paths.
    call = pickle.dumps((code, arguments))
    payload = base64.b64encode(pickle.dumps((sys.path, call))).decode()
    return ["-c", _DRIVER, payload]


def _wait_until_empty(look: Callable[[], list[T]], deadline: float) -> list[T]:
    """Look until nothing is seen or the time is over; return what was seen last."""
    while (seen := look()) and time.monotonic() < deadline:
        time.sleep(_STEP)
    return seen


def _own(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [psutil.Process(process.pid)] if process.poll() is None else []


def _dump_stacks(process: subprocess.Popen[bytes]) -> None:
    """Let faulthandler write the stacks of all threads, and end the process."""
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGABRT)
    try:
        process.wait(_DUMP_TIME)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
