"""Shapes and dtypes of what a symbol takes and returns, without values."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from .program import Program, is_users

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = [
    "DTypes",
    "Outputs",
    "Shape",
    "Spec",
    "check_names",
    "check_parameters",
    "check_shape",
    "infer",
    "input_specs",
]

Shape = tuple[int, ...]
Spec = tuple[Shape, torch.dtype]
DTypes = torch.dtype | Mapping[str, torch.dtype]
Outputs = list[tuple[str, Tensor]]

_UNKNOWN = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
"""What does not say that shapes disagree."""


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
        isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 0
        for size in shape
    ):
        raise ValueError(
            f"The shape of argument {name} must be a tuple of integers of at least 0, "
            f"got {shape!r}."
        )
    return tuple(map(int, shape))


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
    check_parameters(symbol, shapes)
    for name, parameter in symbol.parameters.items():
        if dtypes.get(name, parameter.dtype) != parameter.dtype:
            raise ValueError(
                f"Parameter {name} has the dtype {parameter.dtype} in the module, got "
                f"{dtypes[name]}."
            )
        specs[name] = tuple(parameter.shape), parameter.dtype
    return specs


def check_parameters(symbol: Symbol, shapes: Mapping[str, Any]) -> None:
    """Refuse other shapes of a module's parameters than they have.

    Raises
    ------
    ValueError
        With both shapes.
    """
    for name, parameter in symbol.parameters.items():
        own = tuple(parameter.shape)
        if check_shape(name, shapes.get(name, own)) != own:
            raise ValueError(
                f"Parameter {name} has the shape {own} in the module, got {shapes[name]}."
            )


def infer(symbol: Symbol, specs: Mapping[str, Spec]) -> Outputs | None:
    """Outputs of inference without values, by name; None if only a forward can tell them.

    So it is if their shapes depend on values, and if code of the user's would have to run: it
    could keep what it is given here.

    Raises
    ------
    ValueError
        If the symbol cannot run on arguments like these.
    """
    if not symbol.captured or _runs_users_code(symbol):
        return None
    try:
        with _quiet, FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode(False):
            fakes = {}
            for name, (shape, dtype) in specs.items():
                differentiable = dtype.is_floating_point or dtype.is_complex
                fakes[name] = torch.empty(shape, dtype=dtype, requires_grad=differentiable)
            for name, buffer in symbol.buffers.items():
                fakes[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
            program = Program(symbol, fakes, torch.device("cpu"))
            # (what is no leaf may be changed in place)
            return program.run(False, [fakes[name].clone() for name in symbol.inputs])
    except _UNKNOWN:
        return None
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        told = ", ".join(f"{name} {specs[name][0]} {specs[name][1]}" for name in symbol.inputs)
        raise ValueError(
            f"The shapes or dtypes of the arguments disagree: {told}: {error!s:.500}"
        ) from error


def _runs_users_code(symbol: Symbol) -> bool:
    """Whether torch's own code is not all that runs."""
    nodes, layers = [], [symbol.root]
    if symbol.graphs is not None:
        nodes = [node for graph in symbol.graphs.values() for node in graph.nodes]
        layers = [symbol.root.get_submodule(n.target) for n in nodes if n.op == "call_module"]
    parts = [part for layer in layers for part in layer.modules()]
    hooks = [
        hook
        for part in parts
        for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
    ]
    called = [node.target for node in nodes if node.op == "call_function"]
    own = any("forward" in vars(part) for part in parts)
    return own or any(map(is_users, [*called, *map(type, parts), *hooks]))


class _Quiet(logging.Filter):
    """Keeps torch from logging what is no news: that shapes were tried which do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.local()
        logging.getLogger("torch._subclasses.fake_tensor").addFilter(self)

    def __enter__(self) -> None:
        self._thread.on = True

    def __exit__(self, *error: object) -> None:
        self._thread.on = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it."""
        return not getattr(self._thread, "on", False)


_quiet = _Quiet()
