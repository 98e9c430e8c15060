import logging
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import zmq

from crumpets_like import TurboDataLoader, Worker, WorkerDied
from crumpets_like.broker import worker_loop
from crumpets_like.broker.encoding import decode
from crumpets_like.broker.failures import (
    describe_failure,
    pack_errors,
    rebuild_exception,
    unpack_errors,
)
from crumpets_like.broker.processes import Wakeup, thread_limits
from crumpets_like.broker.protocol import (
    Chunk,
    Done,
    Failure,
    Kind,
    Outcome,
    Part,
    Ready,
    Status,
    Stop,
    pack,
    unpack,
)
from crumpets_like.broker.segment import NO_SLOT
from crumpets_like.broker.worker_loop import STARTING_UP, limit_threads, serve
from tests.support.loading import Items, wait_until
from tests.support.runner import Bench
from tests.support.scenario import run_scenario
from tests.support.sockets import Peers, addresses, in_thread

TOKEN = b"secret"


class Free(Worker):
    """Notes what is called; a sample that is an exception is raised."""

    def __init__(self, **errors):
        super().__init__()
        self.calls = []
        self.errors = errors

    def setup(self):
        self.calls.append("setup")
        if "setup" in self.errors:
            raise self.errors["setup"]

    def process(self, sample):
        if isinstance(sample, BaseException):
            raise sample
        return {"x": sample}

    def teardown(self):
        self.calls.append("teardown")
        if "teardown" in self.errors:
            raise self.errors["teardown"]


class Broker:
    """The other end of a worker's socket."""

    def __init__(self, router, wakeup, worker):
        self.router = router.socket
        self.wakeup = wakeup
        self.worker = worker
        self.identity = b""

    def receive(self):
        self.identity, head, *frames = self.router.recv_multipart()
        return unpack(head, frames, TOKEN), frames

    def send(self, message, *frames):
        self.router.send_multipart([self.identity, pack(message, TOKEN), *frames])


@contextmanager
def serving(worker, dataset=None, **options):
    """Serve in a thread; yields the broker."""
    wakeup = Wakeup()
    bench = Bench(worker, dataset, **options)
    try:
        with addresses("worker") as (address,), Peers() as peers:
            broker = Broker(peers.open(zmq.ROUTER, address, bind=True), wakeup, worker)
            settings = SimpleNamespace(worker_address=address, token=TOKEN)
            context = zmq.Context()
            run = lambda: serve(  # noqa: E731
                bench.runner, context, settings, 3, [wakeup.fileno()]
            )
            with context, in_thread(run, wakeup.set):
                yield broker
    finally:
        wakeup.close()


def part(size, start=0, rows=4):
    return Part(NO_SLOT, rows, start, size, start)


def columns(frames, done):
    """What the parts of an answer hold, or their errors."""
    found, first = [], 0
    for status, count, _, _ in done.parts:
        mine = frames[first : first + count]
        first += count
        found.append(decode(mine, None) if status == Status.DONE else rebuild_exception(mine[0]))
    return found


def test_the_last_words_of_a_thread_wait_for_the_broker(monkeypatch):
    """It may bind its socket later than a worker fails to set itself up."""
    reported, report = threading.Event(), worker_loop._report

    def note(*args):
        report(*args)
        reported.set()

    monkeypatch.setattr(worker_loop, "_report", note)
    monkeypatch.setattr(worker_loop, "_LINGER", 0)
    wakeup = Wakeup()
    bench = Bench(Free(setup=KeyError("setup")))
    with addresses("worker") as (address,), Peers() as peers:
        settings = SimpleNamespace(worker_address=address, token=TOKEN)
        run = lambda: serve(  # noqa: E731
            bench.runner, peers.context, settings, 3, [wakeup.fileno()]
        )
        with in_thread(run, wakeup.set):
            assert reported.wait(20)
            broker = peers.open(zmq.ROUTER, address, bind=True)
            _, head, text = broker.socket.recv_multipart()
            assert unpack(head, [text], TOKEN) == Failure(3)
            assert isinstance(rebuild_exception(text), KeyError)
        # Without a broker, nothing waits for it.
        monkeypatch.setattr(worker_loop, "_LINGER", -1)
    with addresses("worker") as (address,), Peers() as peers:
        settings = SimpleNamespace(worker_address=address, token=TOKEN)
        serve(bench.runner, peers.context, settings, 3, [wakeup.fileno()])
    wakeup.close()


