"""Random numbers that depend on the seed, the epoch and a sample's position, and nothing else.

Which worker prepares a sample, when, and how often it is tried again never shows in what the
sample draws, so results are bit-identical for every number of workers and every start method.
"""

from __future__ import annotations

import operator
import os
import random
import sys
from functools import lru_cache
from types import TracebackType
from typing import Any

import numpy as np

__all__ = [
    "SampleRNG",
    "check_seed",
    "entropy_seed",
    "imported_torch",
    "preserve_globals",
    "seed_all",
    "seed_globals",
    "seed_sequence",
    "seed_worker_globals",
]

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_GOLDEN = 0x9E37_79B9_7F4A_7C15  # increment of SplitMix64 (Steele et al., 2014)


def check_seed(seed: Any) -> int:
    """Return `seed` as an int.

    Raises
    ------
    TypeError
        If `seed` is not an integer.
    ValueError
        If `seed` is negative.
    """
    if isinstance(seed, bool):
        raise TypeError(f"seed must be an integer, got {seed!r}")
    try:
        value = operator.index(seed)
    except TypeError:
        message = f"seed must be an integer, got {seed!r} ({type(seed).__name__})"
        raise TypeError(message) from None
    if value < 0:
        raise ValueError(f"seed must not be negative, got {value}")
    return value


def entropy_seed() -> int:
    """Return a fresh 63-bit seed from the operating system's entropy."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def seed_sequence(seed: int, purpose: str, *numbers: int) -> np.random.SeedSequence:
    """Return the seed sequence of one use of `seed`.

    Parameters
    ----------
    seed : int
        The loader's seed, >= 0.
    purpose : str
        Keeps the uses of one seed apart. (``SeedSequence(5)`` and ``SeedSequence((5, 0))`` are
        the same, so numbers alone would make a shuffled order repeat a sample's stream.)
    *numbers : int
        What else the sequence depends on, for instance the number of a pass.
    """
    tag = int.from_bytes(purpose.encode(), "big")
    return np.random.SeedSequence(seed, spawn_key=(tag, *numbers))


class SampleRNG:
    """One reused ``numpy.random.Generator``, set to the stream of one sample at a time.

    The generator is a Philox, whose state is a key and a counter: the key comes from the seed,
    the upper half of the counter is (position, epoch), and the lower half counts what the sample
    draws. Streams of two samples therefore never overlap. Setting the state takes less than
    1.5 microseconds; a new generator would take more than 10.

    Parameters
    ----------
    seed : int
        Any integer >= 0.

    Attributes
    ----------
    generator : numpy.random.Generator
        Always the same object; each `seek` moves it.

    Raises
    ------
    TypeError, ValueError
        If `seed` is no integer, or negative.
    """

    generator: np.random.Generator

    def __init__(self, seed: int) -> None:
        bits = np.random.Philox(seed_sequence(check_seed(seed), "sample"))
        self.generator = np.random.Generator(bits)
        self._bits: Any = bits
        # numpy reads the state item by item, which is twice as fast from lists as from arrays.
        # The empty buffer makes the first draw start at the counter.
        self._counter = [0, 0, 0, 0]
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": bits.state["state"]["key"].tolist()},
            "buffer": [0, 0, 0, 0],
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def seek(self, epoch: int, position: int) -> np.random.Generator:
        """Move the generator to the start of one sample's stream.

        Parameters
        ----------
        epoch : int
            Number of the epoch, 0 <= epoch < 2**64.
        position : int
            Position of the sample in its epoch, 0 <= position < 2**64.

        Returns
        -------
        numpy.random.Generator
            The attribute `generator`.
        """
        counter = self._counter
        counter[2] = position
        counter[3] = epoch
        self._bits.state = self._state
        return self.generator


def seed_globals(seed: int, epoch: int, position: int, purpose: str = "globals") -> None:
    """Seed the global generators for one sample: ``random``, ``numpy.random`` and ``torch``.

    `torch` is seeded only if it is imported by now: its default (CPU) generator, never those of
    other devices. Takes about 10 microseconds.

    Parameters
    ----------
    seed : int
        The loader's seed, >= 0.
    epoch, position : int
        Number of the epoch, and position of the sample in it, both >= 0.
    purpose : str, optional
        Keeps other draws apart from those of the sample.
    """
    seed_all(_mix(_hash(seed, purpose, epoch) ^ _mix(position * _GOLDEN)))


def seed_worker_globals(seed: int, worker_id: int) -> None:
    """Seed the global generators once for a worker, so that no two workers draw the same.

    Call it after the worker's modules are imported: a `torch` that is imported later seeds
    itself at random.

    Parameters
    ----------
    seed : int
        The loader's seed, >= 0.
    worker_id : int
        Number of the worker, >= 0.
    """
    words = seed_sequence(seed, "worker", worker_id).generate_state(1, np.uint64)
    seed_all(int(words[0]))


class preserve_globals:  # noqa: N801 - reads like a function: `with preserve_globals():`
    """Context manager: the global generators leave it as they came in.

    Saves and restores the states of ``random``, ``numpy.random`` and, if it is imported, the
    default generator of `torch`. A `torch` that is imported inside is left with a random seed, as
    its import gives it.
    """

    def __enter__(self) -> preserve_globals:
        torch = imported_torch()
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)
        self._torch = None if torch is None else torch.default_generator.get_state()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch = imported_torch()
        if torch is not None:
            if self._torch is None:
                torch.default_generator.seed()
            else:
                torch.default_generator.set_state(self._torch)


def imported_torch() -> Any:
    """Return the module `torch` if its import has got as far as its default generator."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def seed_all(state: int) -> None:
    """Seed ``random``, ``numpy.random`` and, if it is imported, torch's default generator.

    Parameters
    ----------
    state : int
        64 bits.
    """
    random.seed(state)
    # One word: numpy takes 1.6 microseconds for 32 bits, and 8 for a list of words.
    np.random.seed(_mix(state + _GOLDEN) >> 32)
    torch = imported_torch()
    if torch is not None:
        # Not `torch.manual_seed`, which also visits every other device: 120 microseconds.
        torch.default_generator.manual_seed(_mix(state + 2 * _GOLDEN) >> 1)


@lru_cache(maxsize=64)
def _hash(seed: int, purpose: str, epoch: int) -> int:
    return int(seed_sequence(seed, purpose, epoch).generate_state(1, np.uint64)[0])


def _mix(value: int) -> int:
    """Scramble 64 bits: the finaliser of SplitMix64, a bijection."""
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & _MASK
    return value ^ (value >> 31)
