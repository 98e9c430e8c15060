"""The soak run: a few configurations, and proofs that it notices what is wrong."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from crumpets_like import TurboDataLoader, cli
from crumpets_like.benchmarks import guard, sabotage, soak, soak_plan
from crumpets_like.benchmarks.soak import Soak
from crumpets_like.benchmarks.soak_plan import Configuration, configure, content, epochs
from crumpets_like.benchmarks.soak_workers import WORKERS, Rows

PLAIN = replace(
    configure(0),
    samples=40,
    batch_size=6,
    num_mini_batches=2,
    nworkers=0,
    start_method="fork",
    worker="rows",
    source="list",
    shared_memory=True,
    prefetch=None,
    in_order=True,
    last_batch="keep",
    length=None,
    shuffle=True,
    on_error="raise",
    bad=(),
    slow=(),
    leave=(None, None),
    keep=0.5,
    sabotage=0.0,
)


def run(configuration: Configuration) -> Soak:
    done = Soak()
    with guard.own_temporary_folder() as folder:
        done.run(configuration, folder)
    return done


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["soak", "--minutes", "0.05", "--seed", "100", "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("seeds 100 to ")
    assert f"{len(lines) - 1} configurations" in lines[-1]
    assert "peak" in lines[-1]


def test_a_line_every_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(step=10)  # at every look at the clock
    monkeypatch.setattr(soak, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    monkeypatch.setattr(Soak, "run", lambda self, configuration, folder: None)
    assert cli.main(["soak", "--minutes", "5", "--seed", "100"]) == 0
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"minute {n}" for n in (1, 2, 3, 4)]
    assert len(shown.out.splitlines()) == 1


@pytest.mark.parametrize("last_batch", ["keep", "discard", "rollover"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("length", [None, 25, 40, 70])
def test_the_plain_loop_agrees_with_the_loader(
    last_batch: str, shuffle: bool, length: int | None
) -> None:
    this = replace(PLAIN, last_batch=last_batch, shuffle=shuffle, length=length, leave=(None,) * 4)
    expected = list(epochs(this))
    with this.make_loader() as loader:
        for iterations in expected:
            found = [[content(mb) for mb in mini_batches] for _, mini_batches in loader]
            assert found == iterations


@pytest.mark.parametrize("worker", WORKERS)
def test_workers_of_each_kind(worker: str) -> None:
    done = run(replace(PLAIN, worker=worker, on_error="skip", bad=(3, 4), leave=(None, 2))).done
    assert (done["configurations"], done["epochs"], done["breaks"]) == (1, 2, 1)
    assert (done["skips"], done["errors"]) == (2, 0)


def test_an_error_ends_the_epoch() -> None:
    assert run(replace(PLAIN, bad=(17,))).done["errors"] == 2


@pytest.mark.skipif(sys.platform != "linux", reason="looks at process names")
def test_workers_are_killed() -> None:
    this = replace(PLAIN, nworkers=2, samples=300, slow=tuple(range(300)), seconds=0.004)
    done = run(replace(this, sabotage=0.05)).done
    assert done["kills"] > 1
    assert done["samples"] == 600


class TestNotices:
    """What is wrong is noticed."""

    def test_wrong_rows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Rows, "written", 2)
        with pytest.raises(AssertionError, match=r"rows of \("):
            run(PLAIN)

    def test_wrong_draws(self, monkeypatch: pytest.MonkeyPatch) -> None:
        make_loader = Configuration.make_loader
        monkeypatch.setattr(
            Configuration, "make_loader", lambda this: make_loader(replace(this, seed=1))
        )
        with pytest.raises(AssertionError, match="a mini-batch: "):
            run(PLAIN)

    @pytest.mark.parametrize("in_order", [True, False])
    def test_lost_batches(self, monkeypatch: pytest.MonkeyPatch, in_order: bool) -> None:
        plan = soak_plan.epochs
        monkeypatch.setattr(soak, "epochs", lambda this: plan(replace(this, samples=45)))
        with pytest.raises(AssertionError, match="expected"):
            run(replace(PLAIN, in_order=in_order, shuffle=False))

    def test_a_kept_batch_that_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mark = soak._mark

        def wrong(mini_batch: dict[str, Any]) -> Any:
            return np.asarray(mark(mini_batch)) + 1

        monkeypatch.setattr(soak, "_mark", wrong)
        with pytest.raises(AssertionError, match="a kept mini-batch has changed"):
            run(PLAIN)

    def test_what_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        left: list[int] = []
        stop = TurboDataLoader.stop

        def leak(loader: TurboDataLoader) -> None:
            stop(loader)
            left.append(os.dup(0))

        monkeypatch.setattr(TurboDataLoader, "stop", leak)
        monkeypatch.setattr(soak, "_GRACE", 0.1)
        with pytest.raises(AssertionError, match=r"left behind.*descriptor"):
            run(PLAIN)
        os.close(left[0])

    def test_growth(self) -> None:
        done = Soak()
        done.check_growth()
        done._sizes = [done._sizes[0] - (80 << 20)] * 12
        with pytest.raises(AssertionError, match="grown"):
            done.check_growth()

    def test_the_command_names_the_seed(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def wrong(self: Soak, this: Configuration, folder: str) -> None:
            raise AssertionError("wrong")

        monkeypatch.setattr(Soak, "run", wrong)
        assert cli.main(["soak", "--minutes", "1", "--seed", "7"]) == 1
        errors = capsys.readouterr().err
        assert "--minutes 0 --seed 7" in errors
        assert "Configuration(seed=7," in errors
        assert "AssertionError: wrong" in errors

    def test_a_hang(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        ended = threading.Event()
        codes: list[int] = []
        monkeypatch.setattr(guard.faulthandler, "dump_traceback", lambda: None)
        monkeypatch.setattr(guard.os, "_exit", lambda code: (codes.append(code), ended.set()))
        with guard.watchdog(0.05, "what hangs"):
            assert ended.wait(10)
        assert codes == [1]
        assert "a hang of 0.05 s\nwhat hangs\n" in capsys.readouterr().err


def test_no_worker_is_killed_twice_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Victim:
        def status(self) -> str:
            return "stopped"

        def name(self) -> str:
            return "crumpets-w0"

        def send_signal(self, number: int) -> None:
            sent.append(number)

    saboteur = sabotage.Saboteur(None, 0.0, 0)  # type: ignore[arg-type]
    places = iter([4, 4, -1, -1, None, 5])
    monkeypatch.setattr(saboteur, "_place", lambda victim: next(places))
    for _ in range(6):
        saboteur._kill(Victim())  # type: ignore[arg-type]
    assert saboteur.kills == 4
    assert Counter(sent) == {19: 6, 9: 4, 18: 2}
