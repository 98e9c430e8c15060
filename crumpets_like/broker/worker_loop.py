"""The message loop of one worker: ask, work, answer."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import logging
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

import numpy as np
import zmq

from .. import seeding
from .failures import add_note, describe_failure
from .logs import MOST_RECORDS, forwarded_records, to_control
from .payload import load_payload
from .processes import (
    PASSED_OVER,
    STARTING_UP,
    death_descriptor,
    die_with_parent,
    name_process,
    thread_limits,
    wait_readable,
)
from .protocol import (
    Chunk,
    Done,
    Failure,
    Kind,
    NewDataset,
    Ready,
    Stop,
    pack,
    unpack,
)
from .reading import Pickled
from .runner import Runner
from .settings import Settings
from .snapshot import Place, load_snapshot
from .sockets import LINGER, end_context

__all__ = ["serve", "worker_process"]

logger = logging.getLogger(__name__)

_LINGER = 1000  # milliseconds that last words may take


def serve(
    runner: Runner,
    context: zmq.Context[Any],
    settings: Settings,
    worker_id: int,
    stop_descriptors: list[int],
    start: int = 0,
) -> bool:
    """Serve chunks until the broker says stop or one of `stop_descriptors` is readable.

    `start` is the number of this process among all workers that were started; 0: a thread.
    Returns whether the broker has yet to receive an error that ended this worker.
    """
    owner = os.getpid()
    socket = context.socket(zmq.DEALER)
    socket.linger = LINGER
    socket.identity = b"%d-%d" % (worker_id, time.monotonic_ns())
    socket.connect(settings.worker_address)
    try:
        try:
            runner.setup()
        except BaseException as error:  # noqa: BLE001  reported, then this worker ends
            note = f"In {type(runner.worker).__name__}.setup of worker {worker_id}."
            _report(socket, worker_id, error, note, settings)
            if not start:
                # Nobody sees a thread end, and a broker that binds late, or never, must not be the
                # reason that its last words are lost, or that the end of the loader waits for it.
                wait_readable(stop_descriptors, None)
                socket.linger = LINGER
            return True
        if threading.current_thread() is threading.main_thread():
            # From here on the broker says when to end; until here the supervisor may at any time.
            signal.signal(STARTING_UP, signal.SIG_IGN)
        socket.send(pack(Ready(worker_id, start), settings.token))
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        for descriptor in stop_descriptors:
            poller.register(descriptor, zmq.POLLIN)
        while True:
            if dict(poller.poll()).keys() & set(stop_descriptors):
                return False  # also if there is work left: nobody wants it any more
            message, *frames = socket.recv_multipart()
            request = unpack(message, frames, token=settings.token)
            if isinstance(request, Stop):
                return False
            if isinstance(request, NewDataset):
                try:
                    _load_dataset(runner, frames[0])
                except BaseException as error:  # noqa: BLE001  reported, then this worker ends
                    note = (
                        f"While the new state of the dataset was unpickled in worker {worker_id}."
                    )
                    _report(socket, worker_id, error, note, settings)
                    return True
            if isinstance(request, Chunk):
                answer = _run(runner, request, frames, settings.token)
                if os.getpid() != owner:  # user code has forked, and the child came back here
                    os._exit(1)
                socket.send_multipart(answer, copy=True)
    finally:
        try:
            runner.teardown()
        except Exception:  # the loader stops anyway; the user's mistake is shown in the log
            logger.exception("teardown() of worker %d failed", worker_id)
        socket.close()


def _report(
    socket: zmq.Socket[bytes], worker_id: int, error: BaseException, note: str, settings: Settings
) -> None:
    """Tell the caller of an error that ends this worker."""
    socket.linger = _LINGER
    socket.send_multipart([pack(Failure(worker_id), settings.token), describe_failure(error, note)])


def _load_dataset(runner: Runner, place: bytes) -> None:
    try:
        contents = load_snapshot(Place.unpack(place))
    except FileNotFoundError:  # a newer one is on its way, before anything that is still wanted
        return
    runner.use_dataset(contents["dataset"])


def _run(runner: Runner, chunk: Chunk, frames: list[bytes], token: bytes) -> list[Any]:
    """Work on a chunk and return the answer's frames."""
    kind = chunk.kind
    lost = frames.pop() if chunk.lost else b""
    keys = np.frombuffer(frames[0], np.int64) if kind is Kind.INDICES else Pickled(frames)
    started = time.perf_counter()
    outcomes = []
    answer: list[Any] = []
    first = 0
    for part in chunk.parts:
        stop = first + part.size
        outcome, part_frames = runner.run_part(part, chunk.epoch, kind, keys[first:stop], lost)
        first = stop
        outcomes.append(outcome)
        answer += part_frames
    seconds = time.perf_counter() - started
    return [pack(Done(chunk.chunk_id, seconds, outcomes), token), *answer]


