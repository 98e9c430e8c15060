"""The subcommand ``crumpets-like bench``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from . import machine
from .cases import CASES, QUICK
from .harness import CaseResult, run_case
from .table import checks_table, measures_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``bench`` to a parser.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Of the subcommand.
    """
    parser.add_argument(
        "case",
        nargs="*",
        metavar="CASE",
        help=f"cases to run, all if none is given: {', '.join(CASES)}",
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs per contender; medians count (default: 5)"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one run on next to no data: shows that everything works, not how fast;"
        f" without CASE: {', '.join(QUICK)}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to FILE")


def run(args: argparse.Namespace) -> int:
    """Run the cases, print the tables, write the JSON file.

    Parameters
    ----------
    args : argparse.Namespace
        With the attributes that `add_arguments` defines.

    Returns
    -------
    int
        Exit status: 0 if every contender ran or lacks a package, 1 if one failed, 2 for wrong
        arguments. Requirements that are not reached do not fail the command.
    """
    unknown = [name for name in args.case if name not in CASES]
    if unknown:
        return _refuse(f"unknown case {', '.join(unknown)}; there are {', '.join(CASES)}")
    if args.repeats < 1:
        return _refuse(f"--repeats must be at least 1, got {args.repeats}")
    if args.json is not None:
        try:
            args.json.touch()  # not after half an hour
        except OSError as error:
            return _refuse(f"--json cannot be written: {error}")
    names = args.case or (QUICK if args.quick else CASES)
    repeats = 1 if args.quick else args.repeats
    facts = machine.facts()
    results = []
    for name in names:
        results.append(run_case(CASES[name], repeats, args.quick, _progress))
        _finished(results[-1])
    print(machine.summary(facts))
    print(f"median of {repeats}" + (", --quick: far too little data to judge by" * args.quick))
    print()
    print(measures_table(results))
    if not args.quick:
        print()
        print(checks_table(results))
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(facts, results), indent=1) + "\n", encoding="utf-8")
    return int(any(r.failed for result in results for r in result.contenders.values()))


def as_json(facts: dict[str, object], results: list[CaseResult]) -> dict[str, object]:
    """Return everything that was measured, ready for `json.dumps`.

    Parameters
    ----------
    facts : dict
        Of the machine.
    results : list of CaseResult

    Returns
    -------
    dict
        ``machine`` and ``cases``: for each its sizes, its contenders with every single run, and
        its checks.
    """
    cases = {
        result.case.name: {
            "summary": result.case.summary,
            "batch_size": result.case.batch_size,
            "workers": result.case.workers,
            "batches": dict(result.case.batches),
            "contenders": {name: asdict(r) for name, r in result.contenders.items()},
            "checks": [asdict(check) for check in result.checks()],
        }
        for result in results
    }
    return {"machine": facts, "cases": cases}


def _progress(line: str) -> None:
    """Say on stderr what is running; a terminal shows one line only."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def _finished(result: CaseResult) -> None:
    """Say on stderr how a case went: the tables come at the end of all."""
    _progress("")
    found = [f"{check.text}: {check.value or 0:.3g}" for check in result.checks()]
    print(f"{result.case.name}: {', '.join(found) or 'done'}", file=sys.stderr, flush=True)


def _refuse(message: str) -> int:
    print(f"crumpets-like bench: {message}", file=sys.stderr)
    return 2
