import fcntl
import os
import stat
import tempfile
import uuid
from pathlib import Path

import pytest

from crumpets_like.broker import addresses
from crumpets_like.broker.addresses import (
    PATH_LIMIT,
    make_addresses,
    private_directory,
    remove_directory,
    sweep,
)
from tests.support.folders import UID, bind, kill, path_of

pytestmark = pytest.mark.usefixtures("bases")


class TestMakeAddresses:
    def test_defaults(self):
        work, consume = make_addresses(UID, "train")
        assert len(work) == len(consume) == 1
        for kind, address in [("work", work[0]), ("consume", consume[0])]:
            for part in ("train", kind, UID, "0"):
                assert part in address

    def test_numbers(self):
        groups = make_addresses(UID, "p", [("a", 2), ("b", 0), ("c", 3)])
        assert [len(group) for group in groups] == [2, 0, 3]
        flat = [address for group in groups for address in group]
        assert len(set(flat)) == 5
        assert flat[4].endswith("p-c-2")

    def test_in_the_private_directory(self):
        directory = private_directory(UID)
        assert path_of(make_addresses(UID, "p")[0][0]).parent == Path(directory)

    def test_sockets_can_be_bound(self):
        zmq = pytest.importorskip("zmq")
        address = make_addresses(UID, "p")[0][0]
        with zmq.Context() as context, context.socket(zmq.PULL) as sock:
            sock.bind(address)
            assert stat.S_ISSOCK(path_of(address).stat().st_mode)

    def test_pipelines_and_loaders_do_not_meet(self):
        made = [make_addresses(*case)[0][0] for case in [("a", "p"), ("a", "q"), ("b", "p")]]
        assert len(set(made)) == 3

    def test_uid_of_another_type(self):
        uid = uuid.uuid4()
        assert str(uid) in make_addresses(uid, "p")[0][0]
        assert "7" in make_addresses(7, "p")[0][0]

    @pytest.mark.parametrize(
        ("uid", "pipeline", "numbers", "name"),
        [
            ("", "p", [("a", 1)], "uid"),
            ("a/b", "p", [("a", 1)], "uid"),
            ("../x", "p", [("a", 1)], "uid"),
            ("a", "", [("a", 1)], "pipeline"),
            ("a", "p/q", [("a", 1)], "pipeline"),
            ("a", "p", [("x\0y", 1)], "kind"),
            ("a", "p", [("x", -1)], "numbers"),
        ],
    )
    def test_bad_names(self, uid, pipeline, numbers, name, base):
        with pytest.raises(ValueError, match=name):
            make_addresses(uid, pipeline, numbers)
        assert not list(base.iterdir())