class TestServing:
    def test_no_work_is_begun_behind_the_stop(self):
        begun, go_on = threading.Event(), threading.Event()

        class Slow(Worker):
            seen: ClassVar[list[int]] = []

            def process(self, sample):
                self.seen.append(sample)
                begun.set()
                go_on.wait()
                return {"x": sample}

            def teardown(self):
                self.seen.append("teardown")

        with serving(Slow(), [10, 11]) as broker:
            broker.receive()
            for number in (0, 1):
                indices = np.array([number]).tobytes()
                broker.send(Chunk(8 + number, 0, Kind.INDICES, 0, [part(1)]), indices)
            assert begun.wait(20)
            broker.wakeup.set()
            go_on.set()
        assert Slow.seen == [10, "teardown"]

    def test_the_way_of_a_chunk(self):
        worker = Free()
        with serving(worker, [10, 11, 12, 13]) as broker:
            assert broker.receive() == (Ready(3, 0), [])
            assert worker.calls == ["setup"]
            indices = np.array([3, 1, 2]).tobytes()
            broker.send(Chunk(8, 0, Kind.INDICES, 0, [part(2), part(1, 3)]), indices)
            done, frames = broker.receive()
            assert isinstance(done, Done)
            assert done.chunk_id == 8
            assert 0 < done.seconds < 5
            assert done.parts == [Outcome(Status.DONE, 1, 3, 0), Outcome(Status.DONE, 1, 2, 0)]
            found = columns(frames, done)
            assert [list(column["x"]) for column in found] == [[13, 11], [12]]
        assert worker.calls == ["setup", "teardown"]

    @pytest.mark.parametrize("kind", [Kind.SAMPLES, Kind.KEYS])
    def test_samples_and_keys(self, kind):
        with serving(Free(), {"a": 1, "b": 2, "c": 3}) as broker:
            broker.receive()
            keys = ["a", "b", "c"] if kind is Kind.KEYS else [1, 2, 3]
            chunk = Chunk(1, 0, kind, 0, [part(1), part(2, 1)])
            broker.send(chunk, *map(pickle.dumps, keys))
            done, frames = broker.receive()
            assert [outcome.first_index for outcome in done.parts] == [-1, -1]
            assert [list(column["x"]) for column in columns(frames, done)] == [[1], [2, 3]]

    def test_one_after_the_other(self):
        with serving(Free()) as broker:
            broker.receive()
            for chunk_id in range(5):
                indices = np.array([chunk_id]).tobytes()
                broker.send(Chunk(chunk_id, 0, Kind.INDICES, 0, [part(1)]), indices)
            assert [broker.receive()[0].chunk_id for _ in range(5)] == list(range(5))

    def test_an_error_fails_its_part_only(self):
        with serving(Free(), [1, KeyError("mine"), SystemExit(2), 4]) as broker:
            broker.receive()
            chunk = Chunk(1, 0, Kind.INDICES, 0, [part(1, n) for n in range(4)])
            broker.send(chunk, np.arange(4).tobytes())
            done, frames = broker.receive()
            assert [outcome.status for outcome in done.parts] == [0, 1, 1, 0]
            found = columns(frames, done)
            assert list(found[0]["x"]) == [1]
            assert isinstance(found[1], KeyError)
            assert isinstance(found[2], SystemExit)
            assert list(found[3]["x"]) == [4]

    @pytest.mark.parametrize("kind", [Kind.INDICES, Kind.SAMPLES])
    def test_a_sample_that_has_ended_another_worker(self, kind):
        lost = pack_errors([(1, describe_failure(KeyError("its end")))])
        with serving(Free(), [10, 11, 12], on_error="skip") as broker:
            broker.receive()
            samples = [np.arange(3).tobytes()]
            if kind is Kind.SAMPLES:
                samples = [pickle.dumps(n) for n in (10, 11, 12)]
            broker.send(Chunk(1, 0, kind, 1, [part(3, rows=3)]), *samples, lost)
            done, frames = broker.receive()
            ((status, count, _, skipped),) = done.parts
            assert (status, count, skipped) == (Status.DONE, 2, 1)
            ((row, error),) = unpack_errors(frames.pop())
            assert (row, repr(rebuild_exception(error))) == (1, "KeyError('its end')")
            assert list(decode(frames, None)["x"]) == [10, 12]

    def test_a_sample_that_cannot_be_unpickled(self):
        with serving(Free()) as broker:
            broker.receive()
            broker.send(Chunk(1, 0, Kind.SAMPLES, 0, [part(1), part(1, 1)]), b"no", pickle.dumps(5))
            done, frames = broker.receive()
            error, column = columns(frames, done)
            assert isinstance(error, pickle.UnpicklingError)
            unpickled, where = error.__notes__
            assert unpickled == "While it was unpickled in a worker."
            assert "sample number 0 of the epoch" in where
            assert list(column["x"]) == [5]


