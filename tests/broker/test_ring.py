import gc
import mmap
import os
import pickle
import resource
import subprocess
import sys
import threading
import time
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from crumpets_like.broker import ring as ring_module
from crumpets_like.broker.buffers import BufferSpec, SlotLayout
from crumpets_like.broker.ring import BufferRing
from crumpets_like.broker.segment import NO_SLOT
from tests.support.scenario import run_scenario

LAYOUT = SlotLayout({"x": BufferSpec((1024,), "u1")}, rows=8)  # two pages


@pytest.fixture
def make():
    rings = []

    def make_ring(layout=LAYOUT, buffers=2, nworkers=2, max_buffers=None):
        ring = BufferRing(layout, buffers, nworkers, max_buffers)
        rings.append(ring)
        return ring

    yield make_ring
    for ring in rings:
        ring.close()


class TestSlots:
    def test_as_many_as_allowed(self, make):
        ring = make(buffers=2, max_buffers=3)
        assert ring.limit == 3
        assert [ring.take() for _ in range(4)] == [0, 1, 2, None]
        ring.give_back(1)
        assert ring.idle == 1
        assert [ring.take() for _ in range(2)] == [1, None]

    def test_the_one_that_was_used_last_is_taken_first(self, make):
        ring = make(buffers=3)
        for slot in [ring.take() for _ in range(3)]:
            ring.give_back(slot)
        assert [ring.take() for _ in range(3)] == [2, 1, 0]

    def test_those_made_ready_are_idle_until_they_are_used(self, make):
        ring = make(buffers=3, max_buffers=5)
        found = [ring.idle]
        for _ in range(5):
            ring.take()
            found.append(ring.idle)
        assert found == [3, 2, 1, 0, 0, 0]

    def test_no_slots_at_all(self, make):
        ring = make(buffers=0)
        assert [ring.take() for _ in range(3)] == [NO_SLOT] * 3
        ring.give_back(NO_SLOT)
        assert ring.idle == ring.held == 0
        ring.touch()

    def test_there_are_no_first_slots_without_slots_or_layout(self, make):
        assert make(buffers=0).first_slots.nbytes == 0
        assert make(layout=None).first_slots.nbytes == 0

    def test_free_form_results_overflow_into_messages(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "_FREE_FORM_SLOTS", 3)
        ring = make(layout=None, buffers=2)
        assert [ring.take() for _ in range(5)] == [0, 1, 2, NO_SLOT, NO_SLOT]

    def test_but_not_where_the_user_has_set_a_limit(self, make):
        ring = make(layout=None, buffers=2, max_buffers=3)
        assert [ring.take() for _ in range(4)] == [0, 1, 2, None]

    def test_more_than_the_memory_there_is(self, monkeypatch):
        monkeypatch.setattr(ring_module, "available_memory", lambda: 40_000)
        with pytest.raises(
            MemoryError, match=r"needs 81,920 bytes \(10 buffers of 8,192\).*40,000"
        ):
            BufferRing(LAYOUT, 10, 1)

    def test_by_default_half_of_the_memory(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "available_memory", lambda: 200 * LAYOUT.stride)
        assert make().limit == 100

    def test_touch_gets_memory_for_the_first_slots(self, make):
        ring = make(buffers=5, max_buffers=100)
        before = os.fstat(ring.descriptor).st_blocks
        ring.touch()
        got = 512 * (os.fstat(ring.descriptor).st_blocks - before)
        assert 5 * LAYOUT.stride <= got <= 5 * LAYOUT.stride + ring.geometry.header

    def test_no_descriptor_is_lost_when_the_segment_cannot_be_made(self, monkeypatch):
        def refuse(*arguments, **options):
            raise OSError("no")

        monkeypatch.setattr(mmap, "mmap", refuse)
        with pytest.raises(MemoryError, match=r"shared segment of .* cannot be made \(no\)"):
            BufferRing(LAYOUT, 2, 1)  # the leak guard looks for the descriptor

    def test_a_segment_that_is_refused_is_made_smaller(self, make, monkeypatch):
        largest = 40 * LAYOUT.stride
        plain = mmap.mmap

        def refuse(descriptor, size, *arguments, **options):
            if size > largest:
                raise OSError("too large")
            return plain(descriptor, size, *arguments, **options)

        monkeypatch.setattr(mmap, "mmap", refuse)
        ring = make(max_buffers=100)
        assert 2 <= ring.limit < 40
        assert ring.limit == ring.geometry.slots, "or callers would wait for slots that never come"


