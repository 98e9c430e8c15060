"""The classes that users subclass: :class:`Worker` and :class:`BufferWorker`.

An instance is a template: each worker process (or thread) gets a copy of its own, and the
caller's object is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..seeding import SampleRNG
from .buffers import BufferSpec
from .current import Current
from .encoding import collate, stack_or_list

__all__ = ["BufferWorker", "Worker", "check_names", "overrides"]

_Class = TypeVar("_Class", bound=type)


def _read_only(cls: _Class) -> _Class:
    """Say in words why the properties of a class cannot be set; see NOTE [Names]."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, property):
            setattr(cls, name, value.setter(_refusal(name)))
    return cls


def _refusal(name: str) -> Any:
    def refuse(worker: Worker, value: Any) -> None:
        raise AttributeError(
            f"self.{name} is the loader's own in each {_base_of(worker).__name__}, and cannot be "
            f"set: {type(worker).__name__} must give its attribute another name."
        )

    return refuse


@_read_only
class Worker:
    """Free-form worker: :meth:`process` turns one sample into a dict.

    Override :meth:`process`, and where needed :meth:`collate`, :meth:`setup`,
    :meth:`start_epoch`, :meth:`teardown`.

    The public names of this class, and of :class:`BufferWorker` in its subclasses, are reserved:
    override the methods; what the properties give cannot be set. All other names are yours.
    """

    _crumpets_current: Current = Current()  # each copy gets one of its own
    _crumpets_unit: str = "sample"  # what an item of its work is, for messages

    @property
    def worker_id(self) -> int:
        """Number of this copy, 0-based; -1 in the template."""
        return self._crumpets_current.worker_id

    @property
    def epoch(self) -> int:
        """Epoch of the current sample, 0-based."""
        return self._crumpets_current.epoch

    @property
    def indices(self) -> NDArray[np.int64] | None:
        """In `prepare_batch`: dataset indices of the chunk's samples; None where they have none."""
        return self._crumpets_current.indices

    def setup(self) -> None:
        """Run once in each worker, before its first sample: open files and models here."""

    def start_epoch(self, epoch: int) -> None:
        """Run in each worker before its first sample of an epoch.

        The first batches of the next epoch are made before the caller's loop over this one ends:
        so this may run early, and for an epoch that never comes.
        """

    def teardown(self) -> None:
        """Run once in each worker when the loader stops.

        But a worker process that is still in one sample (perhaps of the next epoch, which is begun
        early) a second later is killed without it; a thread ends, and runs this, when it can.
        """

    def process(self, sample: Any) -> dict[str, Any]:
        """Turn one sample into a dict of results; the default returns a dict sample as it is."""
        if isinstance(sample, dict):
            return sample
        raise TypeError(
            f"the sample is a {type(sample).__name__}, not a dict: override "
            "Worker.process(sample), which returns a dict."
        )

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        """Join the dicts of a mini-batch, in sample order.

        Equal-shaped arrays, Python numbers and bools are stacked along a new first axis,
        anything else becomes a list. Override it to pad; an overridden `collate` gets all
        results of the mini-batch at once, so one worker makes the whole mini-batch.

        Raises
        ------
        ValueError
            If the dicts do not have the same keys.
        """
        return collate(results, stack_or_list)

    @property
    def index(self) -> int:
        """Dataset index of the current sample; -1 where it has none."""
        current = self._crumpets_current
        if not current.one or not current.keys:
            return -1
        row: int = current.cell[0] - current.first
        return current.keys[row]

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the current sample.

        Its draws depend on the loader's `seed`, the epoch, the sample's position in the epoch
        and, where there are several, the rank only: never on the number of workers, their kind,
        or timing.

        Raises
        ------
        RuntimeError
            Outside a sample, and in `prepare_batch`, where `rngs` holds one per sample.
        """
        current = self._crumpets_current
        if not current.one:
            raise RuntimeError(_why_no_rng(current))
        position = current.cell[0]
        if position != current.drawn:
            current.source.seek(current.epoch, position)
            current.drawn = position
        return current.source.generator

    @property
    def rngs(self) -> Sequence[np.random.Generator]:
        """In `prepare_batch`: the random generators of the chunk's samples.

        They are reused for the next chunk, so draw from them before `prepare_batch` returns.

        Raises
        ------
        RuntimeError
            Elsewhere.
        """
        current = self._crumpets_current
        if current.chunk is None:
            raise RuntimeError("self.rngs is only defined in prepare_batch; use self.rng.")
        if current.rngs is None:
            first, count = current.chunk
            pool, epoch = current.pool, current.epoch
            while len(pool) < count:
                pool.append(SampleRNG(current.seed))
            current.rngs = [pool[i].seek(epoch, first + i) for i in range(count)]
        return current.rngs


def _why_no_rng(current: Current) -> str:
    if current.chunk is not None:
        return (
            "self.rng is not defined in prepare_batch: the size of a chunk depends on timing, "
            "results must not. Use self.rngs, which holds one generator per sample."
        )
    return (
        "self.rng belongs to a sample: it can be used in process, prepare and prepare_batch "
        "(as self.rngs), not in setup, start_epoch or teardown."
    )


@_read_only
class BufferWorker(Worker):
    """Worker that writes each sample straight into shared memory.

    Declare the fields of a mini-batch with :meth:`add_buffer`, and override :meth:`prepare`
    (one sample) or :meth:`prepare_batch` (a chunk of samples at once).
    """

    def __init__(self) -> None:
        super().__init__()
        self._crumpets_specs: dict[str, BufferSpec] = {}
        self._crumpets_params: dict[str, Any] = {}

    def add_buffer(self, key: str, buffer: BufferSpec | tuple[Any, ...] | NDArray[Any]) -> None:
        """Declare a field of the mini-batch: an array of shape ``(n, *shape)``.

        Parameters
        ----------
        key : str
            Key in the mini-batch.
        buffer : (shape, dtype), (shape, dtype, fill_value), array or BufferSpec
            One sample's shape and dtype, see :class:`BufferSpec`. An array is a template:
            its shape, dtype and values (rows hold a copy of it before `prepare`).

        Raises
        ------
        TypeError, ValueError
            If `key` is no string or is taken, or `buffer` cannot be used.
        """
        if not isinstance(key, str):
            raise TypeError(f"key must be a string, got {key!r}.")
        if key in self.buffer_specs:
            raise ValueError(f"key {key!r} has a buffer already: {self.buffer_specs[key]}.")
        try:
            self._crumpets_specs[key] = BufferSpec.parse(buffer)
        except (TypeError, ValueError) as error:
            raise type(error)(f"buffer {key!r}: {error}") from None
        except OverflowError as error:
            raise ValueError(f"buffer {key!r}: its fill_value: {error}") from None

    @property
    def buffer_specs(self) -> dict[str, BufferSpec]:
        """The declared fields."""
        try:
            return self._crumpets_specs
        except AttributeError:
            raise TypeError(
                f"{type(self).__name__}.__init__ must call super().__init__() first."
            ) from None

    def add_params(self, key: str, params: Any, default: Any = None) -> None:
        """Store parameters under `key`; `default` where `params` is None."""
        self.params[key] = default if params is None else params

    @property
    def params(self) -> dict[str, Any]:
        """Parameters stored by :meth:`add_params`."""
        self.buffer_specs  # noqa: B018  the clear error when super().__init__() was not called
        return self._crumpets_params

    def prepare(
        self, sample: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> Any:
        """Write one sample into its rows.

        Parameters
        ----------
        sample : object
            What the dataset gave.
        batch : dict of str to list
            ``batch[key].append(value)`` puts any other object in a list of the mini-batch.
        buffers : dict of str to ndarray
            This sample's row of each field, a writable view of shape `shape`; a 0-d view
            for ``()``: assign with ``buffers[key][...] = value``. Valid during the call.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override prepare(sample, batch, buffers) or "
            "prepare_batch(samples, batch, buffers)."
        )

    def prepare_batch(
        self, samples: Any, batch: dict[str, list[Any]], buffers: dict[str, NDArray[Any]]
    ) -> None:
        """Write a chunk of samples at once; the default loops over :meth:`prepare`.

        The size of a chunk depends on timing, so results must not depend on it.
        ``self.indices`` and ``self.rngs`` hold one entry per sample.

        Parameters
        ----------
        samples : ndarray or list
            What the dataset gave for the chunk: in one call where it has ``__getitems__``
            or is an ndarray, else a list of samples.
        batch : dict of str to list
            Lists of the mini-batch; append one value per sample.
        buffers : dict of str to ndarray
            Rows of each field, shape ``(k, *shape)``.
        """
        current = self._crumpets_current
        if current is Worker._crumpets_current:  # no loader has called this, but a test perhaps
            current = Current()
        chunk, current.chunk = current.chunk, None
        first = chunk[0] if chunk else current.first
        current.one = True
        try:
            for row, sample in enumerate(samples):
                current.cell[0] = first + row
                rows = {key: array[row, ...] for key, array in buffers.items()}
                self.prepare(sample, batch, rows)
        finally:
            current.chunk = chunk
        current.one = False  # but an error is that of its sample


def _base_of(worker: Worker) -> type[Worker]:
    return BufferWorker if isinstance(worker, BufferWorker) else Worker


def check_names(worker: Worker) -> None:
    """TypeError if a worker has something of its own in place of what the loader gives it."""
    base = _base_of(worker)
    own = [cls for cls in type(worker).__mro__ if not issubclass(base, cls)]
    for name in (name for name in dir(base) if not name.startswith("_")):
        if isinstance(getattr(base, name), property):
            taken = any(name in vars(owner) for owner in (worker, *own))
            what = "which the loader gives it: use another name."
        else:
            taken = name in vars(worker) or not callable(getattr(worker, name))
            what = "a method of this class: override it in a subclass, or use another name."
        if taken:
            raise TypeError(
                f"worker_template: {type(worker).__name__} has an attribute {name!r} of its own in "
                f"place of {base.__name__}.{name}, {what}"
            )


def overrides(worker: Worker, method: str) -> bool:
    """Whether the worker's class has its own version of a method of the base classes."""
    base = BufferWorker if hasattr(BufferWorker, method) else Worker
    return getattr(type(worker), method) is not getattr(base, method)
