"""Folders of sockets that tests may use as they like."""

import tempfile
from pathlib import Path

import pytest

from crumpets_like.broker import addresses
from tests.support.folders import child


@pytest.fixture
def temporary():
    """Return a short temporary folder that is the system's one during a test."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder).resolve()


@pytest.fixture
def bases(temporary, monkeypatch):
    """Keep every folder of a test in a temporary one, `/tmp` as the second choice included."""
    preferred, fallback = temporary / "t", temporary / "f"
    preferred.mkdir()
    fallback.mkdir()
    monkeypatch.setattr(addresses, "_bases", lambda: [str(preferred), str(fallback)])
    yield preferred, fallback
    for path in list(addresses._locks):
        addresses._close(path)


@pytest.fixture
def base(bases):
    return bases[0]


@pytest.fixture
def start(base):
    processes = []

    def run(code):
        processes.append(child(base, code))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate(timeout=10)