def limited(kind, limit):
    """A ring under a resource limit works, with a smaller mapping."""
    resource.setrlimit(getattr(resource, kind), (limit, limit))
    for layout in (LAYOUT, None):
        ring = BufferRing(layout, 4, 2)
        assert ring.limit >= 4
        assert ring.geometry.size <= limit
        if kind == "RLIMIT_FSIZE" and layout is not None:
            assert ring.geometry.size + ring.geometry.stride > limit, "it is the largest that fits"
            assert "or raise the limits of this process (ulimit -v, ulimit -f)" in str(
                ring.exhausted()
            )
        ring.touch()
        slot = ring.take()
        base = ring.lease(slot)
        base[:100] = 1
        del base
        assert ring.take() == slot
        ring.close()


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_FSIZE"])
@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce these")
def test_resource_limits(kind):
    run_scenario(limited, kind, 8 << 30 if kind == "RLIMIT_AS" else 32 << 20).check()


class TestWaiting:
    def test_a_return_ends_it_and_the_slot_is_still_there(self, make):
        ring = make(max_buffers=2)
        slots = [ring.take(), ring.take()]
        thread = threading.Thread(target=ring.give_back, args=(slots[1],))
        thread.start()
        assert ring.wait_for_return(10)
        thread.join()
        assert ring.take() == slots[1]

    def test_a_slot_that_came_back_before_is_not_waited_for(self, make):
        ring = make(buffers=1, max_buffers=1)
        ring.give_back(ring.take())
        assert ring.held == 0, "which takes note of the slot"
        assert ring.wait_for_return(10)
        assert ring.take() is not None

    def test_wake_ends_it(self, make):
        ring = make()
        ring.wake()
        assert ring.wait_for_return(None)
        assert ring.idle == 2, "it brings no slot"

    def test_it_ends_by_itself(self, make):
        started = time.monotonic()
        assert not make().wait_for_return(0.05)
        assert time.monotonic() - started >= 0.05

    def test_unreachable_mini_batches_are_looked_for(self, make):
        ring = make(max_buffers=2, buffers=1)
        gc.disable()
        try:
            for _ in range(2):
                cycle = [ring.lease(ring.take())]
                cycle.append(cycle)
            del cycle
            assert ring.take() is None
            assert ring.take_or_collect() is not None
        finally:
            gc.enable()


def numpy_views(array):
    return {
        "slice": array[1:3],
        "strided": array[::2],
        "reshaped": array.reshape(2, -1),
        "transposed": array.reshape(2, -1).T,
        "other dtype": array.view(np.uint16),
        "subclass": array.view(np.recarray),
        "memoryview": memoryview(array),
        "slice of a memoryview": memoryview(array)[3:],
        "pickle buffer": pickle.PickleBuffer(array),
        "ctypes": array.ctypes,
        "asarray": np.asarray(memoryview(array)),
        "frombuffer": np.frombuffer(array, np.uint8),
        "iterator": iter(array),
        "capsule": array.__dlpack__(),
        "dlpack": np.from_dlpack(array),
    }


