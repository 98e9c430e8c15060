"""States of a loader: :class:`Resumable` gives it ``state_dict`` and ``load_state_dict``.

A state is a flat dict of numbers: what the loader must have in common with the one that loads it,
its settings, and where the epoch goes on behind what the *caller* has received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

from .arguments import check_count
from .passes import BEGINNING

if TYPE_CHECKING:
    from .dataloader import TurboDataLoader

__all__ = ["VERSION", "Resumable", "check_state", "refuse_unordered"]

VERSION = 1
"""Of the states that this release writes and reads."""

_COUNTS = (
    *("seed", "iterations", "epochs", "left", "next_pass", "next_offset"),
    *("first_pass", "given", "position", "pass", "offset"),
)


class Resumable:
    """What a loader can go on from."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on behind the last batch that the caller has received.

        At the end of an epoch that is the next one. After a ``break`` it is the rest of the epoch
        that was left, until the next ``for`` begins.

        Returns
        -------
        dict
            Numbers, strings and None, so that ``json``, ``pickle`` and ``torch.save`` take it; its
            size does not depend on that of the dataset. Only a sampler or an iterable that has
            a ``state_dict`` of its own adds that, as ``"source_state"``.

        Raises
        ------
        ValueError
            In the middle of an epoch with ``in_order=False``, where what was received is not the
            beginning of the epoch.
        """
        loader = cast("TurboDataLoader", self)
        with loader._lock:
            return self._state(loader)

    def _state(self, loader: TurboDataLoader) -> dict[str, Any]:
        planner = loader._planner
        if (upcoming := loader._upcoming) is not None:
            planner = upcoming[0]
        plan, mark = None, BEGINNING
        if loader._current is not None:
            plan, mark = loader._current.plan, loader._current.mark
            if not (loader._options.in_order or mark.over):
                refuse_unordered(f"{mark.position} samples", plan.epoch)
        return {
            **_head(loader),
            "seed": loader._seed,
            "iterations": loader._iterations,
            **planner.state_dict(plan, mark),
        }

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "A loader can be neither pickled nor copied: its processes, sockets and buffers belong "
            "to this process. Make one where it is needed; state_dict() tells it where to go on."
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next ``for`` go on where a state was taken.

        It gives the rest of that epoch, or the next one if nothing is left. The number of
        workers, the start method, `num_mini_batches`, `prefetch` and the like may be others than
        those of the loader that gave the state. `iterations`, `length` and what
        `set_epoch_iterations` has set become those of the state, and so does the seed if this
        loader was given none.

        Parameters
        ----------
        state : mapping
            What `state_dict` returned.

        Raises
        ------
        TypeError
            If it is no mapping, or a value is of the wrong type.
        ValueError
            If it is no state of a loader, or of one with another dataset length, batch size, seed,
            kind of source, `shuffle` or `last_batch`: names both values. Nothing is changed then.
        """
        loader = cast("TurboDataLoader", self)
        _check(state, loader)
        with loader._lock:
            self._load(loader, dict(state))

    def _load(self, loader: TurboDataLoader, state: dict[str, Any]) -> None:
        loader._drop_upcoming()
        if loader._current is not None:
            loader._current.close("The iterator was closed: a state was loaded.")
            loader._current.join()
            loader._current = None
        loader._planner.load_state_dict(state)
        loader._iterations = state["iterations"]
        if state["seed"] != loader._seed:
            loader._seed = state["seed"]
            loader._options.seed = loader._planner.shard.seed(loader._seed)
            if loader._engine is not None:  # its workers have the old one
                loader._start_anew()


def _head(loader: TurboDataLoader) -> dict[str, Any]:
    """What two loaders must have in common."""
    return {"version": VERSION, **loader._planner.identity()}


def _check(state: Mapping[str, Any], loader: TurboDataLoader) -> None:
    common = _head(loader)
    if loader._seeded:
        common["seed"] = loader._seed
    keys = {*_COUNTS, *loader._planner.state_dict(None, BEGINNING)}
    check_state(state, common, keys, _COUNTS)


def refuse_unordered(received: str, epoch: int) -> NoReturn:
    """Raise the error for a state in the middle of an epoch with ``in_order=False``."""
    raise ValueError(
        f"{received} of epoch {epoch} are no state to go on from: with in_order=False they need "
        f"not be the first of the epoch. Take it between two epochs, or use in_order=True"
    )


def check_state(
    state: Any, common: Mapping[str, Any], keys: Iterable[str], counts: Iterable[str]
) -> None:
    """Refuse what is no state of a loader like this one.

    Parameters
    ----------
    state : object
        What the user gave.
    common : mapping
        What the loader that gave it must have in common with this one, "version" included.
    keys : iterable of str
        What else must be in it.
    counts : iterable of str
        Which of these are numbers, >= 0.

    Raises
    ------
    TypeError, ValueError
        As `load_state_dict` says.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"state must be a mapping that state_dict() returned, got {state!r}")
    missing = sorted({*common, *keys} - state.keys())
    if missing and state.get("version", VERSION) == VERSION:
        raise ValueError(
            f"state is none of this kind of loader: it has no {', '.join(missing)}. Load it into "
            f"a loader of the class that gave it"
        )
    for name, value in common.items():
        if state[name] != value:
            raise ValueError(
                f"the state is that of a loader with {name}={state[name]!r}, but this one has "
                f"{name}={value!r}: make it with the same arguments and data"
            )
    for name in counts:
        check_count(f"state[{name!r}]", state[name], 0)
