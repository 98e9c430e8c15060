"""What surrounds a soak run: its own temporary folder, a time limit, and stock-taking."""

from __future__ import annotations

import faulthandler
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


def resources(folder: str) -> set[str]:
    """Child processes, threads, descriptors and files there are now."""
    found = {f"{p.name()} (pid {p.pid})" for p in psutil.Process().children(recursive=True)}
    found |= {f"thread {thread.name} {thread.ident}" for thread in threading.enumerate()}
    found |= {os.path.join(folder, name) for name in os.listdir(folder)}
    if sys.platform == "linux":
        found |= {f"native thread {number}" for number in os.listdir("/proc/self/task")}
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(f"descriptor {number} {os.readlink(f'/proc/self/fd/{number}')}")
            except OSError:  # that of this very listing
                continue
    return found


@contextmanager
def own_temporary_folder() -> Iterator[str]:
    """Let temporary files of this process lie in a folder of their own, meanwhile."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    folder = tempfile.mkdtemp(prefix="soak", dir="/tmp")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if variable is not None:
            os.environ["TMPDIR"] = variable
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def watchdog(seconds: float, text: str) -> Iterator[None]:
    """End this process, with `text` and all stacks, if what is inside takes so many seconds."""

    def bark() -> None:
        print(f"a hang of {seconds:g} s\n{text}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
