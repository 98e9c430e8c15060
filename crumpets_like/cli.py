"""The command line: ``crumpets-like demo`` and ``crumpets-like bench``."""

import argparse
from collections.abc import Sequence

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
        The exit status: 0 for success.
    """
    # benchmarks.cli is light too; what a command needs is imported when it runs.
    from crumpets_like.benchmarks.cli import add_arguments
    from crumpets_like.benchmarks.cli import run as run_bench

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
    bench = commands.add_parser("bench", help="measure the loader against others")
    add_arguments(bench)

    args = parser.parse_args(argv)
    if args.version:
        print(__version__)
        return 0
    if args.command is None:
        parser.error("a command is needed: demo or bench")
    if args.command == "demo":
        from crumpets_like.demo import run as run_demo

        return run_demo()
    return run_bench(args)
