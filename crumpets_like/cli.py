"""The command line: ``crumpets-like`` with one of its commands."""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from crumpets_like import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; default: those of the process.

    Returns
    -------
    int
        The exit status: 0 for success, 141 if nobody reads what is printed any more.
    """
    try:
        with _leaving_by_sigterm():
            status = _run(argv)
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 128 + signal.SIGPIPE


def _run(argv: Sequence[str] | None) -> int:
    # benchmarks.cli is light too; what a command needs is imported when it runs.
    from crumpets_like.benchmarks.cli import add_arguments
    from crumpets_like.benchmarks.cli import run as run_bench
    from crumpets_like.benchmarks.faults import add_arguments as add_faults_arguments
    from crumpets_like.benchmarks.soak import add_arguments as add_soak_arguments
    from crumpets_like.preview.cli import add_arguments as add_preview_arguments

    parser = argparse.ArgumentParser(
        prog="crumpets-like", description="A parallel data loader for training loops."
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser(
        "demo",
        help="train a small network on handwritten digits",
        description="Train a small network on scikit-learn's handwritten digits, loaded by two "
        "worker processes, and compare the times with torch's DataLoader. Needs the extras torch, "
        "image and demo.",
    )
    bench = commands.add_parser(
        "bench",
        help="measure the loader against others",
        description="Measure this loader, torch's DataLoader with as many workers and with none, "
        "and bare processes that do the same work without communication, alternating, each in a "
        "process of its own. Prints the medians, and what the loader promises beside what was "
        "measured. All cases take about half an hour.",
    )
    add_arguments(bench)
    soak = commands.add_parser(
        "soak",
        help="use random loaders under random troubles, and check every value",
        description="Use loaders of random configurations while workers are killed and stopped, "
        "samples are slow or raise, epochs are left early and batches are kept; every value is "
        "checked. The exit status is 1 if anything is wrong.",
    )
    add_soak_arguments(soak)
    faults = commands.add_parser(
        "faults",
        help="show what becomes of this loader and torch's when something goes wrong",
        description="Kill, stop, interrupt and confuse this loader and torch's DataLoader, each "
        "case in a process of its own, and print what happened as a Markdown table. Takes about "
        "six minutes.",
    )
    add_faults_arguments(faults)
    doctor = commands.add_parser(
        "doctor",
        help="look for what would fail on this machine",
        description="Look at memory, limits, sockets, cores and versions, and start a small loader "
        "with each start method. The exit status is 1 if something fails.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    preview = commands.add_parser(
        "preview",
        help="show what a network would see of a folder of images",
        description="Write a contact sheet: in each row an image and eight draws of its "
        "augmentation, with their parameters. Needs the extra image.",
    )
    add_preview_arguments(preview)

    args = parser.parse_args(argv)
    if args.version:
        print(__version__)
        return 0
    if args.command is None:
        parser.error("a command is needed: demo, bench, soak, faults, doctor or preview")
    if args.command == "demo":
        from crumpets_like.demo import run as run_demo

        return run_demo()
    if args.command == "soak":
        from crumpets_like.benchmarks.soak import run as run_soak

        return run_soak(args)
    if args.command == "faults":
        from crumpets_like.benchmarks.faults import run as run_faults

        return run_faults(args)
    if args.command == "doctor":
        return _examine(args.json)
    if args.command == "preview":
        from crumpets_like.preview.cli import run as run_preview

        return run_preview(args)
    return run_bench(args)


@contextlib.contextmanager
def _leaving_by_sigterm() -> Iterator[None]:
    """Inside, SIGTERM leaves every `with` block, so that temporary folders are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: Any) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _examine(as_json: bool) -> int:
    """Print what is found while it is found; the exit status says whether something fails."""
    from crumpets_like.doctor import summary
    from crumpets_like.examine import examine

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            print(finding, flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print(summary(findings))
    return int(any(finding.level == "FAIL" for finding in findings))
