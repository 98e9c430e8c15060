"""What a loader has done so far: :class:`Statistics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .broker.contract import EngineFacts
    from .iteration import Clock

__all__ = ["Bottleneck", "Statistics", "find_bottleneck", "make_statistics"]

Bottleneck = Literal["caller", "workers", "producer", "buffers"]

_SMALL_WAIT = 0.1  # a caller that waits less than this share of the time is itself the bottleneck
_BUSY = 0.7  # who is busy more than this share of the time is the bottleneck


@dataclass(frozen=True)
class Statistics:
    """A loader's figures since its last start.

    Attributes
    ----------
    samples : int
        Samples that the caller has received.
    samples_per_second : float
        Samples received per second of iterating.
    seconds_waited : float
        Seconds that the caller waited for batches, the start of the workers included.
    seconds_worked : float
        Seconds that the caller worked between batches.
    worker_busy : tuple of float
        Share of the time, 0 to 1, that each worker spent on samples, while the caller waited or
        worked and all workers were up.
    buffers_free : int
        Buffers that nobody uses, of those that were made ready or used before.
    buffers_filling : int
        Buffers that were requested and are not finished.
    buffers_ready : int
        Buffers that are finished and wait for the caller.
    buffers_held : int
        Mini-batches that the caller still holds.
    chunk_samples : int
        Samples of the last piece of work that a worker got.
    skipped : int
        Samples that were left out, see `on_error`.
    bottleneck : {"caller", "workers", "producer", "buffers"}
        What limits the speed: the caller's own work; the workers' work; the reading of an iterable
        (or of a sampler) in the training process; or too few buffers (or too small a `prefetch`) to
        keep the workers busy.
    """

    samples: int
    samples_per_second: float
    seconds_waited: float
    seconds_worked: float
    worker_busy: tuple[float, ...]
    buffers_free: int
    buffers_filling: int
    buffers_ready: int
    buffers_held: int
    chunk_samples: int
    skipped: int
    bottleneck: Bottleneck


def make_statistics(clock: Clock, facts: EngineFacts) -> Statistics:
    """Put together what the caller's clock and the engine know."""
    iterating = max(clock.waited + clock.worked, 1e-9)
    waited = clock.waited_since(facts.up_since)
    running = max(waited + clock.worked, 1e-9)
    return Statistics(
        samples=clock.samples,
        samples_per_second=clock.samples / iterating,
        seconds_waited=clock.waited,
        seconds_worked=clock.worked,
        worker_busy=tuple(min(1.0, seconds / running) for seconds in facts.busy_seconds),
        buffers_free=facts.free,
        buffers_filling=facts.filling,
        buffers_ready=facts.ready,
        buffers_held=facts.held,
        chunk_samples=facts.chunk_samples,
        skipped=facts.skipped,
        bottleneck=find_bottleneck(waited, clock.worked, facts, clock.waited_for_last),
    )


def find_bottleneck(
    waited: float, worked: float, facts: EngineFacts, waited_for_last: float = 0.0
) -> Bottleneck:
    """Tell what limits a loader.

    Parameters
    ----------
    waited, worked : float
        Seconds of the caller since the workers were up.
    facts : EngineFacts
        What its engine did meanwhile.
    waited_for_last : float
        Seconds that the caller waited when all of the epoch had been requested.
    """
    running = waited + worked
    if waited <= _SMALL_WAIT * running:
        return "caller"
    # Of the time in which it could happen: what happens in the caller's thread makes it wait.
    reading = facts.seconds_reading / (running if facts.reads_ahead else waited)
    working = sum(facts.busy_seconds) / len(facts.busy_seconds)
    working /= running if facts.works_ahead else waited
    # More buffers make no difference to what was requested already: so in a short epoch, or at
    # the end, where workers are idle because there is nothing left to do.
    could_request = waited_for_last < waited / 2
    if max(reading, working) < _BUSY and facts.works_ahead and could_request:
        return "buffers"
    return "producer" if reading > working else "workers"
