import errno
import mmap
import os
import resource
import sys

import pytest

from crumpets_like.broker.limits import address_space_left
from crumpets_like.broker.memory import anonymous_file, hide_from_dumps
from tests.support.scenario import run_scenario

MIB = 1 << 20


class TestAnonymousFiles:
    def test_shared_and_empty_and_nameless(self):
        descriptor = anonymous_file("test", 10_000)
        try:
            assert os.fstat(descriptor).st_size >= 10_000
            assert os.fstat(descriptor).st_nlink == 0
            assert not os.get_inheritable(descriptor)
            with mmap.mmap(descriptor, 10_000) as one, mmap.mmap(descriptor, 10_000) as two:
                assert not any(one[:])
                one[5] = 7
                assert two[5] == 7
        finally:
            os.close(descriptor)

    def test_much_more_than_there_is_memory(self):
        descriptor = anonymous_file("test", 1 << 44)
        assert os.fstat(descriptor).st_blocks == 0
        os.close(descriptor)

    @pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce it")
    def test_too_large(self):
        run_scenario(too_large).check()


def too_large():
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError) as caught:  # noqa: PT011
        anonymous_file("test", 2 * MIB)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir("/proc/self/fd") == before
    assert address_space_left() == MIB


def test_hidden_mappings_work():
    with mmap.mmap(-1, mmap.PAGESIZE) as mapping:
        hide_from_dumps(mapping)
        mapping[0] = 1
