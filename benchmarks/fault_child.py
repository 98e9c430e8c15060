"""One case of the fault table for one loader, in this fresh process; says what it saw as JSON.

``python -m crumpets_like.benchmarks.fault_child LOADER CASE FOLDER``
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from .fault_deaths import DEATHS, culprit
from .fault_life import LIFE

__all__ = ["CASES"]

CASES = {**DEATHS, "hang, timeout=2": culprit("hang", timeout=2), **LIFE}


def main(argv: Sequence[str]) -> int:
    """Run one case."""
    loader, case, folder = argv
    CASES[case](loader, folder)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # In the background of a shell it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
