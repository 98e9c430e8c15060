"""What the order of a pass is drawn from: random generators, and where they stand.

Samplers of torch and gluon draw from generators that the caller shares, so a pass can be read
again only from where these stood when it began.
"""

from __future__ import annotations

import base64
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .seeding import imported_torch

__all__ = ["Origin", "Part", "Stand", "pack_stands", "torch_part", "unpack_stands"]


class Stand(NamedTuple):
    """Where one generator stands.

    Attributes
    ----------
    words : bytes
        Most of its state.
    rest : list
        The rest, of what JSON takes.
    """

    words: bytes
    rest: list[Any]


class Part(NamedTuple):
    """How to read and write where something stands."""

    read: Callable[[], Stand | None]  # None: it cannot be told
    write: Callable[[Stand], None]


class Origin:
    """The generators that a loader's order may be drawn from.

    The global ones (of ``random``, ``numpy.random`` and, if it is imported, torch's default one)
    are the caller's as well: what else is drawn from them goes on beside a pass.

    Parameters
    ----------
    usual : {"numpy", "torch"}
        The global one that the loader draws from itself.
    own : mapping of str to Part
        What belongs to the loader alone.
    """

    def __init__(self, usual: str, own: Mapping[str, Part]) -> None:
        self.usual = usual
        self.own = own

    def stands(self) -> dict[str, Stand]:
        """Where all of them stand."""
        stands = {name: part.read() for name, part in self._parts().items()}
        return {name: stand for name, stand in stands.items() if stand is not None}

    def restore(self, stands: Mapping[str, Stand]) -> None:
        """Put some of them where they stood."""
        parts = self._parts()
        for name, stand in stands.items():
            parts[name].write(stand)

    def knows(self, name: str) -> bool:
        """Whether there is a generator of this name."""
        return name in self._parts()

    def _parts(self) -> dict[str, Part]:
        parts = {"random": _PYTHON, "numpy": _NUMPY, **self.own}
        torch = imported_torch()
        if torch is not None:
            parts["torch"] = torch_part(torch.default_generator)
        return parts


def torch_part(generator: Any) -> Part:
    """A ``torch.Generator``."""

    def read() -> Stand:
        return Stand(generator.get_state().numpy().tobytes(), [])

    def write(stand: Stand) -> None:
        import torch

        generator.set_state(torch.frombuffer(bytearray(stand.words), dtype=torch.uint8))

    return Part(read, write)


def _read_python() -> Stand:
    version, words, gauss = random.getstate()
    return Stand(struct.pack(f"<{len(words)}I", *words), [version, gauss])


def _write_python(stand: Stand) -> None:
    version, gauss = stand.rest
    words = struct.unpack(f"<{len(stand.words) // 4}I", stand.words)
    random.setstate((version, words, gauss))


def _read_numpy() -> Stand | None:
    state: Any = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":  # the caller's own choice, and affair
        return None
    words = np.asarray(state["state"]["key"], "<u4").tobytes()
    return Stand(words, [state["state"]["pos"], state["has_gauss"], state["gauss"]])


def _write_numpy(stand: Stand) -> None:
    np.random.set_state(("MT19937", np.frombuffer(stand.words, "<u4"), *stand.rest))


_PYTHON = Part(_read_python, _write_python)
_NUMPY = Part(_read_numpy, _write_numpy)


def pack_stands(stands: Mapping[str, Stand]) -> dict[str, Any]:
    """Encode for JSON."""
    return {
        name: [base64.b64encode(zlib.compress(words)).decode(), *rest]
        for name, (words, rest) in stands.items()
    }


def unpack_stands(argument: str, packed: Any) -> dict[str, Stand]:
    """Decode what :func:`pack_stands` made.

    Raises
    ------
    ValueError
        If it is nothing of the kind.
    """
    try:
        return {
            name: Stand(zlib.decompress(base64.b64decode(text, validate=True)), rest)
            for name, (text, *rest) in packed.items()
        }
    except (AttributeError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{argument} holds no states of generators ({error}): it is damaged, or none of a "
            "loader like this one."
        ) from None
