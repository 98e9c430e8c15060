"""What runs: the code of a symbol, with certain tensors in the places of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from .capture import in_order
from .monitor import Monitor

if TYPE_CHECKING:
    from .direct import LinearRun
    from .symbol import Symbol

_KNOWN = {"torch", "_operator", "builtins", "math", __name__.partition(".")[0]}
"""Packages whose functions are operators."""

__all__ = ["Program", "compile_graphs", "is_users", "output_names", "set_mode"]


class Program:
    """A symbol whose parameters and buffers are the given tensors.

    The module is copied without its tensors: whatever referred to a parameter, tied weights and
    the lists of an LSTM too, refers to the given one. So the user's module stays as it is.

    Parameters
    ----------
    symbol : Symbol
        What to run.
    tensors : mapping of str to Tensor
        Parameters and buffers, by name.
    device : torch.device
        Where constants are taken to.
    graphs : mapping of bool to torch.fx.Graph, optional
        Others than the symbol's own.

    Attributes
    ----------
    root : torch.nn.Module
        The copy.
    linear : list of LinearRun
        What layers have left to be done, see direct.py.
    """

    def __init__(
        self,
        symbol: Symbol,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        graphs: Mapping[bool, fx.Graph] | None = None,
    ) -> None:
        memo: dict[int, Any] = {id(symbol.tensors[name]): tensors[name] for name in symbol.tensors}
        memo.update((id(constant), constant.to(device)) for constant in symbol.constants)
        self._symbol = symbol
        self.root: nn.Module = copy.deepcopy(symbol.root, memo)
        self.graphs = symbol.graphs if graphs is None else graphs
        self._codes = symbol.codes if graphs is None else compile_graphs(graphs)
        runs = self.root if isinstance(symbol.target, nn.Module) else symbol.target
        self._call = in_order(runs, symbol.inputs)
        self._buffers = [
            (part, name, buffer)
            for part in self.root.modules()
            for name, buffer in part.named_buffers(recurse=False)
        ]
        self._results = {mode: _result_of(graph) for mode, graph in (self.graphs or {}).items()}
        self._mode: bool | None = None
        self.linear: list[LinearRun] = []

    def run(
        self, is_train: bool, inputs: Sequence[Tensor], monitor: Monitor | None = None
    ) -> list[tuple[str, Tensor]]:
        """Execute it once.

        Parameters
        ----------
        is_train : bool
            The mode that modules are in.
        inputs : sequence of Tensor
            In the order of the symbol's inputs.
        monitor : Monitor, optional
            Sees every node, or the outputs where there is no graph.

        Returns
        -------
        list of (str, Tensor)
            The outputs with their names.
        """
        root = self.root
        self.linear.clear()
        if self._mode is not is_train:
            self._mode = is_train
            set_mode(root, is_train, self._symbol.frozen)
        if self.graphs is None:
            value = self._call(*inputs)
            self._take_back_buffers()
            outputs = flatten(value, f"{self._symbol.name}_output")
            if monitor is not None:
                for name, tensor in outputs:
                    monitor.output(name, tensor)
            return outputs
        graph = self.graphs[is_train]
        if monitor is None:
            value = self._codes[is_train](root, *inputs)
        else:
            value = Monitored(root, graph, monitor).look(inputs)
        return list(_named(self._results[is_train], value))

    def _take_back_buffers(self) -> None:
        """Bring what the code has assigned to a buffer into the bound array."""
        for part, name, buffer in self._buffers:
            new = part._buffers.get(name)
            if new is buffer:
                continue
            part._buffers[name] = buffer
            if new is None or new.shape != buffer.shape:
                raise ValueError(
                    f"Buffer {name} of module {type(part).__name__} is assigned "
                    f"{new if new is None else tuple(new.shape)}; its array has the shape "
                    f"{tuple(buffer.shape)}, which cannot change."
                )
            with torch.no_grad():
                buffer.copy_(new)


def set_mode(root: nn.Module, is_train: bool, frozen: Iterable[str]) -> None:
    """Set the mode of a module; what its user has frozen stays in evaluation."""
    root.train(is_train)
    for name in frozen:
        root.get_submodule(name).training = False


class Monitored(fx.Interpreter):
    """Runs a graph node by node and shows each result."""

    def __init__(self, root: nn.Module, graph: fx.Graph, monitor: Monitor) -> None:
        super().__init__(root, graph=graph)
        self._monitor = monitor

    def look(self, inputs: Sequence[Tensor]) -> Any:
        """Run all of them. (``Interpreter.run`` would start a thread for a progress bar.)"""
        self.args_iter = iter(inputs)
        for node in self.graph.nodes:
            self.env[node] = self.run_node(node)
            if node.op == "output":
                break
            for used in self.user_to_last_uses.get(node, []):
                del self.env[used]
        return self.env[node]

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; its tensors are shown before the next one may change them."""
        if not n.op.startswith("call"):
            return super().run_node(n)
        inputs = self.fetch_args_kwargs_from_env(n)
        for number, (_, tensor) in enumerate(flatten(inputs, "", tensors_only=True)):
            self._monitor.input(f"{n.name}_input{number}", tensor)
        result = super().run_node(n)
        for name, tensor in flatten(result, node_output(n), tensors_only=True):
            self._monitor.output(name, tensor)
        return result


