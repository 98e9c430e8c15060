"""``crumpets-like soak``: random loaders under random troubles, every value checked."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from crumpets_like import TurboDataLoader
from crumpets_like.seeding import entropy_seed

from .guard import own_temporary_folder, resources, watchdog
from .memory import proportional_set_size, tree_size
from .sabotage import Saboteur
from .soak_plan import Configuration, MiniBatch, configure, content, epochs, without
from .soak_workers import expected_rows

__all__ = ["Soak", "add_arguments", "run"]

COUNTED: tuple[str, ...] = ("configurations", "epochs", "batches", "samples", "kills", "stops")
COUNTED += ("skips", "errors", "breaks", "keeps")

_LIMIT = 180.0  # seconds of one configuration: beyond, something hangs
_GRACE = 3.0  # seconds that processes and threads have to end
_WARM = 10  # configurations until memory is compared
_GROWTH = 64 << 20  # bytes that this process may grow by afterwards


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``soak`` to a parser."""
    parser.add_argument(
        "--minutes",
        type=float,
        default=1.0,
        help="how long new configurations are begun, at least one (default: 1)",
    )
    parser.add_argument(
        "--seed", type=int, help="of the first configuration; the next one has the next seed"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for each configuration")


def run(args: argparse.Namespace) -> int:
    """Run one configuration after the other until the time is over, and print what was done.

    Every minute a line on stderr says how far it is.

    Parameters
    ----------
    args : argparse.Namespace
        With the attributes that `add_arguments` defines.

    Returns
    -------
    int
        Exit status: 1 if a value was wrong, something hung, or something was left behind; 2 for
        wrong arguments.
    """
    if not args.minutes >= 0:
        text = f"--minutes must be at least 0, got {args.minutes:g}"
        print(f"crumpets-like soak: {text}", file=sys.stderr)
        return 2
    first = entropy_seed() % 10**9 if args.seed is None else args.seed
    began = time.monotonic()
    deadline = began + 60 * args.minutes
    minute = 1
    soak = Soak()
    seed = first
    with own_temporary_folder() as folder, _no_warnings():
        while seed == first or time.monotonic() < deadline:
            configuration = configure(seed)
            try:
                with watchdog(_LIMIT, _failure(configuration)):
                    started = time.monotonic()
                    soak.run(configuration, folder)
                    soak.check_growth()
            except Exception:  # noqa: BLE001  whatever it is, it is what was looked for
                print(_failure(configuration), file=sys.stderr)
                traceback.print_exc()
                return 1
            if args.verbose:
                print(f"{time.monotonic() - started:6.2f} s  {configuration}", flush=True)
            if (now := time.monotonic()) >= began + 60 * minute and now < deadline:
                print(f"minute {minute}: {soak.summary()}", file=sys.stderr, flush=True)
                minute = int((now - began) / 60) + 1
            seed += 1
    print(f"seeds {first} to {seed - 1}: {soak.summary()}")
    return 0


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Deaths of workers are what is wanted here: they would drown what is told each minute."""
    logger = logging.getLogger("crumpets_like")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Soak:
    """Runs configurations and counts.

    Attributes
    ----------
    done : Counter
        Numbers of things that happened.
    peak : int
        Most bytes seen of this process and its descendants (PSS).
    """

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.peak = 0
        self._sizes: list[int] = []

    def summary(self) -> str:
        """Say what was done in one line."""
        counts = ", ".join(f"{self.done[name]:,} {name}" for name in COUNTED)
        return f"{counts}; peak {self.peak / 1e6:,.0f} MB, growth {self.growth / 1e6:+.1f} MB"

    @property
    def growth(self) -> int:
        """Bytes by which this process has grown since it was warm."""
        return self._sizes[-1] - self._sizes[min(_WARM, len(self._sizes) - 1)]

    def check_growth(self) -> None:
        """Note the size of this process.

        Raises
        ------
        AssertionError
            If it has grown too much since it was warm.
        """
        gc.collect()
        self._sizes.append(proportional_set_size(os.getpid()))
        if self.growth > _GROWTH:
            raise AssertionError(f"this process has grown by {self.growth:,} bytes")

    def run(self, this: Configuration, folder: str) -> None:
        """Run one configuration.

        Parameters
        ----------
        this : Configuration
            What to run.
        folder : str
            The temporary folder, which must be empty at the end.

        Raises
        ------
        AssertionError
            If a value is wrong, or something is left behind.
        """
        before = resources(folder)
        self._use(this)
        deadline = time.monotonic() + _GRACE
        while (left := resources(folder) - before) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)  # what is left has nobody who tells of its end
        if left:
            raise AssertionError(f"left behind: {sorted(left)}")
        self.done["configurations"] += 1

    def _use(self, this: Configuration) -> None:
        kept: list[tuple[dict[str, Any], Any, MiniBatch]] = []
        rng = random.Random(this.seed + 1)
        delivered = 0
        with this.make_loader() as loader:
            with Saboteur(loader, this.sabotage, this.seed) as saboteur:
                for number, iterations in enumerate(epochs(this)):
                    epoch = _Epoch(this, number, iterations)
                    for iteration, mini_batches in epoch.run(loader, self.done):
                        _equal(iteration, delivered, "the iteration")
                        delivered += 1
                        for mini_batch in mini_batches:
                            found = epoch.check(mini_batch)
                            self.done["samples"] += len(found[0])
                            if rng.random() < this.keep:
                                kept.append((mini_batch, _mark(mini_batch), found))
                        if rng.random() < 0.1:
                            time.sleep(rng.uniform(0, 0.02))  # a caller that works
                    self.done["epochs"] += 1
                    self.peak = max(self.peak, tree_size(os.getpid()))
            self.done["kills"] += saboteur.kills
            self.done["stops"] += saboteur.stops
        self.done["batches"] += delivered
        self.done["keeps"] += len(kept)
        for mini_batch, x, found in kept:
            _equal(content(mini_batch), found, "a kept mini-batch")
            if not np.array_equal(mini_batch["x"], x):
                raise AssertionError(f"a kept mini-batch has changed: {found[0]}")


class _Epoch:
    """One epoch: what must come, and what has come."""

    def __init__(self, this: Configuration, number: int, iterations: list[list[MiniBatch]]) -> None:
        self._this = this
        self._number = number
        bad = frozenset(this.bad)
        self._failing = None
        self._most = len(iterations)
        if this.on_error == "skip":
            self._skips = sum(i in bad for it in iterations for mb in it for i in mb[0])
            iterations = [[without(mb, bad) for mb in iteration] for iteration in iterations]
            iterations = [[mb for mb in iteration if mb[0]] for iteration in iterations]
            iterations = [iteration for iteration in iterations if iteration]
        else:
            self._skips = 0
            hit = [any(bad & set(mb[0]) for mb in iteration) for iteration in iterations]
            self._failing = hit.index(True) if any(hit) else None
        # An index may come twice in an epoch that is cut from several passes; a draw does not.
        self._left = {mb[1]: mb for iteration in iterations for mb in iteration}
        self._iterations = iterations
        self._expected = iter([mb for iteration in iterations for mb in iteration])

    def run(self, loader: TurboDataLoader, done: Counter[str]) -> Iterator[Any]:
        """Yield the batches of this epoch, and check how it ends."""
        leave = self._this.leave[self._number]
        came = 0
        try:
            iterator = iter(loader)
            while came != leave:
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                came += 1
                yield batch
                del batch
            else:
                done["breaks"] += 1
                return
        except ValueError as error:
            done["errors"] += 1
            if self._failing is None or str(error) not in {f"bad {i}" for i in self._this.bad}:
                raise AssertionError("an error of no sample of this epoch") from error
            if self._this.in_order:
                _equal(came, self._failing, "batches before the error")
            return
        _equal(self._failing, None, "the batch that must raise")
        if self._this.in_order:
            _equal(came, len(self._iterations), "batches of the epoch")
        else:  # which mini-batches come together, skipped ones included, depends on timing
            size, count = self._this.num_mini_batches, sum(map(len, self._iterations))
            if not -(-count // size) <= came <= self._most:
                raise AssertionError(f"batches of the epoch: {came} for {count} mini-batches")
        _equal(list(self._left.values()), [], "mini-batches that are missing")
        done["skips"] += self._skips

    def check(self, mini_batch: dict[str, Any]) -> MiniBatch:
        """Check all that a mini-batch holds and return its indices and draws."""
        found = content(mini_batch)
        if self._this.in_order:
            _equal(found, next(self._expected, None), "a mini-batch")
        _equal(self._left.pop(found[1], None), found, "a mini-batch that must come once")
        rows = expected_rows(self._this.worker, found[0])
        if not np.array_equal(mini_batch["x"], rows):
            raise AssertionError(f"rows of {found[0]} are {mini_batch['x']}")
        _equal(list(map(int, mini_batch["epoch"])), [self._number] * len(rows), "the epoch")
        return found


def _mark(mini_batch: dict[str, Any]) -> Any:
    """Write into a mini-batch that is kept; return what it must hold from now on."""
    mini_batch["x"] *= -1
    return mini_batch["x"].copy()


def _equal(found: Any, expected: Any, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: {found}, expected {expected}")


def _failure(this: Configuration) -> str:
    return (
        f"FAILED with {this!r}\n"
        f"again: crumpets-like soak --minutes 0 --seed {this.seed} "
        "(moments of kills differ: several tries may be needed)"
    )
