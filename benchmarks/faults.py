"""``crumpets-like faults``: what becomes of two loaders when something goes wrong."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from . import machine
from .fault_child import CASES
from .table import layout

LOADERS = ("ours", "torch")
LIMIT = 20.0
"""Seconds that a case may take: beyond, it hangs."""

LONGER = 90.0
LONG = ("100 x", "50 epochs", "100 kills", "100,000 strings", "10 x", "raises")
"""How the names of cases begin that may take `LONGER`."""

LONG_PATH = "TMPDIR of 150 characters"
SMALL_SHM = [
    *("unshare", "--mount", "--map-root-user", "sh", "-c"),
    'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"',
    "sh",
]
"""Runs a command where ``/dev/shm`` has 64 MiB."""

GRACE = 2.0
"""Seconds that everything has to be gone after the end of the training process."""

_MARK = "CRUMPETS_FAULTS"
_SHM = Path("/dev/shm")
_STEP = 0.02
_SLOW_END = 3.0  # seconds from the caller's knowing to the end of its process worth telling
HEADER = ("case", "loader", "what happened", "seconds", "index named", "left 2 s later")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    case, loader : str
    what : str
        What the caller saw.
    seconds : float or None
        From the first fault until the caller knew, or had the batch in question; where the training
        process ends, until its last process had ended.
    named : bool or None
        Whether the error names the sample's index; None: there was no error.
    left : str
        What was there after the end of the process and `GRACE` seconds.
    """

    case: str
    loader: str
    what: str
    seconds: float | None
    named: bool | None
    left: str

    def cells(self) -> list[str]:
        """Return the texts of the cells."""
        seconds = "-" if self.seconds is None else f"{self.seconds:.2f}"
        named = {True: "yes", False: "no", None: "-"}[self.named]
        return [self.case, self.loader, self.what.replace("|", "/"), seconds, named, self.left]


def run_case(case: str, loader: str, limit: float = LIMIT) -> Row:
    """Run one case in a process of its own.

    Parameters
    ----------
    case : str
        One of `fault_child.CASES`.
    loader : str
        One of `LOADERS`.
    limit : float
        Seconds after which it hangs.
    """
    base = tempfile.mkdtemp(prefix="cf", dir="/tmp")
    temporary = os.path.join(base, "t")
    if case == LONG_PATH:
        temporary = temporary.ljust(150, "t")
    os.mkdir(temporary)
    mark = uuid.uuid4().hex
    shared = _shared_memory()
    module = "crumpets_like.benchmarks.fault_child"
    prefix = SMALL_SHM if case.endswith("/dev/shm of 64 MiB") else []
    try:
        with (
            open(os.path.join(base, "out"), "w+", encoding="utf-8") as output,
            open(os.path.join(base, "err"), "w+", encoding="utf-8") as errors,
        ):
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", module, loader, case, base],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, "TMPDIR": temporary, _MARK: mark},
                start_new_session=True,
            )
            told = _watch(process, Path(base, "out"), limit)
            ended = time.monotonic()
            hangs = process.poll() is None
            if hangs:
                process.kill()
            process.wait()
            gone = _wait_until_gone(mark, ended + GRACE)
            left = _left(mark, process.pid, shared, temporary)
            tracebacks = Path(base, "err").read_text(errors="replace").count("Traceback (most")
        what, seconds = _outcome(told, process.returncode, tracebacks, ended, gone)
        if hangs:
            said = told.get("what") not in (None, "running", "ending")
            what = f"{told['what']}; then hangs ({limit:g} s)" if said else f"hangs ({limit:g} s)"
            seconds = None
        return Row(case, loader, what, seconds, told.get("named"), left)
    finally:
        _kill(_family(mark))
        shutil.rmtree(base, ignore_errors=True)


def _watch(process: subprocess.Popen[bytes], output: Path, limit: float) -> dict[str, Any]:
    """Wait for the end of a case, send the signals that it wants; return what it told."""
    deadline = time.monotonic() + limit
    told: dict[str, Any] = {}
    while process.poll() is None and time.monotonic() < deadline:
        if not told and (told := _read(output)) and "signal" in told:
            for _ in range(told["times"]):
                time.sleep(told["pause"])  # into the middle of the epoch, or of the start
                if process.poll() is None:
                    told["at"] = time.monotonic()
                    _send(process, told["signal"])
        time.sleep(_STEP)  # processes of any loader: nothing tells of them
    return told or _read(output)


def _send(process: subprocess.Popen[bytes], name: str) -> None:
    """Send a signal; Ctrl-C goes to the whole process group, as from a terminal."""
    if name == "SIGINT":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.Signals[name])


