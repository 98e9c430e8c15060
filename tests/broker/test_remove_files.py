import socket

import pytest

from crumpets_like.broker.addresses import remove_files, remove_ipc_handles


class TestRemoveFiles:
    def test_files_go_and_missing_ones_are_no_error(self, tmp_path, monkeypatch):
        (tmp_path / "a").touch()
        with socket.socket(socket.AF_UNIX) as sock:
            monkeypatch.chdir(tmp_path)  # the whole path may be too long
            sock.bind("b")
        remove_files([tmp_path / "a", str(tmp_path / "b"), tmp_path / "missing", tmp_path / "a"])
        assert not list(tmp_path.iterdir())

    def test_other_errors_come_through(self, tmp_path):
        with pytest.raises(OSError, match=str(tmp_path)):
            remove_files([tmp_path])

    def test_a_string_is_no_list_of_paths(self):
        with pytest.raises(TypeError, match="files must be an iterable of paths"):
            remove_files("/tmp/x")


class TestRemoveIpcHandles:
    def test_only_files_of_ipc(self, tmp_path):
        (tmp_path / "a").touch()
        (tmp_path / "b").touch()
        (tmp_path / "c").touch()
        remove_ipc_handles(
            [f"ipc://{tmp_path}/a", f"tcp://{tmp_path}/b", "tcp://127.0.0.1:5555", "inproc://x"]
        )
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "c"]
        remove_ipc_handles([f"ipc://{tmp_path}/a", str(tmp_path / "c")])
        assert [path.name for path in tmp_path.iterdir()] == ["b"]

    def test_a_file_that_looks_like_another_transport(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "tcp:").mkdir()
        (tmp_path / "tcp:" / "host").touch()
        remove_ipc_handles(["tcp://host"])
        assert (tmp_path / "tcp:" / "host").exists()

    def test_a_string_is_no_list_of_addresses(self):
        with pytest.raises(TypeError, match="handles must be an iterable of addresses"):
            remove_ipc_handles("ipc:///tmp/x")
