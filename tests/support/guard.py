"""The leak guard: no test may leave anything behind.

``tests/conftest.py`` imports the fixture and the hooks of this module.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator

import pytest

from tests.support.leftovers import Leftovers, State
from tests.support.processes import MARK, Family, new_mark

GRACE = 2.0
"""Seconds that processes and threads have to end after a test."""

_FAILED = pytest.StashKey[bool]()
_FAMILY = pytest.StashKey[Family]()


def pytest_configure(config: pytest.Config) -> None:
    """Mark what the tests start, and give the run a temporary folder of its own.

    The path of the folder is short because sockets lie in it. Elsewhere lie the folders of
    ``tmp_path``, some of which pytest keeps, and torch's cache, which every process with torch may
    create.
    """
    mark = os.environ[MARK] = new_mark()
    config.stash[_FAMILY] = Family.of(os.getpid(), mark)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix="ct", dir="/tmp")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(folder, "torch"))
    os.environ["TMPDIR"] = tempfile.tempdir = os.path.join(folder, "t")
    os.mkdir(tempfile.tempdir)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test failed."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def leak_guard(request: pytest.FixtureRequest) -> Generator[None]:
    """Fail if the test leaves a process, thread, descriptor, file or shared memory behind."""
    family = request.config.stash[_FAMILY]
    before = State.now()
    yield
    failed = request.node.stash.get(_FAILED, False)
    # The traceback of a failed test keeps objects alive, so that it says nothing about leaks.
    left = Leftovers.after_grace(before, family, 0.0 if failed else GRACE)
    left.kill()
    if left and not failed:
        pytest.fail(f"left behind {GRACE:g} s after the test:\n{left}", pytrace=False)