class TestEnd:
    def test_the_broker_says_so(self):
        worker = Free()
        with serving(worker) as broker:
            broker.receive()
            broker.send(Stop())
            assert wait_until(lambda: worker.calls == ["setup", "teardown"])

    def test_a_process_that_is_needed_has_ended(self):
        worker = Free()
        with serving(worker) as broker:
            broker.receive()
            broker.wakeup.set()
            assert wait_until(lambda: worker.calls == ["setup", "teardown"])

    def test_an_error_in_teardown_is_logged(self, caplog):
        with caplog.at_level(logging.ERROR), serving(Free(teardown=KeyError("mine"))) as broker:
            broker.receive()
            broker.send(Stop())
        assert "teardown() of worker 3 failed" in caplog.text
        assert "KeyError" in caplog.text

    @pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)])
    def test_an_error_in_setup_is_reported(self, error):
        worker = Free(setup=error)
        with serving(worker) as broker:
            message, (frame,) = broker.receive()
            assert message == Failure(3)
            found = rebuild_exception(frame)
            assert type(found) is type(error)
            assert found.__notes__ == ["In Free.setup of worker 3."]
        assert worker.calls == ["setup", "teardown"]


class BadPickle(Items):
    """Cannot be unpickled."""

    def __setstate__(self, state):
        raise ValueError("mine")


def test_reports_of_errors_before_that():
    with (
        TurboDataLoader(range(8), 4, BadPickle(), 1, start_method="fork") as loader,
        pytest.raises(ValueError, match="mine") as caught,
    ):
        list(loader)
    assert caught.value.__notes__ == ["While the template and the dataset were unpickled."]


class Exits(Items):
    """Ends its process in a sample."""

    def __init__(self, code):
        super().__init__()
        self.code = code

    def prepare(self, sample, batch, buffers):
        if sample == 3:
            sys.exit(self.code)
        super().prepare(sample, batch, buffers)


class TestExit:
    @pytest.mark.parametrize(("code", "expected"), [(None, 0), (3, 3), (259, 3), ("text", 1)])
    def test_ends_the_process_with_its_code(self, code, expected):
        options = {"start_method": "fork", "restarts": 0}
        with (
            TurboDataLoader(range(8), 4, Exits(code), 1, **options) as loader,
            pytest.raises(WorkerDied) as caught,
        ):
            list(loader)
        died = caught.value
        assert (died.exit_code, died.index, died.epoch, died.batch) == (expected, 3, 0, 0)

    def test_is_no_answer(self):
        """The broker hears of it when the process ends."""
        worker = Free()

        def exit_in_a_sample():
            with serving(worker, [SystemExit(3)], may_exit=True) as broker:
                broker.receive()
                broker.send(Chunk(1, 0, Kind.INDICES, 0, [part(1)]), bytes(8))
                assert wait_until(lambda: worker.calls == ["setup", "teardown"])
                assert not broker.router.poll(50)

        with pytest.raises(SystemExit):
            exit_in_a_sample()


