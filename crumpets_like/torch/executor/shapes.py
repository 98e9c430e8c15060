"""Shapes and dtypes of what a symbol takes and returns, without values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .program import Program

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["DTypes", "Shape", "Spec", "check_names", "check_shape", "infer", "input_specs"]

Shape = tuple[int, ...]
Spec = tuple[Shape, torch.dtype]
DTypes = torch.dtype | Mapping[str, torch.dtype]
Outputs = list[tuple[str, Tensor]]

_DEPENDS_ON_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


def check_names(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not there.

    Raises
    ------
    ValueError
        Naming them.
    """
    known = list(known)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{what} names {', '.join(unknown)}; there are {', '.join(known)}.")


def check_shape(name: str, shape: Any) -> Shape:
    """A shape as a tuple.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not isinstance(shape, tuple) or not all(
        isinstance(size, int) and size >= 0 for size in shape
    ):
        raise ValueError(
            f"The shape of argument {name} must be a tuple of integers of at least 0, "
            f"got {shape!r}."
        )
    return tuple(shape)


def input_specs(symbol: Symbol, shapes: Mapping[str, Any], dtype: DTypes) -> dict[str, Spec]:
    """Shape and dtype of each argument: the inputs' as given, the parameters' own.

    Raises
    ------
    ValueError
        If a shape is missing, is none, or is that of no argument.
    """
    arguments = symbol.list_arguments()
    dtypes = dtype if isinstance(dtype, Mapping) else dict.fromkeys(symbol.inputs, dtype)
    check_names("shapes", shapes, arguments)
    check_names("dtype", dtypes, arguments)
    for name, value in dtypes.items():
        if not isinstance(value, torch.dtype):
            raise TypeError(f"dtype of argument {name} must be a torch.dtype, got {value!r}.")
    specs: dict[str, Spec] = {}
    for name in symbol.inputs:
        if name not in shapes:
            raise ValueError(
                f"The shape of argument {name} is missing; the inputs are "
                f"{', '.join(symbol.inputs)}."
            )
        specs[name] = check_shape(name, shapes[name]), dtypes.get(name, torch.float32)
    for name, parameter in symbol.parameters.items():
        own = tuple(parameter.shape)
        if check_shape(name, shapes.get(name, own)) != own:
            raise ValueError(
                f"Parameter {name} has the shape {own} in the module, got {shapes[name]}."
            )
        specs[name] = own, parameter.dtype
    return specs


def infer(symbol: Symbol, specs: Mapping[str, Spec]) -> Outputs | None:
    """Outputs without values, by name; None if their shapes depend on values.

    Raises
    ------
    ValueError
        If the symbol cannot run on arguments like these.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.enable_grad():
            fakes = {
                name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in specs.items()
            }
            for name, buffer in symbol.buffers.items():
                fakes[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
            for name in symbol.parameters:  # without gradients, layers take ways that have no fakes
                fakes[name].requires_grad_(fakes[name].is_floating_point())
            program = Program(symbol, fakes, torch.device("cpu"))
            return program.run(False, [fakes[name] for name in symbol.inputs])
    except Exception as error:
        if isinstance(error, _DEPENDS_ON_VALUES) or not symbol.captured:
            return None
        told = ", ".join(f"{name} {specs[name][0]} {specs[name][1]}" for name in symbol.inputs)
        raise ValueError(
            f"The shapes or dtypes of the arguments disagree: {told}: {error!s:.500}"
        ) from error
