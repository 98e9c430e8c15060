"""Private folders of sockets: what lies in them, and other processes that own them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

__all__ = ["UID", "bind", "child", "kill", "path_of"]

UID = "c0ffee11"


def bind(path: str | os.PathLike[str]) -> None:
    """Make a socket there."""
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.close()


def path_of(address: str) -> Path:
    """Where the socket of an ``ipc://`` address lies."""
    assert address.startswith("ipc://")
    return Path(address.removeprefix("ipc://"))


def child(base: Path, code: str) -> subprocess.Popen[str]:
    """Start an interpreter that runs `code` and then waits; return it after its first line."""
    prelude = f"""
        import os, signal, sys
        from crumpets_like.broker import addresses
        addresses._bases = lambda: [{str(base)!r}]
    """
    text = textwrap.dedent(prelude) + textwrap.dedent(code) + "\nprint('ready', flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", text + "sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    """End it, and wait for that."""
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
