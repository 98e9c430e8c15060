"""Runs the contenders of a case in turn, each in a fresh process, and takes medians."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec

from .case import Case
from .memory import PeakWatch
from .requirements import Check

#: Seconds after which a contender counts as hung.
TIME_LIMIT = 180.0

Report = Callable[[str], None]


class ContenderFailed(RuntimeError):
    """A contender's process ended with an error or did not end at all."""


@dataclass
class Result:
    """One contender in one case.

    Attributes
    ----------
    runs : list of dict
        Measures of each run.
    median : dict
        Median of each measure.
    error : str
        Why there are no numbers; empty if there are.
    failed : bool
        Whether that is a fault, not just a package that is not installed.
    note : str
        What this contender does differently.
    """

    runs: list[dict[str, float]] = field(default_factory=list)
    median: dict[str, float] = field(default_factory=dict)
    error: str = ""
    failed: bool = False
    note: str = ""


@dataclass
class CaseResult:
    """All contenders of one case.

    Attributes
    ----------
    case : Case
        What was loaded.
    contenders : dict of str to Result
        In the order in which they ran.
    """

    case: Case
    contenders: dict[str, Result]

    def checks(self) -> list[Check]:
        """Compare what was measured, round by round, with what the case must reach."""
        contenders = self.contenders.items()
        most = max((len(result.runs) for _, result in contenders), default=0)
        rounds = [
            {name: result.runs[number] for name, result in contenders if number < len(result.runs)}
            for number in range(most)
        ]
        return [requirement.check(rounds) for requirement in self.case.requirements]


def run_case(case: Case, repeats: int, quick: bool, report: Report) -> CaseResult:
    """Run every contender of `case`, alternating, and once more to measure the memory.

    Parameters
    ----------
    case : Case
        What to load.
    repeats : int
        Timed runs per contender.
    quick : bool
        Load next to nothing, and watch the memory during the timed run.
    report : callable
        Takes a line about progress.

    Returns
    -------
    CaseResult
        A contender that fails keeps its error instead of numbers, the others go on.
    """
    notes = case.notes or {}
    results = {name: Result(note=notes.get(name, "")) for name in case.batches}
    for name, note in notes.items():
        if name not in results:
            results[name] = Result(error=note)
    for name in case.batches:
        results[name].error = missing_package(case, name)
    buffers = 2 * case.workers
    for repeat in range(repeats if quick else repeats + 1):
        watched = quick or repeat == repeats
        for name in case.batches:
            result = results[name]
            if result.error:
                continue
            report(f"{case.name}: {name}, {'memory' if watched else f'run {repeat + 1}'}")
            try:
                measures = run_child(case.name, name, quick, buffers, watched)
            except ContenderFailed as error:
                result.error = str(error)
                result.failed = True
                continue
            buffers = int(measures.pop("buffers", buffers))
            if watched and not quick:
                # Watching disturbs: of this run only the memory counts.
                measures = {"peak_pss_mb": measures["peak_pss_mb"]}
            result.runs.append(measures)
    for result in results.values():
        result.median = medians(result.runs)
    return CaseResult(case, results)


def missing_package(case: Case, contender: str) -> str:
    """Return which optional package is not installed, in words; empty if all are."""
    needs = (*case.needs, "torch") if contender.startswith("torch") else case.needs
    missing = [name for name in dict.fromkeys(needs) if find_spec(name) is None]
    return f"{', '.join(missing)} not installed" if missing else ""


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each measure over the runs that have it."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: statistics.median(run[name] for run in runs if name in run) for name in names}


def run_child(
    case: str, contender: str, quick: bool, buffers: int, watched: bool
) -> dict[str, float]:
    """Measure one contender in a fresh interpreter.

    Parameters
    ----------
    case, contender : str
        What to load and who loads it.
    quick : bool
        Load next to nothing.
    buffers : int
        Mini-batches in the limit's shared memory.
    watched : bool
        Whether to add ``peak_pss_mb``.

    Returns
    -------
    dict of str to float
        The measures.

    Raises
    ------
    ContenderFailed
        With the end of what it wrote to stderr.
    """
    command = [sys.executable, "-m", "crumpets_like.benchmarks.child", case, contender]
    command += ["--buffers", str(buffers), *(["--quick"] if quick else [])]
    # A session of its own: whatever a hung contender has started can be ended with it.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    watch = PeakWatch(process.pid) if watched else None
    with process, watch or nullcontext():
        try:
            out, err = process.communicate(timeout=TIME_LIMIT)
        except BaseException as error:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ContenderFailed(f"no result within {TIME_LIMIT:.0f} s") from None
            raise
    if process.returncode:
        lines = err.strip().splitlines()[-1:] or ["no message"]
        raise ContenderFailed(f"exit code {process.returncode}: {lines[0][:200]}")
    measures: dict[str, float] = json.loads(out.strip().splitlines()[-1])
    if watch is not None:
        measures["peak_pss_mb"] = watch.peak / 1e6
    return measures


def child_environment() -> dict[str, str]:
    """Return the environment of the contenders: one thread for linear algebra."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    environment.pop("OPENBLAS_CORETYPE", None)
    return environment
