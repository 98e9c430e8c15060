"""Which samples make up an epoch, for every kind of source.

A source (an order of our own, a sampler, a batch sampler, or an iterable of samples) gives one
*pass* after the other. An epoch is one pass, unless `length` or `set_epoch_iterations` say
otherwise: then epochs are cut from the endless chain of passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from .arguments import check_count
from .chain import Passes, Place
from .passes import EpochPlan, Mark, OrderPlan, SourcePlan
from .ranks import choose_shard
from .sampling import Order, SeekableSampler, SequentialOrder, ShuffledOrder
from .seeding import check_seed
from .sources import check_last_batch, choose_source, size_of

__all__ = ["EpochPlan", "Planner"]


class Planner:
    """Gives the plan of one epoch after the other.

    Each `open` advances the epoch number by one, whether the plan is used up or not. An epoch has
    ``ceil(length / batch_size)`` iterations, as in crumpets 3.0; what it holds:

    - *One pass*, where `length` is not given or is that of the source, or where
      `set_epoch_iterations` asks for as many iterations as one pass has. `last_batch` says what
      becomes of a short last batch: ``"keep"`` it, ``"discard"`` it, or let its samples open the
      next epoch (``"rollover"``, with the semantics of gluon 1.9.1; the number of iterations
      then depends on the leftovers).
    - Otherwise *full batches from the endless chain of passes*; an epoch starts where the one
      before ended, and `last_batch` does not apply. For a source without a length, `length` is
      that of one pass if a pass ends after just as many samples.

    An epoch that the caller leaves early counts as planned, not as consumed: leftovers and the
    place in the chain are those of a complete epoch. For that, the rest of a sampler is read when
    the next epoch is opened. Samples of an iterable are not read in vain: a chain goes on where
    the iterable stands, and an epoch of one pass starts a new pass without leftovers. The same
    holds for leftovers of a sampler without a length.

    A new pass calls ``iter()`` again, after ``set_epoch(number of the pass)`` where a sampler has
    it. For epochs of one pass `open` does so, and the number is that of the epoch. Nothing is
    read past the end of an epoch; a source that gives more items than its length is cut there.
    Where epochs are cut from a chain, opening one ends the plan before it.

    Parameters
    ----------
    iterable : dataset or iterable
        With ``__len__`` and ``__getitem__``, a dataset whose indices are planned; otherwise, and
        for torch's ``IterableDataset``, an iterable whose samples are.
    batch_size : int
        Samples per batch, >= 1.
    length : int, optional
        Samples per epoch, default that of the sampler or iterable.
    shuffle : bool
        Whether the indices come in a new random order in each pass.
    seed : int
        Seed of the random orders, >= 0.
    sampler : iterable of int or of keys, optional
        The order of one pass. Integers must fit the dataset, whose negative indices are allowed;
        other keys, and those of a mapping, are not checked.
    batch_sampler : iterable of lists, optional
        The batches of one pass, of 1 to `batch_size` indices or keys each. With `length`, epochs
        of ``ceil(length / batch_size)`` lists.
    last_batch : {"keep", "discard", "rollover"}
        What becomes of the short last batch of a pass.
    rank, world_size, uneven
        Which samples this rank gets, as :func:`choose_shard` says. All ranks plan the same epochs,
        in global batches of `batch_size` samples for each rank; `length` counts the samples of
        all ranks.

    Attributes
    ----------
    indexable : bool
        Whether indices are planned, not samples.
    shard : Shard
        Which samples this rank gets.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or two do not go together; names the argument and its value.
    """

    def __init__(
        self,
        iterable: Any,
        batch_size: int,
        *,
        length: int | None = None,
        shuffle: bool = False,
        seed: int,
        sampler: Any = None,
        batch_sampler: Any = None,
        last_batch: str = "keep",
        rank: int | str | None = None,
        world_size: int | str | None = None,
        uneven: str = "pad",
    ) -> None:
        self._batch_size = check_count("batch_size", batch_size)
        self._length = None if length is None else check_count("length", length)
        self._iterations: int | None = None
        self._last_batch = check_last_batch(last_batch)
        self._shuffle = shuffle
        self._source = choose_source(
            iterable,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            last_batch=self._last_batch,
        )
        self._orders = _order_factory(shuffle, check_seed(seed), sampler)
        self.indexable = self._source.indexable
        # A batch sampler's item is a batch.
        self._lists = self._source.argument == "batch_sampler"
        self.shard = choose_shard(rank, world_size, uneven, default=self._source.own_order)
        if self.shard.world_size > 1 and (self._lists or not self.indexable):
            raise ValueError(
                f"world_size={self.shard.world_size} needs the indices of a dataset or sampler to "
                f"deal out: let {self._source.argument} itself give each rank its part"
            )
        self._step = self.shard.world_size * (1 if self._lists else self._batch_size)

        self._epoch = 0
        self._chained = False  # whether the last epoch left a chain to go on with
        self._forced = False  # whether the user said how long it was
        self._left = 0  # leftovers that the next epoch of a rollover begins with
        self._number = 0  # place in the chain of own orders: pass, and position in it
        self._offset = 0
        self._passes = self._new_passes(0)
        self._plan: SourcePlan | None = None
        self._resumed: dict[str, Any] | None = None  # a state whose epoch is opened next

    @property
    def length(self) -> int | None:
        """Samples per epoch as the user or the source says; None if neither does."""
        if self._length is None and not self._lists:
            return self._source.length()
        return self._length

    @property
    def own_order(self) -> bool:
        """Whether `open` asks nobody: neither a user's sampler nor an iterable."""
        return self._source.own_order

    @property
    def epoch(self) -> int:
        """Number of the epoch that `open` plans anew next."""
        return self._epoch

    def set_length(self, n: int) -> None:
        """Set the samples per epoch, in place of any earlier number of iterations.

        Acts at the next `open`.

        Parameters
        ----------
        n : int
            Samples per epoch, >= 1.

        Raises
        ------
        TypeError, ValueError
            If `n` is no integer, or less than 1.
        """
        self._length = check_count("length", n)
        self._iterations = None

    def set_epoch_iterations(self, n: int) -> None:
        """Set the iterations per epoch; `length` stays as it is.

        Acts at the next `open`.

        Parameters
        ----------
        n : int
            Batches per epoch, >= 1.

        Raises
        ------
        TypeError, ValueError
            If `n` is no integer, or less than 1.
        """
        self._iterations = check_count("epoch_iterations", n)

    def iterations(self) -> int | None:
        """Return the number of batches of the epoch that `open` gives next, None if unknown.

        Batches before a resume are counted, too.
        """
        state, (_, _, total) = self._resumed, self._next_epoch()
        given = 0
        if state is not None and not self._over(state):
            total, given = state["total"], state["given"]
        if total is None:
            return None
        return given // self._step + self.shard.batches(total - given, self._step)

    def open(self) -> EpochPlan:
        """Return the plan of the next epoch, or of what is left of a resumed one.

        Raises
        ------
        ValueError
            If the epoch needs more samples than an empty source can give, or the source gives
            fewer than it had given before the resume.
        """
        state, self._resumed = self._resumed, None
        resumed = None if state is None else self._reopen(state)
        return self._open_next() if resumed is None else resumed

    def _open_next(self) -> EpochPlan:
        length, forced, total = self._next_epoch()
        if forced and length == 0:
            raise ValueError(
                f"{self._source.argument} is empty, so no batch of epoch {self._epoch} can be "
                f"filled: it must not be where length or epoch_iterations is given"
            )
        chained = forced or self._last_batch == "rollover"
        fresh = not (chained and self._chained) or (self._forced and not forced)
        left = self._leftovers()
        plan: EpochPlan
        if self._source.own_order and length is not None and total is not None:
            plan = self._open_order(length, total, chained=chained, fresh=fresh)
        else:
            plan = self._plan = self._open_source(length, forced, total, fresh=fresh)
        self._left = 0
        if not forced and chained and length is not None and total is not None:
            self._left = left + length - total
        self._chained = chained
        self._forced = forced
        self._epoch += 1
        return plan

    def _next_epoch(self) -> tuple[int | None, bool, int | None]:
        """Return (items of one pass, whether the user says how long the epoch is, its items)."""
        length = self._source.length()
        iterations = self._forced_iterations(length)
        if iterations is not None:
            return length, True, iterations * self._step
        if length is None:
            return None, False, None
        return length, False, self._kept(self._leftovers() + length)

    def _kept(self, count: int) -> int:
        """Return how many of the items of one pass, leftovers included, an epoch holds."""
        return count if self._last_batch == "keep" else count - count % self._step

    def _forced_iterations(self, length: int | None) -> int | None:
        """Return the iterations that the user asks for, None where these are just one pass."""
        if self._iterations is not None:
            iterations = self._iterations
            one_pass = length is not None and -(-self._kept(length) // self._step) == iterations
            return None if one_pass and self._last_batch != "rollover" else iterations
        if self._length is None:
            return None
        iterations = -(-self._length // (self._batch_size * self.shard.world_size))
        given = iterations if self._lists else self._length
        return None if given == length else iterations

    def _leftovers(self) -> int:
        """Return how many items are left over for the next epoch, if that is a rollover's."""
        abandoned = self._plan is not None and not self.indexable and not self._plan.over
        return 0 if abandoned else self._left

    def _open_order(self, length: int, total: int, *, chained: bool, fresh: bool) -> OrderPlan:
        if self._offset and (fresh or self._offset >= length):
            self._number += 1
            self._offset = 0
        plan = OrderPlan(
            self._epoch,
            self._step,
            total,
            orders=partial(self._orders, length),
            start=Mark(0, 0, not total, Place(self._number, self._offset)),
            shard=self.shard,
        )
        end = self._offset + total if chained else length
        if length:
            self._number += end // length
            self._offset = end % length
        elif not chained:
            self._number += 1
        return plan

    def _open_source(
        self, length: int | None, forced: bool, total: int | None, *, fresh: bool
    ) -> SourcePlan:
        chained = forced or self._last_batch == "rollover"
        last = self._plan
        if last is not None and self._chained and not last.over:
            if self.indexable and not fresh and last.iterations is not None:
                last.skip()
            else:
                last.close()
                fresh = fresh or self.indexable or not forced
        if fresh:
            self._passes = self._new_passes(self._passes.number)
            self._passes.open()  # now: a pass that was left early is part of the source's state
        single = not forced and (not chained or length is None)
        if forced and length is None and self._iterations is None and not self._lists:
            length = self._length
        elif not single:
            length = None
        return SourcePlan(
            self._epoch,
            self._step,
            total,
            passes=self._passes,
            convert=self._source.converter(self._batch_size),
            single=single,
            length=length,
            last_batch=self._last_batch,
            shard=self.shard,
        )

    def _new_passes(self, number: int) -> Passes:
        return Passes(self._source.items, self._source.argument, number)

    # -- resume --------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """Return what a loader that goes on from a state must have in common with this one."""
        return {
            "source": self._source.argument if self.indexable else "samples",
            "dataset_length": size_of(self._source.dataset),
            "source_length": self._source.length(),
            "batch_size": self._batch_size,
            "shuffle": bool(self._shuffle),
            "last_batch": self._last_batch,
        }

    def state_dict(self, plan: EpochPlan | None, mark: Mark) -> dict[str, Any]:
        """Return what is needed to go on in the epoch that was opened last.

        Parameters
        ----------
        plan : EpochPlan or None
            What `open` has returned last; None: nothing yet.
        mark : Mark
            What the caller has received of it.
        """
        settings = {"length": self._length, "epoch_iterations": self._iterations}
        if self._resumed is not None:
            return {**self._resumed, **settings}
        source = plan if isinstance(plan, SourcePlan) else None
        total = plan.total if plan else None
        # The leftovers of a source without a length are read again.
        over = mark.over and (total is not None or self._last_batch != "rollover")
        return {
            **settings,
            "epochs": self._epoch,
            "chained": self._chained,
            "forced": self._forced,
            "left": self._left,
            "next_pass": self._number,
            "next_offset": self._offset,
            "total": total,
            "single": source is not None and source.single,
            "pass_length": source.length if source else None,
            "first_pass": source.first if source else 0,
            "given": mark.given,
            "position": mark.position,
            "over": over,
            "pass": mark.place.number,
            "offset": mark.place.offset,
            "source_state": mark.place.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next `open` go on where a state was taken.

        Parameters
        ----------
        state : dict
            Of a planner with the same :meth:`identity`; with the key ``"seed"``, too.
        """
        state = self._without_short_batch(state)
        self._orders = _order_factory(self._shuffle, state["seed"], self._source.items)
        self._length = state["length"]
        self._iterations = state["epoch_iterations"]
        self._epoch = state["epochs"]
        self._chained = state["chained"]
        self._forced = state["forced"]
        self._left = state["left"]
        self._number = state["next_pass"]
        self._offset = state["next_offset"]
        self._passes = self._new_passes(0)
        self._plan = None
        self._resumed = state if self._epoch else None

    def _without_short_batch(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of an epoch whose rest divides into the global batches of these ranks.

        Others may have begun it. What is over is discarded, or rolls over to the next epoch.
        """
        total, given, length = state["total"], state["given"], self._source.length()
        if total is None or length is None or state["forced"] or self._over(state):
            return state
        if self._last_batch == "keep":
            return state
        there = total + state["left"] if self._last_batch == "rollover" else length
        kept = given + (there - given) // self._step * self._step
        if self._last_batch == "discard":
            return {**state, "total": kept}
        end = state["next_pass"] * length + state["next_offset"] + kept - total
        return {
            **state,
            "total": kept,
            "left": there - kept,
            "next_pass": end // length,
            "next_offset": end % length,
        }

    def _over(self, state: dict[str, Any]) -> bool:
        """Whether nothing is left of the epoch for this rank."""
        total = state["total"]
        rest = None if total is None else self.shard.batches(total - state["given"], self._step)
        return bool(state["over"] or rest == 0)

    def _reopen(self, state: dict[str, Any]) -> EpochPlan | None:
        """Return the plan of the rest of an epoch; None if nothing is left of it."""
        epoch, total, length = self._epoch - 1, state["total"], self._source.length()
        kept = state["source_state"]
        place = Place(state["pass"], state["offset"], kept and (kept[0], kept[1]))
        mark = Mark(state["given"], state["position"], state["over"], place)
        first, over = state["first_pass"], self._over(state)
        if self._source.own_order and length is not None:
            if over:
                return None
            return OrderPlan(
                epoch,
                self._step,
                total,
                orders=partial(self._orders, length),
                start=mark,
                shard=self.shard,
            )
        if over and not self._chained and not place.state:  # nothing needs to be read
            self._passes = self._new_passes(first + 1)
            return None
        self._passes = self._new_passes(0)
        begun = not self._chained and place.number == first
        self._passes.go_to(place, opened=begun or place.offset > 0)
        if state["single"]:
            self._passes.hold_up_to(first)
        self._plan = SourcePlan(
            epoch,
            self._step,
            total,
            passes=self._passes,
            convert=self._source.converter(self._batch_size),
            single=state["single"],
            length=state["pass_length"],
            last_batch=self._last_batch,
            start=mark,
            first=first,
            shard=self.shard,
        )
        return self._plan if self._plan.more() else None


def _order_factory(shuffle: bool, seed: int, sampler: Any) -> Callable[[int, int], Order]:
    """Return the function (length, number of the pass) -> order."""

    @lru_cache(maxsize=2)  # short epochs cut from one pass share its permutation
    def make(length: int, number: int) -> Order:
        if isinstance(sampler, SeekableSampler):
            return sampler.order(seed, number)
        return ShuffledOrder(length, seed, number) if shuffle else SequentialOrder(length)

    return make
