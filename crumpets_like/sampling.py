"""Orders of one pass over a dataset: any stretch of any order can be computed at once.

A shuffled order is a keyed permutation and keeps no list of what it has given, so that a pass
can be entered anywhere, and a pass over 10**12 samples costs as little as one over 10**3.
"""

from __future__ import annotations

import operator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .seeding import check_seed, seed_sequence

__all__ = ["Order", "SequentialOrder", "ShuffledOrder"]

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
