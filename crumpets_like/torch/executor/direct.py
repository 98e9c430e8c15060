"""Gradients that are computed where they shall lie, not copied there.

What a step of a perceptron copies is mostly the gradients of its large weights: 7 % of its time.
Matrix products can write to a given array, so the gradients of large linear layers do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from .program import is_users

__all__ = ["make_direct"]

_LARGE = 1 << 17
"""Elements of a weight whose copy costs more than a call of Python."""


_DIFFERENTIATE = (torch.autograd.grad, torch.autograd.backward, "backward")
"""What graphs may call to go back themselves."""


class _Linear(torch.autograd.Function):
    """A linear layer for matrices, by the same operators as PyTorch's own, with the same bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, array: Tensor) -> Tensor:
        """Remember where the gradient of the weight is to lie."""
        ctx.save_for_backward(x, weight)
        ctx.array = array
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """The gradient of the weight is the given array."""
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            gradient.mm(weight) if needs_x else None,
            torch.mm(gradient.t(), x, out=ctx.array) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
            None,
        )


class DirectLinear(nn.Linear):
    """What becomes of a ``torch.nn.Linear`` that has an array for the gradient of its weight."""

    array: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Shapes (N, in) to (N, out); what else a linear layer may do is left to autograd."""
        if (
            input.dim() != 2
            or not input.is_contiguous()
            or torch.is_autocast_enabled(input.device.type)
        ):
            return super().forward(input)
        return _Linear.apply(input, self.weight, self.bias, self.array)  # type: ignore[no-any-return, no-untyped-call]


def make_direct(
    root: nn.Module, graphs: Mapping[bool, fx.Graph], arrays: Mapping[str, Tensor]
) -> None:
    """Let large linear layers compute gradients in the bound arrays.

    Parameters
    ----------
    root : torch.nn.Module
        The executor's own copy of the module; changed.
    graphs : mapping of bool to torch.fx.Graph
        What is run. A layer that one of them runs twice has two gradients to add, and is left
        alone; so are all in a network that may ask for gradients itself.
    arrays : mapping of str to Tensor
        By the weight's name, for gradients that replace what is there.
    """
    calls = Counter[Any]()
    for graph in graphs.values():
        calls |= Counter(node.target for node in graph.nodes)
        if any(node.target in _DIFFERENTIATE or is_users(node.target) for node in graph.nodes):
            return
    uses = Counter(id(tensor) for _, tensor in root.named_parameters(remove_duplicate=False))
    for name, array in arrays.items():
        path, _, own = name.rpartition(".")
        layer = root.get_submodule(path)
        if type(layer) is not nn.Linear or own != "weight" or layer.weight.numel() < _LARGE:
            continue
        parents = [path[:end] for end, letter in enumerate(path) if letter == "."]
        alone = (
            calls[path] == 1 and not any(calls[reader] for reader in (name, *parents))
        ) and uses[id(layer.weight)] == 1
        plain = layer.weight.is_contiguous() and array.is_contiguous()
        if alone and plain and torch.amp.is_autocast_available(array.device.type):
            layer.__class__ = DirectLinear
            layer.array = array
