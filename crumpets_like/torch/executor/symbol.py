"""What an executor executes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from . import capture as capturing
from .placement import Places
from .program import compile_graphs, output_names, set_mode
from .shapes import DTypes, Shape, infer, input_specs

if TYPE_CHECKING:
    from .executor import Executor

__all__ = ["Symbol", "trace"]

_PURE = {getattr, operator.getitem, operator.neg, operator.add, operator.sub, operator.mul}
_PURE |= {operator.truediv, operator.pow, operator.matmul}


def trace(target: Callable[..., Any], capture: bool = True) -> Symbol:
    """Make a symbol of a function of tensors, or of a module.

    Parameters
    ----------
    target : callable or torch.nn.Module
        Returns a tensor, or a list, tuple or dict of tensors. Parameters with a default are no
        arguments: they keep it.
    capture : bool
        Whether to capture it as a graph. If not, it runs as it is at every forward; there are no
        names of operators then, and a monitor sees the outputs alone.

    Raises
    ------
    ValueError
        If it cannot be captured, with the line that is the reason; if an input has no name.
    """
    return Symbol(target, capture)


class Symbol:
    """A function or module, and its graph; made by :func:`trace`.

    Parameters
    ----------
    target : callable or torch.nn.Module
        As of :func:`trace`.
    capture : bool
        As of :func:`trace`.
    optimized : bool
        Whether to leave out what no output needs.

    Attributes
    ----------
    target : callable or torch.nn.Module
        What was traced.
    name : str
        Of the target; outputs are named after it where there is no graph.
    captured, optimized : bool
        As they were asked for. A single layer of torch has no graph, for it is one operator.
    inputs : list of str
        The arguments that are no parameters.
    parameters : dict of str to Parameter
        The module's own, by dotted name; one that is used in several places has its first name.
    buffers : dict of str to Tensor
        The module's own, by dotted name.
    tensors : dict of str to Tensor
        Parameters and buffers.
    constants : list of Tensor
        Tensors that the code makes for itself.
    root : torch.nn.Module
        What graphs run in: a copy of the module, with the same tensors.
    frozen : list of str
        Submodules that are in evaluation while the module is in training.
    graphs : dict of bool to torch.fx.Graph, or None
        For training and for inference; None: there is none.
    codes : dict of bool to callable
        The graphs, compiled.
    """

    def __init__(
        self, target: Callable[..., Any], capture: bool = True, optimized: bool = False
    ) -> None:
        if not callable(target):
            raise TypeError(f"trace takes a function or a module, got {type(target).__name__}.")
        self.target = target
        self.captured = capture
        self.optimized = optimized
        self.name = capturing.name_of(target)
        self.inputs = capturing.input_names(target)
        module = target if isinstance(target, nn.Module) else nn.Module()
        self.parameters = dict(module.named_parameters())
        self.buffers = dict(module.named_buffers())
        self.tensors: dict[str, Tensor] = {**self.parameters, **self.buffers}
        for name in self.inputs:
            if name in self.tensors:
                raise ValueError(
                    f"Input {name} of {capturing.describe(target)} must have another name: the "
                    "module has a parameter or a buffer of that name."
                )
        self.constants: list[Tensor] = []
        self.root = _copy_of(module, self.tensors.values())
        self.frozen = [
            name for name, part in module.named_modules() if module.training > part.training
        ]
        self.graphs: dict[bool, fx.Graph] | None = None
        self.codes: dict[bool, Callable[..., Any]] = {}
        if capture and not capturing.is_one_operator(target):
            self.graphs = self._capture()
            self.codes = compile_graphs(self.graphs)
            for graph in self.graphs.values():
                output_names(graph)  # refuses what are no tensors

    def _capture(self) -> dict[bool, fx.Graph]:
        graphs = {}
        if isinstance(self.target, nn.Module):
            for is_train in (True, False):
                set_mode(self.root, is_train, self.frozen)
                graphs[is_train], _, constants = capturing.capture(self.root, self.inputs)
                self.constants += constants
        else:  # a function has no mode
            graph, self.root, self.constants = capturing.capture(self.target, self.inputs)
            graphs = {True: graph, False: graph}
        if self.optimized:
            for graph in graphs.values():
                graph.eliminate_dead_code(lambda node: node.target not in _PURE)
        return graphs

    def __reduce__(self) -> Any:
        return Symbol, (self.target, self.captured, self.optimized)

    def __repr__(self) -> str:
        return f"<Symbol {self.name}({', '.join(self.inputs)})>"

    def list_arguments(self) -> list[str]:
        """Names of the inputs, in the order of the signature, then of the parameters."""
        return [*self.inputs, *self.parameters]

    def list_auxiliary_states(self) -> list[str]:
        """Names of the buffers."""
        return list(self.buffers)

    def list_outputs(self) -> list[str]:
        """Names of the outputs: that of the last node and ``_output``, or the key in a dict.

        They are those of inference, as of :meth:`infer_shape`. A node that gives several tensors
        counts as one here; an executor numbers them.
        """
        if self.graphs is None:
            return [f"{self.name}_output"]
        return output_names(self.graphs[False])

    def infer_shape(
        self, *, dtype: DTypes = torch.float32, **shapes: Shape
    ) -> tuple[list[Shape], list[Shape], list[Shape]]:
        """Shapes of the arguments, the outputs and the auxiliary states.

        Parameters
        ----------
        dtype : torch.dtype or dict of str to torch.dtype
            Of the inputs, float32 where it is not said.
        **shapes : tuple of int
            Of the inputs; a module's parameters have theirs.

        Returns
        -------
        arg_shapes, out_shapes, aux_shapes : list of tuple of int
            In the order of ``list_arguments``, ``list_outputs`` and ``list_auxiliary_states``.

        Raises
        ------
        ValueError
            If a shape is missing, is none, or they disagree.
        """
        specs = input_specs(self, shapes, dtype)
        outputs = infer(self, specs)
        if outputs is None:
            raise ValueError(
                f"The shapes of the outputs of {self.name} are known after the first forward: they "
                "depend on values, or on code that is not captured."
            )
        return (
            [shape for shape, _ in specs.values()],
            [tuple(output.shape) for _, output in outputs],
            [tuple(buffer.shape) for buffer in self.buffers.values()],
        )

    def bind(
        self,
        device: torch.device | str,
        args: Mapping[str, Tensor] | Sequence[Tensor],
        args_grad: Mapping[str, Tensor] | Sequence[Tensor | None] | None = None,
        grad_req: str | Sequence[str] | Mapping[str, str] = "write",
        aux_states: Mapping[str, Tensor] | Sequence[Tensor] | None = None,
        *,
        group2device: Mapping[str, torch.device | str] | None = None,
        cuda_graph: bool = False,
    ) -> Executor:
        """Bind the caller's arrays.

        Parameters
        ----------
        device : torch.device or str
            Where the arrays are.
        args : dict or sequence of Tensor
            All arguments, by name or in the order of ``list_arguments``. The executor reads and
            writes these very tensors.
        args_grad : dict or sequence of Tensor, optional
            Where gradients go; arguments that are not there get none.
        grad_req : {"write", "add", "null"}, or sequence or dict of these
            Whether a gradient replaces the array's values, is added to them, or is not computed.
            Arguments that a dict does not name get ``"null"``.
        aux_states : dict or sequence of Tensor, optional
            The module's own buffers unless given.
        group2device : dict of str to torch.device, optional
            Submodules, by prefix, whose arrays and operators are on other devices.
        cuda_graph : bool
            Whether to record the step as a CUDA graph and replay it.

        Raises
        ------
        ValueError, TypeError
            If an array is missing, is none, or does not fit.

        Warns
        -----
        UserWarning
            If `args` names what is no argument.
        """
        from .binding import bind
        from .executor import Executor

        with torch.inference_mode(False):
            places = Places.of(self, device, group2device or {})
            arrays, outputs = bind(self, places, args, args_grad, grad_req, aux_states)
            return Executor(self, places, arrays, outputs, cuda_graph)

    def simple_bind(
        self,
        device: torch.device | str,
        grad_req: str | Sequence[str] | Mapping[str, str] = "write",
        dtype: DTypes = torch.float32,
        *,
        group2device: Mapping[str, torch.device | str] | None = None,
        cuda_graph: bool = False,
        **shapes: Shape,
    ) -> Executor:
        """Allocate arrays, zeros, and bind them.

        Parameters
        ----------
        device, grad_req, group2device, cuda_graph
            As of :meth:`bind`. Integers and a module's frozen parameters get no gradient unless
            a list or dict asks for it.
        dtype : torch.dtype or dict of str to torch.dtype
            Of the inputs, float32 where it is not said.
        **shapes : tuple of int
            Of the inputs. The parameters and buffers of a module are its own, which is moved to
            the device if it is elsewhere: who trains the executor trains the module.

        Raises
        ------
        ValueError, TypeError
            If a shape or dtype is missing or does not fit.
        """
        from .binding import allocate
        from .executor import Executor

        with torch.inference_mode(False):  # what is allocated lasts longer than the caller's mode
            places = Places.of(self, device, group2device or {})
            arrays, outputs = allocate(self, places, grad_req, dtype, shapes)
            return Executor(self, places, arrays, outputs, cuda_graph)


def _copy_of(module: nn.Module, tensors: Iterable[Tensor]) -> nn.Module:
    """A copy that shares the tensors: tracing adds constants to it."""
    try:
        return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})
    except Exception as error:
        raise ValueError(
            f"{capturing.describe(module)} cannot be copied, which an executor needs: {error}. "
            "Likely causes are a result or a lock among its attributes, or weight_norm and "
            "spectral_norm of torch.nn.utils, for which torch.nn.utils.parametrizations has others."
        ) from error
