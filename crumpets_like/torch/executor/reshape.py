"""Other shapes in the same memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .arrays import Arrays
from .shapes import Outputs, Shape, Spec, check_names, check_parameters, check_shape, infer

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["fit", "new_specs", "reshaped"]

_MOST_TRIES = 64
"""Shapes of other arguments that are tried, each in a few milliseconds, before it is an error."""


def new_specs(
    symbol: Symbol, old: Mapping[str, Spec], shapes: Mapping[str, Any], partial_shaping: bool
) -> tuple[dict[str, Spec], Outputs | None]:
    """Shapes of all arguments once those of some have changed.

    An argument that is not named keeps its shape if the symbol runs with it. If not, those of its
    sizes follow that were equal to one that has changed; as few as will do.

    Parameters
    ----------
    symbol : Symbol
        What is run.
    old : mapping of str to Spec
        What is bound.
    shapes : mapping of str to tuple of int
        The new ones.
    partial_shaping : bool
        Whether others may change.

    Raises
    ------
    ValueError
        If a name is unknown, a shape is none, others would have to change, or nothing fits.
    """
    check_names("reshape", shapes, old)
    check_parameters(symbol, shapes)
    given = {name: check_shape(name, shape) for name, shape in shapes.items()}
    if partial_shaping and not symbol.captured:
        raise ValueError(
            "partial_shaping=True needs a graph, to see which arguments must follow; with "
            "capture=False there is none. Name all arguments whose shapes change."
        )
    specs = {name: (given.get(name, shape), dtype) for name, (shape, dtype) in old.items()}
    try:
        return specs, infer(symbol, specs)
    except ValueError as error:
        for others in itertools.islice(_followers(symbol, old, given), _MOST_TRIES):
            changed = specs | {name: (shape, old[name][1]) for name, shape in others.items()}
            try:
                outputs = infer(symbol, changed)
            except ValueError:
                continue
            if partial_shaping:
                return changed, outputs
            told = ", ".join(f"{name} from {old[name][0]} to {others[name]}" for name in others)
            raise ValueError(
                f"The shapes of arguments that are not named would change: {told}. Name them, or "
                "pass partial_shaping=True."
            ) from error
        raise


def _followers(
    symbol: Symbol, old: Mapping[str, Spec], given: Mapping[str, Shape]
) -> Iterator[dict[str, Shape]]:
    """Shapes that arguments which are not named could take, fewest changes first."""
    changes = {
        (before, after)
        for name, shape in given.items()
        if len(shape) == len(old[name][0])
        for before, after in zip(old[name][0], shape, strict=True)
        if before != after
    }
    moves = [
        (name, dim, after)
        for name in symbol.inputs
        if name not in given
        for dim, size in enumerate(old[name][0])
        for before, after in sorted(changes)
        if size == before
    ]
    for count in range(1, len(moves) + 1):
        for chosen in itertools.combinations(moves, count):
            shapes = {name: list(old[name][0]) for name, _, _ in chosen}
            for name, dim, after in chosen:
                shapes[name][dim] = after
            yield {name: tuple(shape) for name, shape in shapes.items()}


def reshaped(arrays: Arrays, specs: Mapping[str, Spec], allow_up_sizing: bool) -> Arrays:
    """Arrays of other shapes that share the memory of the old ones where these are large enough.

    Raises
    ------
    ValueError
        If one would need more memory than the old one has, unless that is allowed.
    """
    for name, (shape, _) in specs.items():
        size = arrays.args[name].numel()
        if math.prod(shape) > size and not allow_up_sizing:
            raise ValueError(
                f"Argument {name} of shape {shape} needs {math.prod(shape)} elements, the bound "
                f"array of shape {tuple(arrays.args[name].shape)} has {size}. "
                "allow_up_sizing=True allocates a larger one."
            )
    room = dict(arrays.room)
    args = {name: fit(room, name, arrays.args[name], shape) for name, (shape, _) in specs.items()}
    grads = {
        name: None if grad is None else fit(room, f"gradient of {name}", grad, specs[name][0])
        for name, grad in arrays.grads.items()
    }
    return Arrays(args, grads, arrays.reqs, arrays.aux, room)


def fit(room: dict[str, Tensor], name: str, array: Tensor, shape: Shape) -> Tensor:
    """An array of another shape in the memory of the old one.

    Parameters
    ----------
    room : dict of str to Tensor
        The memory that arrays had before they became smaller; changed where more is needed.
    name : str
        Of the memory.
    array : Tensor
        The old one.
    shape : tuple of int
        The new one.

    Returns
    -------
    Tensor
        The array itself, or the first elements of its memory, or of new memory, zeros.
    """
    if tuple(array.shape) == shape:
        return array
    size = math.prod(shape)
    if name not in room and array.is_contiguous():
        room[name] = array.detach().view(-1)
    if name not in room or room[name].numel() < size:
        room[name] = torch.zeros(size, dtype=array.dtype, device=array.device)
    return room[name][:size].view(shape)
