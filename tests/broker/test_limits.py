import resource
import sys

import psutil
import pytest

from crumpets_like.broker import limits
from crumpets_like.broker.limits import address_space_left, available_memory

MIB = 1 << 20


class Tree:
    """A tree of control groups, and which ones this process is in."""

    def __init__(self, folder):
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.root.mkdir()
        self.own.write_text("")

    def enter(self, *lines):
        self.own.write_text("".join(f"{line}\n" for line in lines))

    def set(self, group, **files):
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    made = Tree(tmp_path)
    monkeypatch.setattr(limits, "_CGROUPS", made.root)
    monkeypatch.setattr(limits, "_OWN_CGROUPS", made.own)
    virtual = psutil.virtual_memory()._replace(available=1000 * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: virtual)
    return made


class TestControlGroups:
    def test_none(self, tree):
        assert available_memory() == 1000 * MIB

    def test_a_system_without_them(self, tree):
        tree.own.unlink()
        assert available_memory() == 1000 * MIB

    def test_version_2(self, tree):
        tree.enter("0::/user/box")
        tree.set("user/box", memory__max=300 * MIB, memory__current=100 * MIB)
        assert available_memory() == 200 * MIB

    def test_the_tightest_one_above_counts(self, tree):
        tree.enter("0::/user/box/inner")
        tree.set("user/box/inner", memory__max="max", memory__current=MIB)
        tree.set("user/box", memory__max=300 * MIB, memory__current=100 * MIB)
        tree.set("user", memory__max=150 * MIB, memory__current=100 * MIB)
        assert available_memory() == 50 * MIB

    def test_the_root_may_have_a_limit_in_a_container(self, tree):
        tree.enter("0::/")
        tree.set(".", memory__max=300 * MIB, memory__current=100 * MIB)
        assert available_memory() == 200 * MIB

    def test_nothing_above_the_root(self, tree):
        tree.enter("0::/box")
        tree.set("box", memory__max="max", memory__current=MIB)
        tree.set("..", memory__max=MIB, memory__current=0)
        assert available_memory() == 1000 * MIB

    def test_a_group_that_cannot_be_seen(self, tree):
        tree.enter("0::/gone/box")
        tree.set(".", memory__max=300 * MIB, memory__current=0)
        assert available_memory() == 300 * MIB

    def test_file_cache_can_be_reclaimed(self, tree):
        tree.enter("0::/box")
        tree.set(
            "box",
            memory__max=300 * MIB,
            memory__current=290 * MIB,
            memory__stat=f"anon 5\nfile 7\ninactive_file {200 * MIB}\nodd line of words",
        )
        assert available_memory() == 210 * MIB

    def test_version_1(self, tree):
        tree.enter("3:cpu,cpuacct:/box", "4:memory:/box", "1:name=systemd:/", "0::/other")
        tree.set(
            "memory/box",
            memory__limit_in_bytes=300 * MIB,
            memory__usage_in_bytes=100 * MIB,
            memory__stat=f"inactive_file {20 * MIB}",
        )
        tree.set("cpu,cpuacct/box", memory__limit_in_bytes=MIB, memory__usage_in_bytes=0)
        tree.set("memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=MIB)
        assert available_memory() == 220 * MIB

    def test_more_is_used_than_allowed(self, tree):
        tree.enter("0::/box")
        tree.set("box", memory__max=100 * MIB, memory__current=101 * MIB)
        assert available_memory() == 0


def test_this_very_machine():
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert address_space_left() > MIB


class TestAddressSpace:
    @pytest.fixture
    def limits(self, monkeypatch):
        values = {
            resource.RLIMIT_AS: resource.RLIM_INFINITY,
            resource.RLIMIT_FSIZE: resource.RLIM_INFINITY,
        }
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (values[kind], values[kind]))
        return values

    def test_no_limit(self, limits):
        assert address_space_left() == sys.maxsize

    def test_a_quarter_of_what_is_left(self, limits):
        used = psutil.Process().memory_info().vms
        limits[resource.RLIMIT_AS] = used + 400 * MIB
        assert 50 * MIB < address_space_left() <= 100 * MIB + (1 << 24)

    def test_nothing_is_left(self, limits):
        limits[resource.RLIMIT_AS] = 1
        assert address_space_left() == 0

    def test_the_size_of_files(self, limits):
        limits[resource.RLIMIT_FSIZE] = 5 * MIB
        assert address_space_left() == 5 * MIB
