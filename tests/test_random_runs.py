"""Random sizes, speeds, kills, skips and breaks: each sample as promised, in order."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crumpets_like import BufferWorker, TurboDataLoader, Worker
from tests.support.processes import named

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="kills workers"),
]


def misbehave(sample: int, plan: dict[str, Any]) -> None:
    """Be slow, raise, or end this process once."""
    if sample in plan["slow"]:
        time.sleep(0.02)
    if sample in plan["bad"]:
        raise ValueError(sample)
    if sample in plan["deadly"]:
        mark = Path(plan["folder"]) / str(sample)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Fields(BufferWorker):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self.plan = plan
        self.add_buffer("x", ((), "int64"))
        self.add_buffer("draw", ((), "float64"))

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        misbehave(sample, self.plan)
        buffers["x"][...] = sample
        buffers["draw"][...] = self.rng.random()
        batch["name"].append(str(sample))


class Free(Worker):
    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan

    def process(self, sample: Any) -> dict[str, Any]:
        misbehave(sample, self.plan)
        return {"x": sample, "draw": self.rng.random(), "name": str(sample)}


def epoch(loader: TurboDataLoader, most: int) -> list[list[list[tuple[int, float]]]]:
    found = []
    for _, mini_batches in loader:
        rows = [list(zip(b["x"].tolist(), b["draw"].tolist(), strict=True)) for b in mini_batches]
        assert [b["name"] for b in mini_batches] == [[str(x) for x, _ in part] for part in rows]
        found.append(rows)
        if len(found) == most:
            break
    return found


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_random_runs(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    draw = data.draw
    n = draw(st.integers(1, 60), "N")
    parts = draw(st.sampled_from([1, 2, 3]), "mini-batches")
    size = draw(st.integers(1, 6), "mini-batch size")
    some = st.sets(st.integers(0, n - 1), max_size=4)
    plan = {
        "slow": draw(some, "slow"),
        "bad": draw(some, "bad"),
        # A sample that is worked on at two kills is skipped: either these or others.
        "deadly": draw(some, "deadly") if draw(st.booleans()) else (),
        "folder": str(tmp_path_factory.mktemp("marks")),
    }
    kind = draw(st.sampled_from([Fields, Free]), "worker")
    options: dict[str, Any] = {
        "num_mini_batches": parts,
        "shuffle": draw(st.booleans(), "shuffle"),
        "last_batch": draw(st.sampled_from(["keep", "discard", "rollover"]), "last_batch"),
        "shared_memory": draw(st.sampled_from([True, 1, 3, False]), "shared_memory"),
        "seed": 4,
        "on_error": "skip",
        "start_method": "fork",
    }
    stops = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3), "batches of each epoch")
    nworkers = draw(st.integers(1, 3), "workers")
    kills = set() if plan["deadly"] else {draw(st.integers(0, 11), "kill before this batch")}
    rng = random.Random(5)
    runs = []
    for workers in (0, nworkers):
        tame = plan if workers else {**plan, "deadly": (), "slow": ()}
        with TurboDataLoader(
            range(n), size * parts, kind(tame), workers, restarts=50, **options
        ) as loader:
            run = []
            for most in stops:
                run.append(epoch(_killing(loader, kills if workers else (), rng), most))
            runs.append(run)
    assert runs[0] == runs[1]


def _killing(loader: TurboDataLoader, kills: Any, rng: random.Random) -> Any:
    """The loader's batches; a worker is killed before some of them."""
    iterator = iter(loader)
    for number in range(10**6):
        if number in kills:
            workers = named("crumpets-w")
            if workers:
                rng.choice(workers).kill()
        try:
            yield next(iterator)
        except StopIteration:
            return
