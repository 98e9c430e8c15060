import fcntl
import os
import threading
from pathlib import Path

import pytest

from crumpets_like.broker import addresses
from crumpets_like.broker.addresses import (
    private_directory,
    remove_directory,
    sweep,
)
from tests.support.folders import UID, bind, kill

pytestmark = pytest.mark.usefixtures("bases")


class TestSweep:
    def test_left_behind_by_kill(self, start, base):
        process = start(f"addresses.private_directory({UID!r})")
        bind(base / f"crumpets-{UID}" / "p-a-0")
        sweep()
        assert len(list((base / f"crumpets-{UID}").iterdir())) == 2  # its owner lives
        kill(process)
        sweep()
        assert not list(base.iterdir())

    @pytest.mark.parametrize("module_and_call", ["fcntl.flock", "os.rename", "os.open"])
    def test_left_behind_while_it_was_made(self, start, base, module_and_call):
        """Its owner ends before the folder is locked, before it has its name, ..."""
        process = start(f"""
            import fcntl
            pid = os.fork()
            if not pid:
                {module_and_call} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
                addresses.private_directory({UID!r})
            os.waitpid(pid, 0)
        """)
        kill(process)
        (left,) = base.iterdir()
        assert left.name.startswith(".crumpets-")
        assert addresses.abandoned() == [str(left)]
        sweep()
        assert not list(base.iterdir())

    @pytest.mark.parametrize("step", ["open", "rename"])
    def test_while_a_folder_is_made(self, base, monkeypatch, step):
        """Another process sweeps before it is locked; once it is, that is in vain."""
        call, sweeps = getattr(os, step), []

        def sweep_first(*arguments, **options):
            if not sweeps:
                sweeps.append(True)
                sweep()
            return call(*arguments, **options)

        monkeypatch.setattr(os, step, sweep_first)
        directory = Path(private_directory(UID))
        assert sweeps
        assert list(base.iterdir()) == [directory]
        assert (directory / ".lock").exists()

    def test_own_folders_stay(self, base):
        directory = private_directory(UID)
        sweep()
        assert [str(path) for path in base.iterdir()] == [directory]

    @pytest.mark.parametrize("name", ["crumpets-mine", ".crumpets", "mine"])
    @pytest.mark.parametrize("files", [[], ["data"], [".lock", "data"]])
    def test_folders_of_the_user_stay(self, base, name, files):
        (base / name).mkdir(mode=0o700)
        for file in files:
            (base / name / file).touch()
        sweep()
        assert sorted(path.name for path in (base / name).iterdir()) == files

    def test_folders_of_others_stay(self, base, start, monkeypatch):
        kill(start(f"addresses.private_directory({UID!r})"))
        user = os.getuid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: user + 1)
            sweep()
        assert len(list(base.iterdir())) == 1
        sweep()
        assert not list(base.iterdir())

    def test_a_folder_that_is_replaced_while_it_is_swept(self, base, start, monkeypatch):
        """Another process sweeps it, and a third one makes it anew, before we hold the lock."""
        kill(start(f"addresses.private_directory({UID!r})"))
        flock = fcntl.flock

        def replace_first(descriptor, operation):
            monkeypatch.setattr(fcntl, "flock", flock)
            sweep()
            private_directory(UID)
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", replace_first)
        sweep()
        assert (base / f"crumpets-{UID}" / ".lock").exists()

    def test_links_are_not_followed(self, base, temporary):
        target = temporary / "elsewhere"
        target.mkdir(mode=0o700)
        (target / ".lock").touch()
        (base / "crumpets-link").symlink_to(target)
        sweep()
        assert (target / ".lock").exists()

    def test_one_broken_folder_does_not_stop_it(self, base, start):
        kill(start(f"addresses.private_directory({UID!r})"))
        for name in ("crumpets-aa", "crumpets-zz"):
            (base / name / ".lock").mkdir(parents=True)
            (base / name).chmod(0o700)
        sweep()
        assert sorted(path.name for path in base.iterdir()) == ["crumpets-aa", "crumpets-zz"]

    def test_a_fresh_folder_is_never_swept(self, base):
        """While one thread sweeps without end, each new folder stays as it was made."""
        done = threading.Event()

        def keep_sweeping():
            while not done.is_set():
                sweep()

        sweeper = threading.Thread(target=keep_sweeping)
        sweeper.start()
        try:
            for i in range(300):
                directory = Path(private_directory(f"u{i}"))
                bind(directory / "p-a-0")
                assert (directory / "p-a-0").exists()
                if i % 2:
                    remove_directory(f"u{i}")
        finally:
            done.set()
            sweeper.join(timeout=10)
        assert len(list(base.iterdir())) == 150

    def test_many_at_once(self, base, start):
        """Several processes clear up the same leftovers: none fails, nothing stays."""
        owner = start("for i in range(50): addresses.private_directory(f'u{i}')")
        kill(owner)
        assert len(list(base.iterdir())) == 50
        sweepers = [threading.Thread(target=sweep) for _ in range(4)]
        for sweeper in sweepers:
            sweeper.start()
        for sweeper in sweepers:
            sweeper.join(timeout=10)
        assert not list(base.iterdir())
