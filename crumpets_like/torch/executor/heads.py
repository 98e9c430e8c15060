"""Loss heads, and the gradients that flow into the outputs of a graph.

A loss head is an output that knows its own gradient: the one that would flow into it, the head
gradient, is ignored, as in MXNet 1.9.1's ``SoftmaxOutput`` and ``make_loss``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .values import array_of

__all__ = ["head_gradients", "make_loss", "softmax_output"]


class SoftmaxOutput(torch.autograd.Function):
    """Probabilities forward, ``p - onehot`` backward."""

    @staticmethod
    def forward(ctx: Any, data: Tensor, label: Tensor) -> Tensor:
        """Shapes (N, C, ...) and (N, ...)."""
        probabilities = torch.softmax(data, 1)
        ctx.save_for_backward(probabilities, label)
        return probabilities

    @staticmethod
    def backward(ctx: Any, *head_gradients: Any) -> tuple[Tensor, None]:
        """Labels have no gradient."""
        probabilities, label = ctx.saved_tensors
        index = label.long().unsqueeze(1)
        inside = index.clamp(0, probabilities.shape[1] - 1)
        one = (index == inside).to(probabilities.dtype)  # a label outside is that of no class
        return probabilities.scatter_add(1, inside, -one), None


class MakeLoss(torch.autograd.Function):
    """The same value forward, ones backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Any shape."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *head_gradients: Any) -> Tensor:
        """What flows in is ignored."""
        return torch.ones_like(head_gradients[0])


_HEADS: Any = tuple(getattr(head, "_backward_cls") for head in (SoftmaxOutput, MakeLoss))  # noqa: B009


def softmax_output(data: Tensor, label: Tensor) -> Tensor:
    """Softmax whose gradient is that of the cross entropy with `label`, summed over the batch.

    Parameters
    ----------
    data : Tensor
        Scores, float, of shape (N, C) or (N, C, ...).
    label : Tensor
        Numbers of the classes, of shape (N,) or (N, ...), of an integer or a float dtype. One that
        is no class, such as -1, has the gradient ``p``.

    Returns
    -------
    Tensor
        Probabilities along dimension 1. Its gradient to `data` is ``p - onehot(label)``, whatever
        flows into it (MXNet 1.9.1's ``SoftmaxOutput``).

    Raises
    ------
    ValueError
        If the shapes do not go together.
    """
    if has_torch_function((data, label)):  # being captured
        return handle_torch_function(softmax_output, (data, label), data, label)
    if data.dim() < 2 or label.shape != data.shape[:1] + data.shape[2:]:
        raise ValueError(
            f"softmax_output needs data of shape (N, C, ...) and a label of shape (N, ...), "
            f"got {tuple(data.shape)} and {tuple(label.shape)}."
        )
    return SoftmaxOutput.apply(data, label)  # type: ignore[no-any-return, no-untyped-call]


def make_loss(x: Tensor) -> Tensor:
    """Make a loss of any expression: its gradient is one, whatever flows into it.

    Parameters
    ----------
    x : Tensor
        Of any shape; not reduced.

    Returns
    -------
    Tensor
        The same values (MXNet 1.9.1's ``make_loss``).
    """
    if has_torch_function((x,)):
        return handle_torch_function(make_loss, (x,), x)
    return MakeLoss.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def is_head(output: Tensor) -> bool:
    """Whether an output is a loss head."""
    return isinstance(output.grad_fn, _HEADS)


def head_gradients(given: Any, names: Sequence[str], outputs: Sequence[Tensor]) -> list[Tensor]:
    """One gradient for each output.

    Parameters
    ----------
    given : None, Tensor, numpy.ndarray, sequence or dict of these
        As passed to ``Executor.backward``. None stands for ones, which only loss heads, scalars and
        outputs that nothing flows back from may have.
    names : sequence of str
        Of the outputs.
    outputs : sequence of Tensor
        Results of the last forward.

    Raises
    ------
    TypeError
        If one is no array.
    ValueError
        If one is missing, has another shape, or there are too many.
    """
    listed = _as_list(given, names)
    return [
        _head_gradient(head, name, output)
        for head, name, output in zip(listed, names, outputs, strict=True)
    ]


def _as_list(given: Any, names: Sequence[str]) -> list[Any]:
    if given is None:
        return [None] * len(names)
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"out_grads names {unknown}, which are no outputs; there are {list(names)}."
            )
        return [given.get(name) for name in names]
    if not isinstance(given, list | tuple):
        given = [given]
    if len(given) != len(names):
        raise ValueError(
            f"out_grads has {len(given)} head gradients, the graph has {len(names)} outputs: "
            f"{', '.join(names)}."
        )
    return list(given)


def _head_gradient(head: Any, name: str, output: Tensor) -> Tensor:
    if head is None:
        if output.numel() == 1 or not output.requires_grad or is_head(output):
            return torch.ones_like(output)
        raise ValueError(
            f"Head gradients are required: output {name} of shape {tuple(output.shape)} is neither "
            "a scalar nor a loss head. Pass out_grads=, or end the network with softmax_output or "
            "make_loss, or detach() an output that nothing is to flow back from."
        )
    tensor = array_of(head)
    if tensor is None:
        raise TypeError(
            f"The head gradient of output {name}, of shape {tuple(output.shape)}, must be a tensor "
            f"or a numpy array of numbers, got {type(head).__name__}: {head!r:.60}."
        )
    if tensor.shape != output.shape:
        raise ValueError(
            f"The head gradient of output {name} must have its shape {tuple(output.shape)}, "
            f"got {tuple(tensor.shape)}."
        )
    return tensor.to(output.device, output.dtype)
