"""Passes over a drop-in loader's sampler, and how to read one again up to some batch.

torch's and gluon's samplers have neither seed nor place: a pass is begun from where the generators
stood, and what the caller had received of it is skipped; of data nothing is read for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .arguments import check_count
from .chain import drop, load_into, state_of
from .origin import Origin, Stand, pack_stands, unpack_stands

__all__ = ["COUNTS", "KEYS", "Course", "KeyReader", "PassRecord"]

COUNTS = ("epoch", "received")
"""Numbers in a state."""

KEYS = (*COUNTS, "steps", "base_seed", "generators", "generators_now", "sampler_state")
"""What is in a state, beside what two loaders must have in common."""


class PassRecord:
    """Where a pass began, and how far the caller has come in it.

    Parameters
    ----------
    epoch : int
        Its number.
    begin : mapping of str to Stand
        Where the generators stood then.
    steps : str
        How it was opened: "i", the sampler was iterated; "s", a base seed was drawn.
    names : iterable of str
        Generators that are known to be drawn from.

    Attributes
    ----------
    seed : int or None
        The base seed, where there is one.
    received : int
        Batches that the caller has received, or that were made in vain before them.
    over : bool
        Whether the caller has seen its end.
    first : mapping of str to Stand, optional
        Where the generators stood when the first batch had been read.
    state : (str, object) or None
        Of the sampler or its iterator, where it has one: behind what the caller has received.
    end : (str, object) or None
        That state at the end of the pass.
    now : mapping of str to Stand
        Where generators go on that others have drawn from, in a pass that is opened again.
    """

    def __init__(
        self, epoch: int, begin: Mapping[str, Stand], steps: str, names: Iterable[str] = ()
    ) -> None:
        self.epoch = epoch
        self.begin = begin
        self.steps = steps
        self.names = set(names)
        self.seed: int | None = None
        self.received = 0
        self.over = False
        self.first: Mapping[str, Stand] | None = None
        self.state: tuple[str, Any] | None = None
        self.end: tuple[str, Any] | None = None
        self.now: Mapping[str, Stand] = {}
        self._read: deque[tuple[int, tuple[str, Any] | None]] = deque()

    def note_read(self, number: int, state: tuple[str, Any] | None) -> None:
        """The keys of batch `number`, from 1, were read."""
        self._read.append((number, state))

    def note_first(self, stands: Mapping[str, Stand]) -> None:
        """A first batch was read: what that has moved, the order is drawn from."""
        if self.first is None:
            self.first = stands
            self.names.update(name for name in self.begin if stands.get(name) != self.begin[name])

    def receive(self, number: int | None = None) -> None:
        """The caller has received the next batch, or that of a number and all before it."""
        if not self._read:
            self.received += 1
        while self._read and (number is None or self._read[0][0] <= number):
            self.received, self.state = self._read.popleft()
            if number is None:
                break


class KeyReader(Iterator[Any]):
    """The keys of one pass's batches.

    Attributes
    ----------
    record : PassRecord
        Where each that is read is noted.
    count : int
        Batches of the pass up to the one that was given last.
    """

    def __init__(self, course: Course, record: PassRecord, iterator: Iterator[Any]) -> None:
        self.record = record
        self.count = record.received
        self._course = course
        self._iterator = iterator
        self._held: deque[Any] = deque()  # what was read to see whether there is any
        if record.state is None:
            record.state = course.sampler_state(iterator)

    def __next__(self) -> Any:
        keys = self._held.popleft() if self._held else self._read()
        self.count += 1
        return keys

    def more(self, ahead: int = 1) -> bool:
        """Whether there is another batch; reads up to so many ahead."""
        while len(self._held) < ahead:
            try:
                self._held.append(self._read())
            except StopIteration:
                break
        return bool(self._held)

    def _read(self) -> Any:
        course, record = self._course, self.record
        try:
            keys = next(self._iterator)
        except StopIteration:
            record.end = course.sampler_state(None)
            raise
        course.note_first(record)
        record.note_read(self.count + len(self._held) + 1, course.sampler_state(self._iterator))
        return keys


class Course:
    """The passes over a loader's sampler, one after or beside the other.

    Parameters
    ----------
    argument : str
        What the loader calls the sampler.
    sampler : iterable
        Gives the keys of one batch after the other; iterated anew for each pass.
    inner : object
        What it reads itself, if that may have a state: None, or a sampler of single keys.
    origin : Origin
        What the order is drawn from.

    Attributes
    ----------
    epoch : int
        Number of the pass that begins next.
    newest : PassRecord or None
        Of the pass that the state is of.
    """

    def __init__(self, argument: str, sampler: Iterable[Any], inner: Any, origin: Origin) -> None:
        self.origin = origin
        self.epoch = 0
        self.newest: PassRecord | None = None
        self._argument = argument
        self._sampler = sampler
        self._inner = inner

    def begin(self, steps: str) -> PassRecord:
        """The record of a new pass; before the first of its steps."""
        names = self.newest.names if self.newest else ()
        record = PassRecord(self.epoch, self.origin.stands(), steps, names)
        self.epoch += 1
        return record

    def reader(self, record: PassRecord, iterator: Iterator[Any]) -> KeyReader:
        """The keys that an iterator of the sampler gives."""
        return KeyReader(self, record, iterator)

    def sampler_state(self, iterator: Iterator[Any] | None) -> tuple[str, Any] | None:
        """A copy of the sampler's state, or of that of its iterator, where one has any."""
        return state_of(("iterator", iterator), ("sampler", self._sampler), ("inner", self._inner))

    def note_first(self, record: PassRecord) -> None:
        """A batch was read; matters if it is the first."""
        if record.first is None:
            record.note_first(self.origin.stands())

    # -- states --------------------------------------------------------------------------

    def place(
        self, ahead: PassRecord | None = None, steps: str | None = None, seed: int | None = None
    ) -> dict[str, Any]:
        """Where the newest pass goes on; at its end, where the next one begins.

        Parameters
        ----------
        ahead : PassRecord, optional
            Of a pass that has begun before the caller asks for it.
        steps, seed
            How the next pass will be opened, and its base seed, where that is not as ever.
        """
        record, current = self.newest, self.origin.stands()
        usual = {*self.origin.own, self.origin.usual}
        if record is None or record.over:
            if ahead is None:
                names = usual | (record.names if record else set())
                return {
                    "epoch": self.epoch,
                    "received": 0,
                    "steps": steps,
                    "base_seed": seed,
                    "generators": pack_stands(_some(current, names)),
                    "generators_now": {},
                    "sampler_state": record.end if record else self.sampler_state(None),
                }
            record = ahead
        elif ahead is not None:  # from where it began, the next one will begin
            current = dict(ahead.begin)
        first = record.first or current
        names = record.names | (usual if record.first is None else set(self.origin.own))
        # A sampler that has a state goes on by itself, not from the beginning.
        by_itself = record.state is not None and record.received > 0
        others = {
            name for name in names - self.origin.own.keys() if current.get(name) != first.get(name)
        }
        return {
            "epoch": record.epoch,
            "received": record.received,
            "steps": "i" if by_itself else record.steps,
            "base_seed": record.seed,
            "generators": pack_stands(_some(first if by_itself else record.begin, names)),
            "generators_now": pack_stands(_some(current, others)),
            "sampler_state": record.state,
        }

    def check(self, place: Mapping[str, Any]) -> None:
        """Refuse a place that is none of a loader like this one.

        Raises
        ------
        TypeError, ValueError
            If a value is of the wrong type, or this loader lacks one of the generators.
        """
        if place["base_seed"] is not None:
            check_count("state['base_seed']", place["base_seed"], 0)
        for argument in ("generators", "generators_now"):
            for name in unpack_stands(f"state[{argument!r}]", place[argument]):
                if not self.origin.knows(name):
                    raise ValueError(
                        f"the state's order is drawn from {name!r}, but this loader has only "
                        f"{', '.join(self.origin.stands())}: give it the same generators"
                    )

    def restore_own(self, place: Mapping[str, Any]) -> None:
        """Put what belongs to the loader alone where it stood."""
        stands = unpack_stands("generators", place["generators"])
        self.origin.restore(_some(stands, stands.keys() & self.origin.own.keys()))

    def reopen(
        self, place: Mapping[str, Any], steps: str, draw_seed: Callable[[], int] | None = None
    ) -> tuple[PassRecord, Iterator[Any]]:
        """Open a pass as it was opened before; nothing of it is skipped yet.

        Parameters
        ----------
        place : mapping
            As :meth:`place` gave it.
        steps : str
            How a pass is opened, if this one was not.
        draw_seed : callable, optional
            Draws a base seed, where there are any.
        """
        begin = unpack_stands("generators", place["generators"])
        steps = place["steps"] or steps
        record = PassRecord(place["epoch"], begin, steps, begin)
        record.now = unpack_stands("generators_now", place["generators_now"])
        self.epoch = record.epoch + 1
        self.origin.restore(begin)
        whose, state = place["sampler_state"] or ("", None)
        if whose in ("sampler", "inner"):
            source = self._sampler if whose == "sampler" else self._inner
            load_into(source, state, self._argument)
        iterator: Iterator[Any] = iter(())
        for number, step in enumerate(steps):
            if step == "s" and draw_seed is not None:
                record.seed = draw_seed()
            elif not whose or number == steps.rindex("i"):  # it may be loaded only once
                iterator = iter(self._sampler)
        if whose == "iterator":
            load_into(iterator, state, self._argument)
        if whose:
            record.received, record.state = place["received"], (whose, state)
        if place["base_seed"] is not None:
            record.seed = place["base_seed"]
        return record, iterator

    def skip(self, reader: KeyReader, count: int) -> bool:
        """Skip what had been received of a pass that was opened again; whether more follows."""
        record = reader.record
        drop(reader, count - record.received, self._argument, self._sampler)
        if record.received < count:
            record.receive(count)
        more = reader.more(1 if record.received else 2)  # two show whether it draws for each
        self.go_on(record)
        return more

    def go_on(self, record: PassRecord) -> None:
        """Let global generators go on from where they stood when the state was taken.

        But not one that was drawn from while batches were skipped: the order goes on with it.
        """
        stands = self.origin.stands()
        first = record.first or stands
        still = {name for name in record.now if stands.get(name) == first.get(name)}
        self.origin.restore(_some(record.now, still))


def _some(stands: Mapping[str, Stand], names: Iterable[str]) -> dict[str, Stand]:
    return {name: stands[name] for name in sorted(names) if name in stands}
