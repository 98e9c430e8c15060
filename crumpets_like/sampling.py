"""Orders of one pass over a dataset: any stretch of any order can be computed at once.

A shuffled order is a keyed permutation and keeps no list of what it has given, so that a pass
can be entered anywhere, and a pass over 10**12 samples costs as little as one over 10**3.

The samplers here are given as ``sampler=``. They make such orders, so that the loader resumes them
at once, deals them out to ranks, and requests the next epoch ahead. The loader's seed is theirs.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arguments import check_count
from .mixing import MOST, Mixture
from .seeding import check_seed, seed_sequence

__all__ = [
    "Concatenation",
    "MixSampler",
    "Order",
    "SeekableSampler",
    "SequentialOrder",
    "ShuffledOrder",
    "SubsetSampler",
    "WeightedSampler",
]

EXACT_LENGTH = 2**20
"""Up to this length a shuffled order is an exact ``Generator.permutation``."""

BLOCK = 4096
"""Fewest positions for which indices are computed at once above `EXACT_LENGTH`."""

_ROUNDS = 8
_MAX_LENGTH = 2**62
_MULTIPLIERS = (np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB))


class Order(Protocol):
    """The order of one pass over ``range(length)``."""

    @property
    def length(self) -> int:
        """Number of indices in the pass."""

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        """Return the indices at every `step`-th of the positions `start` to `stop` of the pass.

        Parameters
        ----------
        start, stop : int
            0 <= start <= stop <= length.
        step : int
            At least 1.

        Returns
        -------
        ndarray of int64, shape (ceil((stop - start) / step),)
            The caller's own array.

        Raises
        ------
        IndexError
            If the positions lie outside of the pass.
        """


class SequentialOrder:
    """0, 1, 2, ... length - 1.

    Parameters
    ----------
    length : int
        Number of indices, >= 0.

    Raises
    ------
    TypeError, ValueError
        If `length` is no integer, or negative.
    """

    def __init__(self, length: int) -> None:
        self._length = _check_length(length)

    @property
    def length(self) -> int:
        """Number of indices in the pass."""
        return self._length

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        """Return positions `start` to `stop`; see `Order.indices`."""
        _check_positions(start, stop, self._length)
        return np.arange(start, stop, step, dtype=np.int64)


class ShuffledOrder:
    """A random permutation of ``range(length)``, the same for the same (seed, number).

    Up to 2**20 indices it is numpy's ``Generator.permutation``, computed at first use. Above, it
    is a Feistel network (Luby and Rackoff, 1988) on the smallest power of two that holds the
    pass, with cycle walking (Black and Rogaway, 2002): a value outside of the pass is sent
    through the network again until it lies inside. It needs no memory but the last block of
    4,096 indices. Small passes are not left to the network, which is biased there.

    Parameters
    ----------
    length : int
        Number of indices, 0 <= length <= 2**62.
    seed : int
        The loader's seed, >= 0.
    number : int
        Number of the pass, >= 0.

    Raises
    ------
    TypeError, ValueError
        If `length` or `seed` is no integer, or out of range.
    """

    def __init__(self, length: int, seed: int, number: int) -> None:
        self._length = _check_length(length)
        self._seeds = seed_sequence(check_seed(seed), "order", number)
        self._network = None if self._length <= EXACT_LENGTH else _Feistel(length, self._seeds)
        # Positions, and the indices there. One attribute, so that plans of two epochs may share
        # an order and run in two threads.
        self._block = (range(0), np.empty(0, np.int64))

    @property
    def length(self) -> int:
        """Number of indices in the pass."""
        return self._length

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        """Return positions `start` to `stop`; see `Order.indices`."""
        _check_positions(start, stop, self._length)
        wanted = range(start, stop, step)
        if not wanted:
            return np.empty(0, np.int64)
        positions, block = self._block
        if not (wanted[0] in positions and wanted[-1] in positions and not step % positions.step):
            positions, block = self._block = self._load(wanted)
        first = positions.index(start)
        return block[first : positions.index(wanted[-1]) + 1 : step // positions.step].copy()

    def _load(self, wanted: range) -> tuple[range, NDArray[np.int64]]:
        if self._network is None:
            generator = np.random.Generator(np.random.Philox(self._seeds))
            indices = generator.permutation(self._length).astype(np.int64, copy=False)
            return range(self._length), indices
        stop = min(max(wanted.stop, wanted.start + BLOCK * wanted.step), self._length)
        positions = range(wanted.start, stop, wanted.step)
        values = np.arange(positions.start, positions.stop, positions.step, dtype=np.uint64)
        return positions, self._network(values).view(np.int64)


class _Feistel:
    """A keyed permutation of ``range(length)``, for any length from 1 to 2**62."""

    def __init__(self, length: int, seeds: np.random.SeedSequence) -> None:
        bits = max(2, (length - 1).bit_length())
        low = bits // 2
        self._length = np.uint64(length)
        self._low_bits = np.uint64(low)
        self._low_mask = np.uint64(2**low - 1)
        # A round's value is cut from the top of its 64 bits, where a product mixes best.
        self._to_low = np.uint64(64 - low)
        self._to_high = np.uint64(64 - (bits - low))
        self._keys = seeds.generate_state(_ROUNDS, np.uint64)

    def __call__(self, positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the value of each position; `positions` has shape (n,) and stays as it is."""
        values = self._permute(positions)
        outside = np.flatnonzero(values >= self._length)
        while outside.size:
            moved = self._permute(values[outside])
            values[outside] = moved
            outside = outside[moved >= self._length]
        return values

    def _permute(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        high = values >> self._low_bits
        low = values & self._low_mask
        for key in range(0, _ROUNDS, 2):
            high ^= self._round(low, self._keys[key], self._to_high)
            low ^= self._round(high, self._keys[key + 1], self._to_low)
        high <<= self._low_bits
        high |= low
        return high

    @staticmethod
    def _round(half: NDArray[np.uint64], key: np.uint64, shift: np.uint64) -> NDArray[np.uint64]:
        mixed = half ^ key
        mixed *= _MULTIPLIERS[0]
        mixed ^= mixed >> np.uint64(32)
        mixed *= _MULTIPLIERS[1]
        mixed >>= shift
        return mixed


def _check_length(length: int) -> int:
    value = operator.index(length)
    if not 0 <= value <= _MAX_LENGTH:
        raise ValueError(f"length must be between 0 and 2**62, got {value}")
    return value


def _check_positions(start: int, stop: int, length: int) -> None:
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions {start} to {stop} are not inside of a pass of {length}")


class SeekableSampler(ABC):
    """A sampler whose passes can be entered anywhere.

    Attributes
    ----------
    reach : int
        The dataset must have as many samples: its indices are less.
    """

    reach: int

    @abstractmethod
    def __len__(self) -> int:
        """Samples of a pass."""

    @abstractmethod
    def order(self, seed: int, number: int) -> Order:
        """Return the order of the pass with this number."""


class WeightedSampler(SeekableSampler):
    """Draws samples with given probabilities.

    Parameters
    ----------
    weights : array_like of float, shape (N,)
        One for each sample of the dataset, in any unit: not negative, not all 0.
    length : int, optional
        Samples of a pass. Default: N.
    replacement : bool
        True: each draw is independent of all others, and any is computed at once, in O(log N).
        False: no sample comes twice in a pass, and each draw is from those that are left
        (Efraimidis and Spirakis, 2006). Every draw then depends on all before: a pass is computed
        as a whole, in O(N log N), when its first sample is asked for.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or there are not `length` samples to draw from.
    """

    def __init__(
        self, weights: ArrayLike, length: int | None = None, replacement: bool = True
    ) -> None:
        self._weights = np.array(weights, np.float64)
        if self._weights.ndim != 1:
            raise ValueError(f"weights must have one dimension, got {self._weights.ndim}")
        bad = np.flatnonzero(~(self._weights >= 0) | np.isinf(self._weights))
        if bad.size:
            raise ValueError(
                f"weights must be finite and not negative, got {self._weights[bad[0]]} for sample "
                f"{bad[0]}"
            )
        self.reach = len(self._weights)
        self._length = self.reach if length is None else check_count("length", length)
        self._cumulative = None if not replacement else np.cumsum(self._weights)
        possible = int(np.count_nonzero(self._weights))
        if not possible:
            raise ValueError("weights must not all be 0")
        if not replacement and possible < self._length:
            raise ValueError(
                f"length must be at most the number of positive weights without replacement, got "
                f"{self._length} and {possible}"
            )

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, number: int) -> Order:
        """Return the order of the pass with this number."""
        seeds = seed_sequence(seed, "weighted", number)
        if self._cumulative is None:
            return _Listed(self._draw_all(seeds))
        return _Independent(self._cumulative, self._length, seeds)

    def _draw_all(self, seeds: np.random.SeedSequence) -> NDArray[np.int64]:
        possible = np.flatnonzero(self._weights)
        waits = -np.log1p(-_uniform(seeds, 0, len(possible))) / self._weights[possible]
        first = np.argpartition(waits, self._length - 1)[: self._length]
        return possible[first[np.argsort(waits[first])]].astype(np.int64, copy=False)