class TestPathLength:
    def use(self, monkeypatch, *folders):
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(addresses, "_bases", lambda: [str(folder) for folder in folders])

    def folder_of(self, temporary, length):
        return temporary / ("x" * (length - len(str(temporary)) - 1))

    def test_sixty_characters_fit(self, temporary, monkeypatch):
        folder = self.folder_of(temporary, 60)
        self.use(monkeypatch, folder, temporary)
        address = make_addresses(UID, "main", [("consume", 10)])[0][9]
        path = path_of(address)
        assert path.parent.parent == folder
        assert len(os.fsencode(path)) <= PATH_LIMIT == 103
        bind(path)
        assert Path(private_directory(UID)) == path.parent

    @pytest.mark.parametrize("kind", ["work", "k" * 30])
    def test_longer_falls_back(self, temporary, bases, monkeypatch, kind):
        folder = self.folder_of(temporary, 80)
        self.use(monkeypatch, folder, bases[1])
        path = path_of(make_addresses(UID, "p", [(kind, 1)])[0][0])
        assert path.parent.parent == bases[1]
        assert not list(folder.iterdir())
        bind(path)
        sweep()
        assert path.exists()
        remove_directory(UID)
        assert not list(bases[1].iterdir())

    def test_bytes_count_not_characters(self, temporary, bases, monkeypatch):
        folder = temporary / ("ü" * 25)
        assert len(str(folder)) < 60 < len(os.fsencode(folder))
        self.use(monkeypatch, folder, bases[1])
        assert path_of(make_addresses(UID, "main", [("k" * 14, 1)])[0][0]).parent.parent == bases[1]

    def test_nowhere(self, temporary, monkeypatch):
        folder = self.folder_of(temporary, 90)
        self.use(monkeypatch, folder)
        with pytest.raises(ValueError, match=r"'.*crumpets-c0ffee11' would have 123 bytes.* 103"):
            make_addresses(UID, "main")
        assert not list(folder.iterdir())

    def test_one_limit_for_all_names(self, bases):
        limit = PATH_LIMIT - len(f"{bases[0]}/crumpets-{UID}/p--0")
        assert path_of(make_addresses(UID, "p", [("k" * limit, 1)])[0][0]).parent.parent == bases[0]
        with pytest.raises(ValueError, match="shorter uid or pipeline"):
            make_addresses(UID, "p", [("k" * (limit + 1), 1)])  # the folder of a uid stays

    def test_the_folder_of_a_uid_stays(self, temporary, bases, monkeypatch):
        folder = self.folder_of(temporary, 60)
        self.use(monkeypatch, folder, bases[1])
        assert Path(private_directory(UID)).parent == folder
        with pytest.raises(ValueError, match="shorter uid or pipeline"):
            make_addresses(UID, "p", [("k" * 30, 1)])  # would fit into the second choice
        assert not list(bases[1].iterdir())

    def test_not_writable_falls_back(self, bases, monkeypatch):
        make = tempfile.mkdtemp

        def refuse(*args, **kwargs):
            if kwargs["dir"] == str(bases[0]):
                raise PermissionError
            return make(*args, **kwargs)

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
        assert Path(private_directory(UID)).parent == bases[1]


def test_bases_are_the_temporary_folder_and_tmp(monkeypatch):
    monkeypatch.undo()  # the fixture's
    monkeypatch.setattr(tempfile, "tempdir", "/somewhere")
    assert addresses._bases() == ["/somewhere", "/tmp"]
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert addresses._bases() == ["/tmp"]


