"""What all tests have: the leak guard, and examples that may take their time."""

import signal

from hypothesis import settings

from tests.support.guard import leak_guard, pytest_configure, pytest_runtest_makereport

# A busy machine is no failure, and the same commit gives the same result on every machine.
settings.register_profile("tests", deadline=None, derandomize=True)
# For finding more: --hypothesis-profile=explore tries other examples each time.
settings.register_profile("explore", deadline=None)
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = ["leak_guard", "pytest_configure", "pytest_runtest_makereport"]