def _outcome(
    told: dict[str, Any], code: int, tracebacks: int, ended: float, gone: float | None
) -> tuple[str, float | None]:
    """Put into words what happened, and how long after the fault."""
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if not told:
        return f"{how}, silent", None
    if told["what"] not in ("running", "ending"):
        late = ended - told["at"]
        slow_end = f"; then {late:.0f} s until its end" if late > _SLOW_END else ""
        return told["what"] + slow_end, told["seconds"]
    printed = f", {tracebacks} traceback{'s' * (tracebacks != 1)}"
    helpers = ", its helpers after it" if gone is not None else ", its helpers not"
    return how + printed + helpers, None if gone is None else gone - told["at"]


def _read(output: Path) -> dict[str, Any]:
    lines = output.read_text(encoding="utf-8").splitlines()
    return json.loads(lines[0]) if lines else {}


def _wait_until_gone(mark: str, deadline: float) -> float | None:
    """Return when the last process had ended, None if some have not in time."""
    while _family(mark):
        if time.monotonic() > deadline:
            return None
        time.sleep(_STEP)  # processes of any loader: nothing tells of them
    return time.monotonic()


def _left(mark: str, pid: int, shared: set[str], temporary: str) -> str:
    """Say what is there that was not before process `pid` began."""
    alive = _family(mark)
    sizes = {}
    for process in alive:
        sizes.update(_nameless_memory(process.pid))
    entries = _made_since(pid, _shared_memory() - shared) - _in_use(alive)
    for name in entries:
        with contextlib.suppress(OSError):
            facts = (_SHM / name).stat()
            sizes[facts.st_ino] = 512 * facts.st_blocks
            (_SHM / name).unlink()
    counts = {
        "process(es)": len(alive),
        "/dev/shm entries": len(entries),
        "temporary file(s)": len(os.listdir(temporary)),
    }
    found = [f"{number} {name}" for name, number in counts.items() if number]
    if sum(sizes.values()):
        found.append(f"{sum(sizes.values()) / 1e6:.1f} MB of shared memory")
    return ", ".join(found) or "nothing"


def _family(mark: str) -> list[psutil.Process]:
    """Processes that stem from a case; forks have the environment of what they stem from."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark:
                found.append(process)
    return found


def _nameless_memory(pid: int) -> dict[int, int]:
    """Bytes of the shared segments that a process holds open or mapped, by inode."""
    found = {}
    for folder in ("fd", "map_files"):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{pid}/{folder}").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(("/memfd:", str(_SHM))):
                        facts = link.stat()
                        found[facts.st_ino] = 512 * facts.st_blocks
    return found


def _shared_memory() -> set[str]:
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def _made_since(pid: int, names: set[str]) -> set[str]:
    """Names that hold the number of a process since `pid`; others may belong to anybody."""
    latest = int(Path("/proc/loadavg").read_text().split()[-1])
    return {
        name
        for name in names
        if any(pid <= int(number) <= latest for number in re.findall(r"\d+", name))
    }


def _in_use(ours: Sequence[psutil.Process]) -> set[str]:
    """Names in ``/dev/shm`` that processes of others have mapped."""
    known = {process.pid for process in ours}
    found: set[str] = set()
    for process in psutil.process_iter():
        if process.pid not in known:
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
                    _, found_here, name = line.partition(f"{_SHM}/")
                    found.update([name] if found_here else [])
    return found


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def run_cases(cases: Sequence[str], loaders: Sequence[str]) -> Iterator[Row]:
    """Run some cases for some loaders, one after the other."""
    for case in cases:
        for loader in loaders:
            yield run_case(case, loader, LONGER if case.startswith(LONG) else LIMIT)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``faults`` to a parser."""
    parser.add_argument("--case", default="", help="only cases whose name contains this text")
    parser.add_argument("--loader", choices=LOADERS, action="append", help="default: all")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the table to FILE, too")


def run(args: argparse.Namespace) -> int:
    """Run the cases, print and write the table; says on stderr how far it is.

    Returns
    -------
    int
        Exit status: 0, since what happens to a loader is the result; 2 for wrong arguments.
    """
    loaders = args.loader or [
        name for name in LOADERS if name == "ours" or machine.version(name) is not None
    ]
    cases = [case for case in CASES if args.case in case]
    if not cases:
        text = f"no case contains {args.case!r}; there are {'; '.join(CASES)}"
        print(f"crumpets-like faults: {text}", file=sys.stderr)
        return 2
    if args.output is not None:
        try:
            args.output.touch()  # not after minutes
        except OSError as error:
            print(f"crumpets-like faults: --output cannot be written: {error}", file=sys.stderr)
            return 2
    began = time.monotonic()
    rows = []
    for row in run_cases(cases, loaders):
        rows.append(row)
        progress = f"{time.monotonic() - began:4.0f} s, {len(rows)}/{len(cases) * len(loaders)}"
        print(f"{progress}  {row.case}, {row.loader}: {row.what}", file=sys.stderr, flush=True)
    text = f"{machine.summary(machine.facts())}\n\n"
    text += layout([HEADER, *(row.cells() for row in rows)])
    print(text)
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0
