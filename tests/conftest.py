"""What all tests have: the leak guard."""

from tests.support.guard import leak_guard, pytest_configure, pytest_runtest_makereport

__all__ = ["leak_guard", "pytest_configure", "pytest_runtest_makereport"]
