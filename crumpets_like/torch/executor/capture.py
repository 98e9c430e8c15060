"""Capturing Python code as a graph of operators, by ``torch.fx``.

NOTE [Why torch.fx]. Both were tried on a residual network, an LSTM, a transformer encoder, a
network with dropout and one in bfloat16; outputs and gradients of 50 steps were equal to eager
PyTorch to the last bit with either. ``torch.export`` needs example inputs, and its graph holds for
their shapes, and for one of training and inference; it took 0.3 to 7.9 seconds per graph where
``torch.fx`` took 8 to 57 milliseconds. An executor is reshaped, switches between training and
inference, and can say its arguments before it knows any shape: all that is ``torch.fx``.

What ``torch.fx`` would do wrong without a word is refused here: random numbers drawn while the code
is traced, which would be the same ones at every step; changes of Python state, which a graph does
not repeat; operators under ``no_grad`` or ``autocast``, and hooks on the way back, which a graph
does not keep.

NOTE [Threads]. While it traces, ``torch.fx`` replaces ``Module.__call__`` for the whole process. So
one thread traces at a time, and modules that others call meanwhile are called as usual.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .state import KeptStandIns, python_state, refuse_changes

__all__ = ["capture", "describe", "in_order", "input_names", "is_one_operator", "name_of"]

_NOT_THE_USERS = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_KEYWORDS = {"allow_short", "allow_up_sizing", "cuda_graph", "device", "dtype", "grad_req"}
_KEYWORDS |= {"group2device", "is_train", "optimizer", "partial_shaping", "self", "strict"}
"""Parameters of the methods that take inputs by keyword."""

_one_at_a_time = threading.Lock()


def input_names(target: Callable[..., Any]) -> list[str]:
    """The inputs of a function or of a module's ``forward``: its parameters without a default.

    Raises
    ------
    ValueError
        If one has no name, or one that a method of an executor has for something else.
    """
    names = []
    for parameter in _parameters_of(target).values():
        if parameter.kind not in _NAMED:
            raise ValueError(
                f"The inputs of {describe(target)} must have names, got {parameter}: wrap it in a "
                "function whose parameters are what is bound."
            )
        if parameter.default is inspect.Parameter.empty:
            names.append(parameter.name)
    for name in _KEYWORDS.intersection(names):
        raise ValueError(
            f"Input {name} of {describe(target)} must have another name: methods of an executor "
            "have a parameter of that name."
        )
    return names


def in_order(target: Callable[..., Any], inputs: Sequence[str]) -> Callable[..., Any]:
    """A target as a function of its inputs, given where callers, and so hooks, have them."""
    parameters = _parameters_of(target)
    names = [n for n in inputs if parameters[n].kind is inspect.Parameter.KEYWORD_ONLY]
    if not names:
        return target
    first = len(inputs) - len(names)  # the others come last

    def call(*values: Any) -> Any:
        return target(*values[:first], **dict(zip(names, values[first:], strict=True)))

    return call


def _parameters_of(target: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    function = target.forward if isinstance(target, nn.Module) else target
    return inspect.signature(function).parameters


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
    before = python_state(target)
    try:
        no_draws = _NoDraws()  # type: ignore[no-untyped-call]
        with _one_at_a_time, no_draws, _fixed_buffers(target):
            graph = tracer.trace(target)
        refuse_changes(before, python_state(target), set(tracer.tensor_attrs.values()))
        tracer.stand_ins.refuse()
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
        self.stand_ins = KeptStandIns()
        self._inputs = inputs
        self._modes = _modes()
        self._thread = threading.get_ident()

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Add a node, if it will run as it would here."""
        if _modes() != self._modes:
            raise ValueError(
                "A graph does not keep torch.no_grad, torch.autocast and the like, nor what is "
                "within the forward of a torch.autograd.Function. Use detach() or to() within the "
                "code, call the executor under autocast, or make a function that torch.fx.wrap "
                "leaves as it is"
            )
        proxy = super().create_proxy(*args, **kwargs)
        self.stand_ins.add(proxy)
        return proxy

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Placeholders for the inputs; other parameters keep their defaults."""
        names = self._inputs
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in names]
        # The root itself, not its class's forward: it may have hooks, or a forward of its own.
        return in_order(self.root if is_module else root_fn, names), proxies

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Add a layer of torch as a node, or go through what another module does."""
        if threading.get_ident() != self._thread:  # see NOTE [Threads]
            return forward(*args, **kwargs)
        leaf = self.is_leaf_module(m, "")
        if not leaf and (m._backward_hooks or m._backward_pre_hooks):
            raise ValueError(
                f"The backward hooks of module {type(m).__name__} would be lost, as its operators "
                "become part of the graph"
            )
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """A stand-in for a parameter or buffer."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


class _NoDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what draws random numbers into a tensor that would become a constant."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError(
                "Random numbers drawn here would be the same ones at every step. Draw them with a "
                "function of an input, such as torch.randn_like, or pass them as an input."
            )
        return func(*args, **(kwargs or {}))


def _modes() -> list[bool]:
    """What changes operators from outside."""
    autocast = [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")]
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast]


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