def is_users(target: Any) -> bool:
    """Whether it is the user's function, as ``torch.fx.wrap`` leaves one, and not an operator."""
    module = getattr(target, "__module__", None) or "torch"
    return callable(target) and module.partition(".")[0] not in _KNOWN


def compile_graphs(graphs: Mapping[bool, fx.Graph]) -> dict[bool, Callable[..., Any]]:
    """Python functions that run graphs; they take the root and the inputs."""
    codes: dict[int, Callable[..., Any]] = {}
    for graph in graphs.values():
        if id(graph) not in codes:
            code = graph.python_code("self")
            names = dict(code.globals)
            exec(code.src, names)
            codes[id(graph)] = names["forward"]
    return {mode: codes[id(graph)] for mode, graph in graphs.items()}


def flatten(value: Any, name: str, tensors_only: bool = False) -> list[tuple[str, Tensor]]:
    """The tensors of a result: one, or those in lists, tuples and dicts, by name.

    Raises
    ------
    ValueError
        If it holds anything else, unless it is `tensors_only`.
    """
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, Mapping):
        pairs: Iterator[tuple[str, Any]] = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        pairs = ((_numbered(name, number), item) for number, item in enumerate(value))
    elif tensors_only:
        return []
    else:
        raise ValueError(
            f"Output {name} is {type(value).__name__} {value!r:.60}: what is bound must return "
            "tensors, or lists, tuples and dicts of tensors."
        )
    return [found for key, item in pairs for found in flatten(item, key, tensors_only)]


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if name[-1:].isdigit() else f"{name}{number}"


def output_names(graph: fx.Graph) -> list[str]:
    """Names of a graph's outputs, as far as they are known without running it.

    Raises
    ------
    ValueError
        If one is no tensor, nor what a node computes.
    """
    return [name for name, _ in _named(_result_of(graph), None)]


def node_output(node: fx.Node) -> str:
    """What the result of a node is called."""
    return str(node.target) if node.op == "placeholder" else f"{node.name}_output"


def _result_of(graph: fx.Graph) -> Any:
    return next(iter(reversed(graph.nodes))).args[0]


def _named(result: Any, value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The outputs in `value`, named after the keys or the nodes in `result`.

    Without a `value`, a node counts as one tensor.
    """
    if isinstance(result, fx.Node):
        own = name or node_output(result)
        yield from [(own, None)] if value is None else flatten(value, own)
    elif isinstance(result, Mapping):
        for key, item in result.items():
            yield from _named(item, value and value[key], str(key))
    elif isinstance(result, list | tuple):
        for number, item in enumerate(result):
            yield from _named(item, value and value[number], name and _numbered(name, number))
    else:  # neither a node nor nodes: no tensor
        yield from flatten(result, name or "output")