class TestLeases:
    def test_a_lease_is_the_slot(self, make):
        ring = make()
        ring.take()
        slot = ring.take()
        base = ring.lease(slot)
        base[...] = 7
        offset, stride = ring.geometry.offset(slot), ring.geometry.stride
        assert base.shape == (stride,)
        assert ring.mapping[offset : offset + stride] == b"\x07" * stride
        assert not any(ring.mapping[offset - 100 : offset])
        assert base.flags.writeable

    @pytest.mark.parametrize("kind", list(numpy_views(np.zeros(8, np.uint8))))
    def test_any_view_keeps_it(self, make, kind):
        ring = make()
        view = numpy_views(ring.lease(ring.take())[:8])[kind]
        gc.collect()
        assert (ring.held, ring.idle) == (1, 1)
        del view
        assert (ring.held, ring.idle) == (0, 2)

    def test_views_of_torch(self, make):
        torch = pytest.importorskip("torch")
        ring = make()
        for kind in (torch.from_numpy, torch.as_tensor, torch.from_dlpack):
            tensor = kind(ring.lease(ring.take())[:8])
            row = tensor[2:4].float().sum() + tensor.view(2, 4)[0].sum()
            view = tensor.view(torch.int16)
            del tensor
            assert ring.held == 1
            del view
            assert (ring.held, row) == (0, 0)

    def test_copies_do_not_keep_it(self, make):
        ring = make()
        base = ring.lease(ring.take())
        copies = [base.copy(), deepcopy(base), pickle.loads(pickle.dumps(base)), base.tolist()]
        del base
        assert (ring.held, ring.idle) == (0, 2)
        del copies

    def test_every_lease_of_a_slot_is_a_new_one(self, make):
        ring = make()
        for _ in range(100):
            slot = ring.take()
            base = ring.lease(slot)
            assert ring.held == 1
            del base
        assert ring.idle == 2

    def test_the_last_view_may_die_in_any_thread(self, make):
        ring = make()
        views = [ring.lease(ring.take())[1:]]
        thread = threading.Thread(target=views.clear)
        thread.start()
        thread.join()
        assert ring.held == 0

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_returns_nothing(self, make):
        ring = make()
        base = ring.lease(ring.take())
        pid = os.fork()
        if pid == 0:
            del base
            os._exit(10 * len(ring._leases) + ring._returned.qsize())  # its own copies
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 11
        assert ring._returned.qsize() == 0
        assert ring.held == 1

    def test_views_outlive_the_ring(self):
        ring = BufferRing(LAYOUT, 2, 1)
        view = ring.lease(ring.take())[5:]
        view[...] = 9
        ring.close()
        del ring
        assert (view == 9).all()

    def test_many_threads(self, make):
        ring = make(buffers=4, max_buffers=8)
        errors = []
        owner = dict.fromkeys(range(8), 0)

        def work(name):
            for _ in range(300):
                slot = ring.take()
                if slot is None:
                    ring.wait_for_return(0.01)
                    continue
                if owner[slot]:
                    errors.append(f"slot {slot} is taken twice")
                owner[slot] = name
                base = ring.lease(slot)
                base[:8] = name
                if (base[:8] != name).any() or owner[slot] != name:
                    errors.append(f"slot {slot} is used by two")
                owner[slot] = 0
                del base

        threads = [threading.Thread(target=work, args=(name,)) for name in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert ring.held == 0


def resident(ring, slot):
    """Whether a slot has memory, by a look that does not touch it."""
    start = ring.geometry.offset(slot)
    return os.lseek(ring.descriptor, start, os.SEEK_DATA) < start + ring.geometry.stride


@pytest.mark.skipif(not hasattr(mmap, "MADV_REMOVE"), reason="needs MADV_REMOVE")
class TestTrimming:
    def cycle(self, ring, count):
        for _ in range(count):
            ring.give_back(ring.take())

    def test_extra_slots_go_back_after_long_disuse(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "_DISUSE", 50)
        ring = make(buffers=2, max_buffers=10)
        slots = [ring.take() for _ in range(6)]
        for slot in slots:
            ring.mapping[ring.geometry.offset(slot)] = 1
        end = ring.geometry.offset(9)
        ring.mapping[end : end + 1] = b"x"  # so that SEEK_DATA always finds something
        for slot in reversed(slots):
            ring.give_back(slot)
        assert all(resident(ring, slot) for slot in slots)
        self.cycle(ring, 160)
        # Slots 0 and 1 belong to the ring's usual size; 0 is the one in use.
        assert [slot for slot in slots if resident(ring, slot)] == [0, 1]
        assert ring.idle == 6
        taken = [ring.take() for _ in range(6)]
        assert sorted(taken) == slots, "they can be used again"

    def test_the_first_slots_stay_whatever_happens(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "_DISUSE", 50)
        ring = make(buffers=3, max_buffers=6)
        first = ring.first_slots
        assert first.nbytes == 3 * ring.geometry.stride
        slots = [ring.take() for _ in range(6)]
        for slot in slots:
            ring.lease(slot)[...] = slot + 1
        self.cycle(ring, 300)
        rows = first.reshape(3, -1)
        assert [set(row.tolist()) for row in rows] == [{1}, {2}, {3}]
        del first, rows

    def test_slots_in_use_stay(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "_DISUSE", 50)
        ring = make(buffers=1, max_buffers=10)
        held = [ring.lease(ring.take()) for _ in range(4)]
        for base in held:
            base[...] = 3
        self.cycle(ring, 300)
        assert all((base == 3).all() for base in held)

    def test_slots_that_were_needed_meanwhile_stay(self, make, monkeypatch):
        monkeypatch.setattr(ring_module, "_DISUSE", 50)
        ring = make(buffers=1, max_buffers=10)
        for number in range(20):
            slots = [ring.take() for _ in range(6)]
            for slot in slots:
                assert ring.mapping[ring.geometry.offset(slot)] == min(1, number)
                ring.mapping[ring.geometry.offset(slot)] = 1
                ring.give_back(slot)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_mapping_is_not_dumped(make):
    ring = make()
    address = ring.lease(ring.take()).ctypes.data
    for region in Path("/proc/self/smaps").read_text().split("VmFlags:")[:-1]:
        lines = region.strip().splitlines()
        header = next(line for line in reversed(lines) if "-" in line.split()[0])
        start, end = (int(part, 16) for part in header.split()[0].split("-"))
        if start <= address < end:
            break
    flags = Path("/proc/self/smaps").read_text().split(header)[1].split("VmFlags:")[1]
    assert "dd" in flags.splitlines()[0].split()


def test_another_process_sees_the_same_bytes(make):
    ring = make()
    slot = ring.take()
    base = ring.lease(slot)
    code = (
        "import mmap, sys; fd, size, at = map(int, sys.argv[1:]);"
        "m = mmap.mmap(fd, size); m[at] = m[at] + 1"
    )
    base[0] = 41
    arguments = [ring.descriptor, ring.geometry.size, ring.geometry.offset(slot)]
    subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], pass_fds=[ring.descriptor], check=True
    )
    assert base[0] == 42