class SubsetSampler(SeekableSampler):
    """A part of the dataset.

    Parameters
    ----------
    indices : array_like of int, shape (n,)
        Its samples, each >= 0.
    shuffle : bool
        A new random order in each pass.

    Raises
    ------
    TypeError, ValueError
        If `indices` are no integers, or one is negative.
    """

    def __init__(self, indices: ArrayLike, shuffle: bool = True) -> None:
        array = np.array(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(
                f"indices must be integers in one dimension, got {array.ndim} of {array.dtype}"
            )
        self._indices = array.astype(np.int64)
        if array.size and self._indices.min() < 0:
            raise ValueError(f"indices must not be negative, got {self._indices.min()}")
        self.reach = int(self._indices.max()) + 1 if array.size else 0
        self._shuffle = shuffle

    def __len__(self) -> int:
        return len(self._indices)

    def order(self, seed: int, number: int) -> Order:
        """Return the order of the pass with this number."""
        length = len(self)
        places = ShuffledOrder(length, seed, number) if self._shuffle else SequentialOrder(length)
        return _Listed(self._indices, places)


class MixSampler(SeekableSampler):
    """Samples of several datasets, in given proportions.

    ::

        mix = MixSampler([cats, dogs], [1, 3])
        TurboDataLoader(mix.dataset, 64, MyWorker(), 4, sampler=mix, seed=0)

    The proportions hold in every block of about 1,024 samples, where the datasets take turns at
    random. Each dataset's samples come in random order, each once before any comes again; how far
    that is goes on from one pass to the next. Any place is computed at once.

    Parameters
    ----------
    datasets : sequence of datasets
        Each with a length of at least 1.
    weights : sequence of float, optional
        Each dataset's share of the samples, in any unit, positive. Default: its length.
    length : int, optional
        Samples of a pass. Default: the sum of the datasets' lengths.

    Attributes
    ----------
    dataset : Concatenation
        All of them; that is what the indices refer to.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid; names it and its value.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float] | None = None,
        length: int | None = None,
    ) -> None:
        self._lengths = [len(dataset) for dataset in datasets]
        if not self._lengths or min(self._lengths) < 1:
            raise ValueError(f"datasets must not be empty, got lengths {self._lengths}")
        self._weights = self._lengths if weights is None else [float(weight) for weight in weights]
        if len(self._weights) != len(self._lengths):
            raise ValueError(
                f"there must be a weight for each dataset, got {len(self._weights)} and "
                f"{len(self._lengths)}"
            )
        if not sum(self._weights) / MOST <= min(self._weights) < np.inf:
            raise ValueError(
                f"weights must be positive, and each at least a millionth of their sum, got "
                f"{self._weights}"
            )
        self.dataset = Concatenation(datasets)
        self.reach = len(self.dataset)
        self._length = self.reach if length is None else check_count("length", length)
        self._mixture: Mixture | None = None

    def __len__(self) -> int:
        return self._length

    def order(self, seed: int, number: int) -> Order:
        """Return the order of the pass with this number."""
        if self._mixture is None or self._mixture.seed != seed:
            self._mixture = Mixture(self._lengths, self._weights, seed, ShuffledOrder)
        return _Stretch(self._mixture, number * self._length, self._length)


class Concatenation(Sequence[Any]):
    """Several datasets as one, without a copy.

    Parameters
    ----------
    datasets : sequence of datasets
        Each with a length.
    """

    def __init__(self, datasets: Sequence[Any]) -> None:
        self._datasets = list(datasets)
        self._ends = np.cumsum([len(dataset) for dataset in datasets]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        place = range(len(self))[operator.index(index)]
        number = bisect_right(self._ends, place)
        start = self._ends[number - 1] if number else 0
        return self._datasets[number][place - start]


class _Listed:
    """Values from a list at the places that another order gives."""

    def __init__(self, values: NDArray[np.int64], places: Order | None = None) -> None:
        self._values = values
        self._places = SequentialOrder(len(values)) if places is None else places

    @property
    def length(self) -> int:
        return self._places.length

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        return self._values[self._places.indices(start, stop, step)]


class _Independent:
    """Draws with replacement."""

    def __init__(
        self, cumulative: NDArray[np.float64], length: int, seeds: np.random.SeedSequence
    ) -> None:
        self._cumulative = cumulative
        self._length = length
        self._seeds = seeds

    @property
    def length(self) -> int:
        return self._length

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        _check_positions(start, stop, self._length)
        values = _uniform(self._seeds, start, stop)[::step] * self._cumulative[-1]
        # Rounding may reach the sum: below it is the last sample that has a weight.
        np.minimum(values, np.nextafter(self._cumulative[-1], 0.0), out=values)
        places: NDArray[np.int64] = np.searchsorted(self._cumulative, values, side="right")
        return places


class _Stretch:
    """A pass cut from an endless mixture."""

    def __init__(self, mixture: Mixture, first: int, length: int) -> None:
        self._mixture = mixture
        self._first = first
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    def indices(self, start: int, stop: int, step: int = 1) -> NDArray[np.int64]:
        _check_positions(start, stop, self._length)
        if start == stop:
            return np.empty(0, np.int64)
        return self._mixture.indices(self._first + start, self._first + stop)[::step].copy()


def _uniform(seeds: np.random.SeedSequence, start: int, stop: int) -> NDArray[np.float64]:
    """Return the numbers `start` to `stop` of a sequence in [0, 1)."""
    bits = np.random.Philox(seeds)
    state: Any = bits.state
    state["state"]["counter"][0] = start // 4  # each step of the counter gives four numbers
    bits.state = state
    return np.random.Generator(bits).random(stop - start // 4 * 4)[start % 4 :]
