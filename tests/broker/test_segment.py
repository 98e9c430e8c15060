import mmap

import pytest

from crumpets_like.broker.segment import RingGeometry, StatusPage


class TestStatusPage:
    def test_workers_do_not_share_a_line(self):
        memory = bytearray(4096)
        page = StatusPage(memory, 3)
        for worker in range(3):
            page.set_position(worker, 10 + worker)
            page.add_work(worker, 0.5 * worker)
            page.add_work(worker, 0.25)
        assert [page.position(worker) for worker in range(3)] == [10, 11, 12]
        assert [page.busy_seconds(worker) for worker in range(3)] == [0.25, 0.75, 1.25]
        assert [memory[64 * worker] for worker in range(3)] == [10, 11, 12]
        assert not any(memory[3 * 64 :])

    def test_a_cell_is_the_position(self):
        page = StatusPage(bytearray(4096), 2)
        page.cell(1)[0] = 7
        assert page.position(1) == 7
        assert page.position(0) == 0

    def test_clear(self):
        page = StatusPage(bytearray(4096), 2)
        page.add_work(1, 0.5)
        page.clear()
        assert [page.position(worker) for worker in range(2)] == [-1, -1]
        assert page.busy_seconds(1) == 0.5

    def test_released_memory_can_be_closed(self):
        memory = mmap.mmap(-1, 4096)
        page = StatusPage(memory, 1)
        with pytest.raises(BufferError):
            memory.close()
        page.release()
        memory.close()


class TestGeometry:
    def test_slots_follow_the_status_page(self):
        geometry = RingGeometry(nworkers=200, stride=8192, slots=3)
        assert geometry.header >= 200 * 64
        assert geometry.header % mmap.PAGESIZE == 0
        assert [geometry.offset(slot) - geometry.header for slot in range(3)] == [0, 8192, 16384]
        assert geometry.size == geometry.header + 3 * 8192

    def test_nothing_but_the_status_page(self):
        assert RingGeometry(0, 0, 0).size == mmap.PAGESIZE
