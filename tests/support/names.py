"""Names of test cases that are the same in every process."""

import re


def stable(value: object) -> str:
    """What `str` gives, without addresses: they would differ from one test process to another."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