class TestPrivateDirectory:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_mode_and_content(self, umask):
        old = os.umask(umask)
        try:
            directory = Path(private_directory(UID))
        finally:
            os.umask(old)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert [path.name for path in directory.iterdir()] == [".lock"]
        assert stat.S_IMODE((directory / ".lock").stat().st_mode) == 0o600

    def test_idempotent(self, base):
        assert private_directory(UID) == private_directory(UID)
        assert len(list(base.iterdir())) == 1
        assert len(addresses._locks) == 1

    def test_created_again_after_it_vanished(self):
        directory = Path(private_directory(UID))
        (directory / ".lock").unlink()
        directory.rmdir()
        assert Path(private_directory(UID)).is_dir()
        sweep()
        assert directory.is_dir()

    def test_open_to_others(self, bases):
        for base in bases:
            (base / f"crumpets-{UID}").mkdir()
            (base / f"crumpets-{UID}").chmod(0o755)
            (base / f"crumpets-{UID}" / "x").touch()
        with pytest.raises(PermissionError, match=r"with mode 0755, expected .* and 0700"):
            private_directory(UID)
        assert [len(list(base.iterdir())) for base in bases] == [1, 1]

    def test_somebody_elses(self, bases, monkeypatch):
        for base in bases:
            (base / f"crumpets-{UID}").mkdir(mode=0o700)
            (base / f"crumpets-{UID}" / "x").touch()
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        with pytest.raises(PermissionError, match=f"belongs to user {user} .* user {user + 1}"):
            private_directory(UID)

    def test_a_link_is_refused(self, bases):
        target = bases[0] / "target"
        target.mkdir(mode=0o700)
        for base in bases:
            (base / f"crumpets-{UID}").symlink_to(target)
        with pytest.raises(PermissionError):
            private_directory(UID)
        assert not list(target.iterdir())

    def test_left_behind_with_the_same_uid(self, start, base):
        process = start(f"addresses.private_directory({UID!r})")
        kill(process)
        assert (base / f"crumpets-{UID}").is_dir()
        directory = private_directory(UID)
        sweep()  # now it is locked again
        assert Path(directory).is_dir()
        assert len(list(base.iterdir())) == 1

    def test_a_folder_without_its_lock(self, base):
        """A removal that was interrupted leaves one."""
        (base / f"crumpets-{UID}").mkdir(mode=0o700)
        bind(base / f"crumpets-{UID}" / "p-a-0")
        directory = Path(private_directory(UID))
        assert directory.parent == base
        assert (directory / ".lock").exists()
        remove_directory(UID)
        assert not list(base.iterdir())

    def test_a_lock_that_vanishes_while_it_is_taken(self, base, start, monkeypatch):
        kill(start(f"addresses.private_directory({UID!r})"))
        directory, flock, swept = base / f"crumpets-{UID}", fcntl.flock, []

        def sweep_first(descriptor, operation):
            monkeypatch.setattr(fcntl, "flock", flock)
            if not swept and os.path.sameopenfile(descriptor, lock):
                swept.append(sweep())
            else:
                monkeypatch.setattr(fcntl, "flock", sweep_first)
            flock(descriptor, operation)

        lock = os.open(directory / ".lock", os.O_RDWR)
        monkeypatch.setattr(fcntl, "flock", sweep_first)
        assert Path(private_directory(UID)) == directory
        os.close(lock)
        assert swept
        assert (directory / ".lock").exists()
        sweep()
        assert directory.exists()

    def test_shared_with_the_process_that_owns_it(self, start, base):
        process = start(f"addresses.private_directory({UID!r})")
        assert Path(private_directory(UID)) == base / f"crumpets-{UID}"
        assert not addresses._locks
        kill(process)

    def test_removed_at_the_end_of_the_process(self, start, base):
        process = start(f"addresses.make_addresses({UID!r}, 'p')")
        assert len(list(base.iterdir())) == 1
        process.communicate("", timeout=10)
        assert not list(base.iterdir())

    def test_a_forked_child_leaves_it_alone(self, start, base):
        process = start(f"""
            directory = addresses.private_directory({UID!r})
            pid = os.fork()
            if not pid:
                sys.exit()
            os.waitpid(pid, 0)
            os.stat(directory)
        """)
        assert (base / f"crumpets-{UID}").is_dir()
        process.communicate("", timeout=10)

    def test_descriptors_do_not_pile_up(self, base):
        private_directory(UID)
        before = len(os.listdir("/dev/fd"))
        for i in range(20):
            private_directory(f"u{i}")
            private_directory(UID)
            remove_directory(f"u{i}")
            sweep()
        assert len(os.listdir("/dev/fd")) == before


class TestRemoveDirectory:
    def test_sockets_and_folder_go(self, base):
        for group in make_addresses(UID, "p", [("a", 3)]):
            for address in group:
                bind(path_of(address))
        remove_directory(UID)
        assert not list(base.iterdir())
        assert not addresses._locks

    def test_missing_is_no_error(self):
        remove_directory(UID)
        private_directory(UID)
        remove_directory(UID)
        remove_directory(UID)

    def test_by_another_process(self, start, base):
        """As the broker does for a training process that was killed."""
        process = start(f"addresses.private_directory({UID!r})")
        bind(base / f"crumpets-{UID}" / "p-a-0")
        remove_directory(UID)
        assert not list(base.iterdir())
        kill(process)

    def test_others_stay(self, base):
        other = private_directory("other")
        private_directory(UID)
        remove_directory(UID)
        assert [str(path) for path in base.iterdir()] == [other]

    def test_what_is_not_ours_stays(self, base):
        folder = base / f"crumpets-{UID}"
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        (folder / "data").write_text("x")
        remove_directory(UID)
        folder.chmod(0o700)
        remove_directory(UID)
        assert (folder / "data").read_text() == "x"