class Logs(Items):
    """Logs wherever it can."""

    def setup(self):
        logging.getLogger("tests.worker").info("setup of %d", self.worker_id)

    def prepare(self, sample, batch, buffers):
        logging.getLogger("tests.worker").debug("not shown")
        logging.getLogger("tests.worker").warning("sample %d", sample)
        super().prepare(sample, batch, buffers)


def test_log_records_reach_the_handlers_of_the_caller(caplog):
    expected = ["setup of 0", "sample 0", "sample 1"]
    with (
        caplog.at_level(logging.INFO, "tests.worker"),
        TurboDataLoader(range(2), 2, Logs(), 1, start_method="fork") as loader,
    ):
        list(loader)
        assert wait_until(lambda: len(caplog.records) >= 3)
    records = [record for record in caplog.records if record.name == "tests.worker"]
    assert [record.getMessage() for record in records][:3] == expected
    assert [record.levelname for record in records][:3] == ["INFO", "WARNING", "WARNING"]


@pytest.fixture
def environment(monkeypatch):
    """The environment is as it was afterwards."""
    for name in thread_limits(1):
        monkeypatch.setenv(name, "before")
    return os.environ


class TestThreads:
    @pytest.mark.parametrize(("threads", "of_cv2"), [(1, 0), (2, 2), (5, 5)])
    def test_of_libraries_that_are_there(self, monkeypatch, environment, threads, of_cv2):
        calls = []
        torch = SimpleNamespace(set_num_threads=lambda n: calls.append(("torch", n)))
        cv2 = SimpleNamespace(setNumThreads=lambda n: calls.append(("cv2", n)))
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "cv2", cv2)
        limit_threads(threads)
        assert calls == [("torch", threads), ("cv2", of_cv2)]

    def test_of_libraries_that_come_later(self, monkeypatch, environment):
        for name in ("torch", "cv2"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        limit_threads(3)
        assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
        assert {environment[name] for name in thread_limits(1)} == {"3"}

    def test_nothing_is_imported_for_it(self, monkeypatch, environment):
        for name in ("torch", "cv2"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        limit_threads(1)
        assert not {"torch", "cv2"} & sys.modules.keys()


def test_a_thread_of_the_training_process_changes_no_signal():
    before = signal.getsignal(STARTING_UP)
    with serving(Free()) as broker:
        broker.receive()
    assert signal.getsignal(STARTING_UP) is before


class Large(Free):
    def process(self, sample):
        return {"x": [np.zeros(25_000) for _ in range(6)]}


def end_together(rounds):
    """End a worker and its broker in the same moment, with results half sent."""
    for number in range(rounds):
        with serving(Large()) as broker, ThreadPoolExecutor() as pool:
            broker.receive()
            for chunk in range(5):
                message = Chunk(chunk, 0, Kind.INDICES, 0, [part(1)])
                broker.send(message, np.zeros(1, np.int64).tobytes())
            assert broker.router.poll(10_000)
            gate = threading.Barrier(2)

            def end(what, wait, gate=gate):
                gate.wait()
                stop = time.perf_counter() + wait
                while time.perf_counter() < stop:
                    pass
                what()

            apart = (number % 20 - 10) * 3e-5  # seconds
            pool.submit(end, broker.wakeup.set, max(0, apart))
            pool.submit(end, broker.router.close, max(0, -apart)).result()


def test_results_that_are_half_sent_when_both_ends_close():
    result = run_scenario(end_together, 50).check()
    assert result.stderr == ""
