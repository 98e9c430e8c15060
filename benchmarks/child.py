"""One contender in one case, in this fresh process: prints its measures as one JSON line.

``python -m crumpets_like.benchmarks.child CASE CONTENDER [--quick] [--buffers N]``
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from .case import Case
from .cases import CASES
from .measure import MEASURE, Contender


def run(case: Case, contender: str, buffers: int) -> dict[str, float]:
    """Measure `contender` in `case`.

    Parameters
    ----------
    case : Case
        What to load.
    contender : str
        Who loads it.
    buffers : int
        Mini-batches in shared memory, for the limit.

    Returns
    -------
    dict of str to float
        Measures, as in `requirements.MEASURES`; ours also tells its number of ``buffers``.
    """
    if contender == "limit":
        from .limit import Limit

        return Limit(case, buffers).measure()
    if case.kind == "steps":
        from .executor_step import measure

        return measure(contender, case.batches[contender])
    if case.kind == "worker":
        from .worker_time import measure as measure_worker

        return measure_worker(case.batches[contender])
    if contender.startswith("torch") or case.dropin:
        from .torch_loader import TorchLoader

        loader: Contender = TorchLoader(case, contender)
        return MEASURE[case.kind](loader, case)
    from .ours import Ours

    ours = Ours(case, contender)
    return MEASURE[case.kind](ours, case) | {"buffers": ours.buffers}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, print.

    Returns
    -------
    int
        0; errors are raised, wrong arguments exit with 2.
    """
    parser = argparse.ArgumentParser(prog="python -m crumpets_like.benchmarks.child")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("contender")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--buffers", type=int, default=4)
    options = parser.parse_args(argv)
    case = CASES[options.case]
    if options.contender not in case.batches:
        parser.error(f"case {case.name} has no contender {options.contender!r}")
    measures = run(case.quick() if options.quick else case, options.contender, options.buffers)
    print(json.dumps(measures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
