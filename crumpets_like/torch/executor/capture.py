"""Capturing Python code as a graph of operators, by ``torch.fx``.

NOTE [Why torch.fx]. Both were tried on a residual network, an LSTM, a transformer encoder, a
network with dropout and one in bfloat16; outputs and gradients of 50 steps were equal to eager
PyTorch to the last bit with either. ``torch.export`` needs example inputs, and its graph holds for
their shapes, and for one of training and inference; it took 0.3 to 7.9 seconds per graph where
``torch.fx`` took 8 to 57 milliseconds. An executor is reshaped, switches between training and
inference, and can say its arguments before it knows any shape: all that is ``torch.fx``.

What ``torch.fx`` would do wrong without a word is refused here: random numbers drawn while the code
is traced, which would be the same ones at every step; assignments to attributes, which a graph does
not repeat; operators under ``no_grad`` or ``autocast``, which a graph does not keep.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

__all__ = ["capture", "input_names"]

_NOT_THE_USERS = (os.path.dirname(torch.__file__), os.path.dirname(__file__))
_cuda: Any = torch.cuda  # parts of it have no types
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def input_names(target: Callable[..., Any]) -> list[str]:
    """The inputs of a function or of a module's ``forward``: its parameters without a default.

    Raises
    ------
    ValueError
        If one has no name.
    """
    function = target.forward if isinstance(target, nn.Module) else target
    names = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED:
            raise ValueError(
                f"The inputs of {describe(target)} must have names, got {parameter}: wrap it in a "
                "function whose parameters are what is bound."
            )
        if parameter.default is inspect.Parameter.empty:
            names.append(parameter.name)
    return names


def describe(target: Callable[..., Any]) -> str:
    """A function or module in words."""
    if isinstance(target, nn.Module):
        return f"module {type(target).__name__}"
    return f"function {getattr(target, '__qualname__', type(target).__name__)}"


def name_of(target: Callable[..., Any]) -> str:
    """What the outputs of a target without a graph are named after."""
    if isinstance(target, nn.Module):
        return type(target).__name__.lower()
    return str(getattr(target, "__name__", type(target).__name__)).strip("<>")


def is_one_operator(target: Callable[..., Any]) -> bool:
    """Whether ``torch.fx`` takes a module for one node: torch's own layers."""
    return isinstance(target, nn.Module) and fx.Tracer().is_leaf_module(target, "")


def capture(
    target: Callable[..., Any], inputs: Sequence[str]
) -> tuple[fx.Graph, nn.Module, list[Tensor]]:
    """Trace a function, or a module in the mode it is in.

    Parameters
    ----------
    target : callable or torch.nn.Module
        A module gets the tensors it makes for itself as attributes.
    inputs : sequence of str
        Which of its parameters are inputs.

    Returns
    -------
    graph : torch.fx.Graph
        Its placeholders are `inputs`.
    root : torch.nn.Module
        Has the modules, parameters and constants that the graph names.
    constants : list of Tensor
        Those that the code made for itself.

    Raises
    ------
    ValueError
        If it cannot be captured, with the line of the user's code.
    """
    tracer = _Tracer(inputs)
    try:
        with _NoDraws(), _fixed_buffers(target):
            graph = tracer.trace(target)
        _check_attributes(tracer.root)
    except Exception as error:
        raise ValueError(
            f"{describe(target)} cannot be captured as a graph:{_line_of(error)} "
            f"{str(error).rstrip('.')}. With trace(..., capture=False) it runs as it is, without a "
            "graph."
        ) from error
    constants = [constant for constant in tracer.tensor_attrs if isinstance(constant, Tensor)]
    return graph, tracer.root, constants


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # else what is computed from buffers would be a constant

    def __init__(self, inputs: Sequence[str]) -> None:
        super().__init__()
        self._inputs = inputs
        self._modes = _modes()

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Add a node, if it will run as it would here."""
        if _modes() != self._modes:
            raise ValueError(
                "A graph does not keep torch.no_grad, autocast and the like. Use detach() or to() "
                "within the code, or call the executor under such a mode."
            )
        return super().create_proxy(*args, **kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Placeholders for the inputs; other parameters keep their defaults."""
        names = self._inputs
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in names]

        def call(*arguments: Any) -> Any:
            root, values = arguments[:is_module], arguments[is_module:]
            return root_fn(*root, **dict(zip(names, values, strict=True)))

        return call, [*([self.root] if is_module else []), *proxies]


class _NoDraws(TorchFunctionMode):
    """Refuses what draws random numbers into a tensor that would become a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        before = _generators()
        result = func(*args, **kwargs)
        drawn = kwargs.get("generator") is not None or not all(
            map(torch.equal, before, _generators())
        )
        if drawn and isinstance(result, Tensor):
            raise ValueError(
                "Random numbers drawn here would be the same ones at every step. Draw them with a "
                "function of an input, such as torch.randn_like, or pass them as an input."
            )
        return result


def _generators() -> list[Tensor]:
    """States of the global generators."""
    return [
        torch.random.get_rng_state(),
        *(_cuda.get_rng_state_all() if _cuda.is_initialized() else []),
    ]


def _modes() -> list[bool]:
    """What changes operators from outside."""
    autocast = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast]


def _check_attributes(root: nn.Module) -> None:
    for module in root.modules():
        for name, value in vars(module).items():
            if isinstance(value, fx.Proxy):
                raise ValueError(
                    f"Attribute {name} of {type(module).__name__} is assigned, which a graph does "
                    "not repeat."
                )


class _FixedBuffers(dict[str, Any]):
    """Buffers that cannot be assigned: a graph would not repeat it."""

    def __setitem__(self, name: str, value: Any) -> None:
        raise ValueError(
            f"Buffer {name} is assigned, which a graph does not repeat. Change it in place, with "
            "copy_ or add_."
        )


@contextlib.contextmanager
def _fixed_buffers(target: Callable[..., Any]) -> Iterator[None]:
    modules = list(target.modules()) if isinstance(target, nn.Module) else []
    for module in modules:
        module._buffers = _FixedBuffers(module._buffers)
    try:
        yield
    finally:
        for module in modules:
            module._buffers = dict(module._buffers)


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    if not own:
        return ""
    return f" {own[-1].filename}:{own[-1].lineno}: `{own[-1].line}`:"
