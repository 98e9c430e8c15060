"""Messages that nobody of us has sent: dropped, and the run goes on."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from crumpets_like import TurboDataLoader
from crumpets_like.broker.addresses import private_directory
from crumpets_like.broker.protocol import (
    _TYPES,
    BatchHead,
    Cancel,
    Done,
    Failure,
    Item,
    Kind,
    Message,
    Outcome,
    Ready,
    Results,
    Segment,
    Stop,
    Submit,
    WorkersUp,
    pack,
)
from tests.support.loading import Items, run_items, wait_until

KINDS = {"work": zmq.PUSH, "worker": zmq.DEALER, "consume": zmq.PUSH, "control": zmq.PUSH}


def addresses(loader: TurboDataLoader) -> dict[str, str]:
    engine: Any = loader._engine
    folder = Path(private_directory(engine._parts.uid))
    return {kind: f"ipc://{folder / f'loader-{kind}-0'}" for kind in KINDS}


@contextmanager
def stranger(address: str, kind: int) -> Iterator[zmq.Socket[Any]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 1000
        socket.connect(address)
        yield socket


def garbage(rng: random.Random) -> list[bytes]:
    """Frames of random bytes, or a message with damage."""
    if rng.random() < 0.5:
        return [rng.randbytes(rng.choice([0, 1, 5, 40, 3000])) for _ in range(rng.randint(1, 4))]
    number = bytes((rng.randrange(len(_TYPES) + 2),))
    fields: Any = [rng.choice([0, -1, 1.5, b"x", None, [], [[1, 2]], 10**12]) for _ in range(6)]
    body = msgpack.packb(fields[: rng.randint(0, 6)])
    return [number + body[: rng.randint(0, len(body))], *[b"frame"] * rng.randint(0, 2)]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_random_bytes(kind: str, start_method: str) -> None:
    rng = random.Random(kind)
    with TurboDataLoader(range(2000), 4, Items(), 2, start_method=start_method) as loader:
        assert run_items(loader) == list(range(2000))
        with stranger(addresses(loader)[kind], KINDS[kind]) as socket:
            for _ in range(300):
                socket.send_multipart(garbage(rng))
            for _ in range(2):
                assert run_items(loader) == list(range(2000))


PLAUSIBLE: list[tuple[str, Message, list[bytes]]] = [
    ("work", Submit(1, 0, Kind.INDICES, [BatchHead(0, 0, 1, 0)]), [bytes(8)]),
    *(("work", Cancel(number), []) for number in range(1, 5)),
    ("work", Stop(), []),
    ("worker", Ready(0, 1), []),
    *(("worker", Done(number, 0.1, [Outcome(0, 0, 0, 0)]), []) for number in range(100)),
    ("consume", Results(0.1, 1, [Item(1, 0, 0, 4, 0, [Segment(0, 4, 0, 0, 0)])]), []),
    ("consume", Results(0.1, 1, [Item(2, 3, 0, 4, 2, [])]), []),
    ("control", WorkersUp(2), []),
    ("control", Failure(0), [pickle.dumps((ValueError("x"), "ValueError", "x", ""))]),
]


@pytest.mark.parametrize("start_method", ["fork", "thread"])
def test_messages_that_could_be_ours(start_method: str) -> None:
    """Without the loader's secret they are dropped like any others."""
    with TurboDataLoader(range(2000), 4, Items(), 2, start_method=start_method) as loader:
        names = addresses(loader)
        iterator = iter(loader)
        seen = next(iterator)[1][0]["item"].tolist()
        for kind, message, frames in PLAUSIBLE:
            with stranger(names[kind], KINDS[kind]) as socket:
                socket.send_multipart([pack(message), *frames])
        seen += [x for _, (mini_batch,) in iterator for x in mini_batch["item"].tolist()]
        assert seen == list(range(2000))
        assert run_items(loader) == list(range(2000))


def test_everything_begins_with_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    with TurboDataLoader(range(8), 4, Items(), 2, start_method="fork") as loader:
        with stranger(addresses(loader)["control"], zmq.PUSH) as socket:
            socket.send_multipart([pack(WorkersUp(2))])
            assert wait_until(lambda: "not a message of this loader" in caplog.text)
        assert run_items(loader) == list(range(8))
