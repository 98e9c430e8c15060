"""``python -m crumpets_like`` is the same as ``crumpets-like``."""

import sys

from crumpets_like.cli import main

if __name__ == "__main__":
    sys.exit(main())
