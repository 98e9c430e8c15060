"""What all tests have: the leak guard, and examples that may take their time."""

from hypothesis import settings

from tests.support.guard import leak_guard, pytest_configure, pytest_runtest_makereport

settings.register_profile("tests", deadline=None)  # a busy machine is no failure
settings.load_profile("tests")

__all__ = ["leak_guard", "pytest_configure", "pytest_runtest_makereport"]
