"""What a pass is made of: the loader's iterable, its order, a sampler or a batch sampler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

from .passes import Batch, LastBatch, index_batch
from .sampling import SeekableSampler

__all__ = ["Source", "check_last_batch", "choose_source", "is_indexable", "size_of"]


@dataclass(frozen=True)
class Source:
    """Where the items of a pass come from.

    Attributes
    ----------
    argument : {"iterable", "sampler", "batch_sampler"}
        Which argument of the loader gives the items: indices in an order of our own or samples,
        indices or keys, or lists of these.
    items : object
        That argument's value.
    dataset : object
        The loader's iterable.
    indexable : bool
        Whether indices travel, not samples.
    """

    argument: str
    items: Any
    dataset: Any
    indexable: bool

    @property
    def own_order(self) -> bool:
        """Whether the loader itself orders the indices, or one of its own samplers does."""
        own = self.argument == "iterable" or isinstance(self.items, SeekableSampler)
        return self.indexable and own

    def length(self) -> int | None:
        """Return the number of items that one pass gives now, None if unknown."""
        if self.own_order:
            return len(self.items)
        return size_of(self.items)

    def converter(self, batch_size: int) -> Callable[[list[Any]], Batch]:
        """Return the function that makes a batch of the items that were read for it."""
        if not self.indexable:
            return list
        # A mapping's keys are its own business, integers too.
        length = None if isinstance(self.dataset, Mapping) else len(self.dataset)
        to_batch = partial(index_batch, length=length, argument=self.argument)
        if self.argument == "sampler":
            return to_batch
        return partial(_convert_list, batch_size=batch_size, to_batch=to_batch)


def choose_source(
    iterable: Any, *, shuffle: bool, sampler: Any, batch_sampler: Any, last_batch: LastBatch
) -> Source:
    """Return the source that the loader's arguments name.

    Raises
    ------
    TypeError
        If one that must be iterable is not.
    ValueError
        If two of the arguments do not go together.
    """
    argument, items = "iterable", iterable
    if batch_sampler is not None:
        argument, items = "batch_sampler", batch_sampler
        if shuffle:
            raise ValueError(_conflict("shuffle", shuffle, argument, items))
        if sampler is not None:
            raise ValueError(_conflict("sampler", sampler, argument, items))
        if last_batch != "keep":
            raise ValueError(_conflict("last_batch", last_batch, argument, items))
    elif sampler is not None:
        argument, items = "sampler", sampler
        if shuffle:
            raise ValueError(_conflict("shuffle", shuffle, argument, items))
    if not any(hasattr(type(items), name) for name in ("__iter__", "__getitem__", "order")):
        raise TypeError(f"{argument} must be iterable, got {items!r} ({type(items).__name__})")
    indexable = is_indexable(iterable)
    if not indexable and (shuffle or argument != "iterable"):
        option = f"{argument}={items!r}" if argument != "iterable" else f"shuffle={shuffle!r}"
        raise ValueError(
            f"{option} needs a dataset with __len__ and __getitem__, got the iterable "
            f"{iterable!r}, whose samples come in its own order"
        )
    if isinstance(sampler, SeekableSampler) and sampler.reach > len(iterable):
        raise ValueError(
            f"sampler is made for a dataset of at least {sampler.reach} samples, got one of "
            f"{len(iterable)}"
        )
    return Source(argument, items, iterable, indexable)


def is_indexable(iterable: Any) -> bool:
    """Return whether `iterable` is a dataset that is read by index.

    It is with ``__len__`` and ``__getitem__``, unless it is a torch ``IterableDataset``: that one
    inherits a ``__getitem__`` which only raises.
    """
    data = getattr(sys.modules.get("torch"), "utils", None)
    iterable_dataset = getattr(getattr(data, "data", None), "IterableDataset", None)
    if iterable_dataset is not None and isinstance(iterable, iterable_dataset):
        return False
    return hasattr(type(iterable), "__len__") and hasattr(type(iterable), "__getitem__")


def size_of(items: Any) -> int | None:
    """Return its length, None if it has none."""
    try:
        return len(items)
    except (TypeError, NotImplementedError):  # a torch sampler may have either
        return None


def check_last_batch(value: Any) -> LastBatch:
    """Return `value`; ValueError if it is none of the three words."""
    if isinstance(value, str) and value in get_args(LastBatch):
        return cast(LastBatch, value)
    raise ValueError(f"last_batch must be 'keep', 'discard' or 'rollover', got {value!r}")


def _conflict(option: str, value: Any, argument: str, items: Any) -> str:
    return (
        f"{option}={value!r} does not go with {argument}={items!r}, which decides that itself: "
        f"give one of them"
    )


def _convert_list(
    items: list[Any], *, batch_size: int, to_batch: Callable[[list[Any]], Batch]
) -> Batch:
    """Make a batch of the one list in `items`."""
    try:
        keys = list(items[0])
    except TypeError:
        raise TypeError(
            f"batch_sampler must give lists of indices, got {items[0]!r} "
            f"({type(items[0]).__name__}): a sampler of single indices is given as sampler"
        ) from None
    if not 0 < len(keys) <= batch_size:
        raise ValueError(
            f"batch_sampler gave a list of {len(keys)} indices, but the buffers hold from 1 to "
            f"batch_size={batch_size}: raise batch_size, or let the batch sampler cut smaller lists"
        )
    return to_batch(keys)
