"""Gradients that are computed where they shall lie, not copied there.

What a step of a perceptron copies is mostly the gradients of its linear layers: 7 % of its time.
Sums and matrix products can write to a given array. So autograd goes back only to what a linear
layer has computed, and two products for each layer do the rest, as autograd would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge

from .program import is_users

__all__ = ["LinearRun", "make_direct"]

_DIFFERENTIATE = (torch.autograd.grad, torch.autograd.backward, "backward")
"""What graphs may call to go back themselves."""


@dataclass(frozen=True, slots=True)
class LinearRun:
    """What the gradients of one linear layer are made of, and where they go.

    Attributes
    ----------
    arrays : dict of str to Tensor
        Where the gradients lie, by the names of the parameters.
    edge : GradientEdge
        Where autograd comes to the gradient of what the layer has computed.
    """

    arrays: Mapping[str, Tensor]
    edge: GradientEdge
    _x: Tensor
    _version: int

    def fill(self, gradient: Tensor | None) -> None:
        """Compute the gradients of the parameters.

        Parameters
        ----------
        gradient : Tensor or None
            Of shape (N, out), of what the layer has computed. None if nothing comes back to it.

        Raises
        ------
        RuntimeError
            If the layer's input has been written to since, in autograd's words.
        """
        if gradient is None:
            for array in self.arrays.values():
                array.zero_()
            return
        if self._x._version != self._version:
            raise RuntimeError("the input of a linear layer was modified by an inplace operation")
        weight, *bias = self.arrays.values()
        torch.mm(gradient.t(), self._x, out=weight)
        for array in bias:
            torch.sum(gradient, 0, out=array)


class DirectLinear(nn.Linear):
    """What becomes of a ``torch.nn.Linear`` that has arrays for its gradients.

    Attributes
    ----------
    arrays : dict of str to Tensor
        For the weight, and then for the bias, unless that has no array or adds to it.
    runs : list of LinearRun
        Where it tells of each run.
    """

    arrays: Mapping[str, Tensor]
    runs: list[LinearRun]

    def forward(self, input: Tensor) -> Tensor:
        """Shapes (N, in) to (N, out); what else a linear layer may do is left to autograd."""
        output = super().forward(input)
        if (
            input.dim() == 2
            and output.grad_fn is not None
            and self.weight.requires_grad
            and input.is_contiguous()
            and not torch.is_autocast_enabled(input.device.type)
            and not _hooked(self.weight, self.bias)
        ):
            edge = GradientEdge(output.grad_fn, output.output_nr)
            self.runs.append(LinearRun(self.arrays, edge, input, input._version))
        return output


def _hooked(*tensors: Tensor | None) -> bool:
    """Whether somebody looks at the gradients of parameters, or changes them."""
    return any(tensor is not None and tensor._backward_hooks for tensor in tensors)


def make_direct(
    root: nn.Module, graphs: Iterable[fx.Graph], arrays: Mapping[str, Tensor]
) -> list[LinearRun]:
    """Let linear layers leave their gradients to what lies in the bound arrays.

    Parameters
    ----------
    root : torch.nn.Module
        The executor's own copy of the module; changed.
    graphs : iterable of torch.fx.Graph
        What is run. A layer that one of them runs twice has two gradients to add, and is left
        alone; so are all in a network that may ask for gradients itself.
    arrays : mapping of str to Tensor
        By the parameter's name, for gradients that replace what is there.

    Returns
    -------
    list of LinearRun
        Grows with each run of such a layer.
    """
    runs: list[LinearRun] = []
    calls = Counter[Any]()
    for graph in graphs:
        calls |= Counter(node.target for node in graph.nodes)
        if any(node.target in _DIFFERENTIATE or is_users(node.target) for node in graph.nodes):
            return runs
    uses = Counter(id(tensor) for _, tensor in root.named_parameters(remove_duplicate=False))

    def own_array(name: str, tensor: Tensor | None) -> dict[str, Tensor]:
        """The array of a parameter whose gradient is that of its layer alone."""
        if tensor is None or name not in arrays or calls[name] or uses[id(tensor)] != 1:
            return {}
        array = arrays[name]
        alike = tensor.is_contiguous() and array.is_contiguous() and array.dtype == tensor.dtype
        return {name: array} if alike else {}

    for path, layer in root.named_modules():
        parents = [path[:end] for end, letter in enumerate(path) if letter == "."]
        if type(layer) is not nn.Linear or calls[path] != 1 or any(calls[p] for p in parents):
            continue
        weight = own_array(f"{path}.weight", layer.weight)
        if weight and torch.amp.is_autocast_available(layer.weight.device.type):
            layer.__class__ = DirectLinear
            direct = cast(DirectLinear, layer)
            direct.arrays = weight | own_array(f"{path}.bias", layer.bias)
            direct.runs = runs
    return runs
