"""The order of a `MixSampler`: several datasets in fixed proportions, each shuffled by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .seeding import seed_sequence

if TYPE_CHECKING:
    from .sampling import Order

__all__ = ["MOST", "Mixture"]

FEWEST = 1024
MOST = 2**20
"""Positions of a block, and so the largest ratio of the weights' sum to one of them."""


class Mixture:
    """An endless shuffled stream over the concatenation of datasets, of which any block is known.

    In each block every dataset has its share of the positions, rounded so that all blocks up to
    there together have it, too (to less than two samples). A dataset's samples come in passes of
    its own, each a new permutation.

    Parameters
    ----------
    lengths : sequence of int
        Those of the datasets, each >= 1.
    weights : sequence of float
        Shares of the samples, in any unit; each at least 2**-20 of their sum.
    seed : int
        The loader's seed, >= 0.
    shuffled : callable
        Returns the indices of a dataset's pass: gets its length, a seed, and the pass's number.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        weights: Sequence[float],
        seed: int,
        shuffled: Callable[[int, int, int], Order],
    ) -> None:
        shares = [Fraction(weight) for weight in weights]
        total = sum(shares)
        self._bounds = [bound / total for bound in accumulate(shares)]
        # With one position or more for each dataset, no rounded share is negative.
        self._size = max(FEWEST, ceil(total / min(shares)))
        self._lengths = lengths
        self._starts = [0, *accumulate(lengths)]
        self.seed = seed

        @lru_cache(maxsize=2 * len(lengths))
        def order(k: int, number: int) -> Order:
            words = seed_sequence(seed, "mixed", k).generate_state(1, np.uint64)
            return shuffled(lengths[k], int(words[0]), number)

        self._order = order
        self._block = lru_cache(maxsize=4)(self._make_block)

    def indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the indices at positions `start` to `stop`, 0 <= start < stop."""
        size = self._size
        first = start // size
        blocks = [self._block(number) for number in range(first, -(-stop // size))]
        return np.concatenate(blocks)[start - first * size : stop - first * size]

    def _before(self, position: int) -> NDArray[np.int64]:
        """Return how many samples of each dataset lie before a block."""
        bounds = [bound * position // 1 for bound in self._bounds]
        ends = np.array([0, *map(int, bounds)], np.int64)
        return ends[1:] - ends[:-1]

    def _make_block(self, number: int) -> NDArray[np.int64]:
        before = self._before(number * self._size)
        counts = self._before((number + 1) * self._size) - before
        indices = np.concatenate(
            [
                self._take(k, int(first), int(count))
                for k, (first, count) in enumerate(zip(before, counts, strict=True))
            ]
        )
        # Where each dataset's samples go; among themselves they stay in their order.
        generator = np.random.Generator(np.random.Philox(seed_sequence(self.seed, "mix", number)))
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.argsort(generator.permutation(owners), kind="stable")
        block = np.empty_like(indices)
        block[places] = indices
        return block

    def _take(self, k: int, first: int, count: int) -> NDArray[np.int64]:
        """Return the next `count` samples of a dataset behind its first ones."""
        length = self._lengths[k]
        pieces = [np.empty(0, np.int64)]
        while count:
            number, offset = divmod(first, length)
            taken = min(count, length - offset)
            pieces.append(self._order(k, number).indices(offset, offset + taken))
            first += taken
            count -= taken
        return np.concatenate(pieces) + self._starts[k]
