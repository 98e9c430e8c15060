"""Gradients that are computed where they shall lie, not copied there.

What a step of a perceptron copies is mostly the gradients of its large weights: 7 % of its time.
Matrix products can write to a given array, so the gradients of large linear layers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, fx, nn

__all__ = ["DirectLinear", "make_direct"]

_LARGE = 1 << 16
"""Elements of a weight whose copy costs more than a hook."""


class DirectLinear(nn.Linear):
    """A linear layer that computes the gradient of its weight by itself.

    Autograd computes the others, on an alias of the weight that requires none. The operators are
    the same, and so are the bits. It becomes what a ``torch.nn.Linear`` was.

    Attributes
    ----------
    array : Tensor
        Where the gradient goes.
    alias : Tensor
        The weight, for autograd a constant.
    reached : bool
        Whether the last backward came here.
    """

    array: Tensor
    alias: Tensor
    reached: bool

    def forward(self, input: Tensor) -> Tensor:
        """Shapes (N, in) to (N, out); what else a linear layer may do is left to autograd."""
        flows = input.requires_grad or (self.bias is not None and self.bias.requires_grad)
        if (
            input.dim() != 2
            or not flows
            or not torch.is_grad_enabled()
            or torch.is_autocast_enabled(input.device.type)
        ):
            return super().forward(input)
        output = nn.functional.linear(input, self.alias, self.bias)
        output.register_hook(partial(self._take, input, input._version))  # type: ignore[no-untyped-call]
        return output

    def _take(self, input: Tensor, version: int, gradient: Tensor) -> None:
        """Compute the gradient of the weight from that of the output."""
        if input._version != version:
            raise RuntimeError(
                "The input of a linear layer has been modified by an inplace operation since."
            )
        torch.mm(gradient.t(), input, out=self.array)
        self.reached = True


def make_direct(
    root: nn.Module, graph: fx.Graph, arrays: Mapping[str, Tensor]
) -> dict[str, DirectLinear]:
    """Let large linear layers compute gradients in the bound arrays.

    Parameters
    ----------
    root : torch.nn.Module
        The executor's own copy of the module; changed.
    graph : torch.fx.Graph
        What is run. A layer that it runs twice has two gradients to add, and is left alone.
    arrays : mapping of str to Tensor
        By the weight's name, for gradients that replace what is there.

    Returns
    -------
    dict of str to DirectLinear
        By the weight's name.
    """
    calls = Counter(node.target for node in graph.nodes)
    uses = Counter(id(tensor) for _, tensor in root.named_parameters(remove_duplicate=False))
    found: dict[str, DirectLinear] = {}
    for name, array in arrays.items():
        path, _, own = name.rpartition(".")
        layer = root.get_submodule(path)
        if type(layer) is not nn.Linear or own != "weight" or layer.weight.numel() < _LARGE:
            continue
        alone = calls[path] == 1 and calls[name] == 0 and uses[id(layer.weight)] == 1
        if alone and layer.weight.is_contiguous() and array.is_contiguous():
            layer.__class__ = DirectLinear
            direct = found[name] = cast(DirectLinear, layer)
            direct.array, direct.alias, direct.reached = array, layer.weight.detach(), False
    return found