def worker_process(
    settings: Settings, worker_id: int, start: int, parent: int, broker: int, dump: int
) -> NoReturn:
    """Body of a worker process, a child of the supervisor.

    Its stack goes to the descriptor `dump` when it crashes, and on SIGUSR1.
    """
    code = 1
    try:
        die_with_parent(signal.SIGKILL, parent)
        name_process(f"crumpets-w{worker_id}")
        for number in PASSED_OVER:  # as everywhere; subprocesses of user code inherit it
            signal.signal(number, signal.SIG_DFL)
        faulthandler.enable(dump)
        if hasattr(faulthandler, "register"):  # not on Windows
            faulthandler.register(signal.SIGUSR1, dump)
        # Two, so that only last words are waited for, not answers that nobody takes any more: the
        # first one lives until this process is gone.
        context, control_context = zmq.Context[Any](), zmq.Context[Any]()
        try:
            said = _serve_process(
                context, control_context, settings, worker_id, start, [parent, broker]
            )
        finally:
            end_context(control_context)
        if said:
            end_context(context)
        code = 0
    except SystemExit as error:  # of user code
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  there may be nobody to tell
        os.write(dump, traceback.format_exc().encode(errors="replace"))  # part of WorkerDied
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _serve_process(
    context: zmq.Context[Any],
    control_context: zmq.Context[Any],
    settings: Settings,
    worker_id: int,
    start: int,
    needed: list[int],
) -> bool:
    """As :func:`serve`."""
    if not os.path.exists(settings.worker_address.removeprefix("ipc://")):
        raise FileNotFoundError(
            f"The loader's socket {settings.worker_address} is gone. Likely cause: something "
            "cleans up the folder of temporary files; let TMPDIR name one that stays."
        )
    # Connected at once: a training process that is at its limit of descriptors later must not have
    # to accept anything then, libzmq would abort it.
    with control_context.socket(zmq.PUSH) as control:
        control.linger = _LINGER
        control.sndhwm = MOST_RECORDS
        control.connect(settings.control_address)
        send = to_control(control, settings.token, worker_id)
        with forwarded_records(send, f"crumpets-w{worker_id}", settings.levels):
            try:
                runner = _make_runner(settings, worker_id)
            except BaseException as error:  # noqa: BLE001  reported, then this worker ends
                add_note(error, "While the template and the dataset were unpickled.")
                control.send_multipart(
                    [pack(Failure(worker_id), settings.token), describe_failure(error)]
                )
                return False
            deaths = [death_descriptor(pid) for pid in needed]
            return serve(runner, context, settings, worker_id, deaths, start)


def _make_runner(settings: Settings, worker_id: int) -> Runner:
    # NOTE [Unpickle late] in payload.py: not before this process exists.
    template = load_payload(settings.payload, settings.payload_size, settings.shared)
    if settings.seed_globals and "torch" in settings.modules:
        importlib.import_module("torch")
    seeding.seed_worker_globals(int(settings.seed, 16), worker_id)
    limit_threads(settings.worker_threads)
    return Runner(
        template["worker_template"],
        template["dataset"],
        mmap.mmap(settings.ring, settings.geometry.size),
        settings.geometry,
        settings.rows,
        worker_id=worker_id,
        seed=int(settings.seed, 16),
        seed_globals=settings.seed_globals,
        on_error=template["on_error"],
        may_exit=True,
    )


def limit_threads(threads: int) -> None:
    """So many threads for each library: the workers are what runs in parallel."""
    os.environ.update(thread_limits(threads))  # for those that are imported later
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    cv2: Any = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(threads if threads > 1 else 0)
