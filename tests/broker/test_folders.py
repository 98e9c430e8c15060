"""A loader that could not open its sockets is not even made."""

import os
import tempfile

import pytest

from crumpets_like import TurboDataLoader
from crumpets_like.broker import addresses
from tests.support.loading import Items, run_items


class TestCheckFolders:
    @pytest.fixture
    def use(self, monkeypatch):
        return lambda *folders: monkeypatch.setattr(
            addresses, "_bases", lambda: [str(folder) for folder in folders]
        )

    def make_loader(self, nworkers=2):
        return TurboDataLoader(range(8), 4, Items(), nworkers)

    def test_one_is_enough(self, temporary, use):
        use(temporary / "missing", temporary)
        addresses.check_folders()
        assert not list(temporary.glob("crumpets-*"))

    def test_a_path_that_is_too_long(self, temporary, use):
        folder = temporary / ("x" * 150)
        folder.mkdir()
        use(folder, temporary / "missing")
        with pytest.raises(OSError, match=r"would have \d{3} bytes.*TMPDIR.*103 bytes") as caught:
            self.make_loader()
        assert str(folder) in str(caught.value)
        assert f"{str(temporary / 'missing')!r} is no folder" in str(caught.value)

    def test_folders_that_are_not_writable(self, temporary, use, monkeypatch):
        monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
        use(temporary)
        with pytest.raises(OSError, match=f"{str(temporary)!r} is not writable.*TMPDIR"):
            self.make_loader()

    def test_no_folder_at_all(self, monkeypatch):
        def fail():
            raise FileNotFoundError(2, "No usable temporary directory found")

        monkeypatch.setattr(tempfile, "gettempdir", fail)
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(OSError, match=r"'/tmp' is not writable.*TMPDIR.*103 bytes"):
            self.make_loader()

    def test_without_workers_there_are_no_sockets(self, temporary, use):
        use(temporary / "missing")
        with self.make_loader(nworkers=0) as loader:
            assert run_items(loader) == list(range(8))
