"""The plan of an executor as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, fx

from .arrays import Arrays

__all__ = ["describe_plan"]


def describe_plan(
    graphs: Mapping[bool, fx.Graph] | None,
    arrays: Arrays,
    outputs: Iterable[tuple[str, Tensor]],
) -> str:
    """What is run, and on which memory; the bytes are those of all arrays, the caller's too.

    Parameters
    ----------
    graphs : mapping of bool to torch.fx.Graph, or None
        For training and inference.
    arrays : Arrays
        What is bound.
    outputs : iterable of (str, Tensor)
        Where results go.
    """
    if graphs is None:
        lines = ["Nodes:", "  none: runs as it is, without a graph"]
    else:
        training, inference = _nodes(graphs[True]), _nodes(graphs[False])
        lines = ["Nodes:", *inference]
        if training != inference:
            lines = ["Nodes of training:", *training, "Nodes of inference:", *inference]
    lines.append("Arrays:")
    tensors = []
    for kind, named in (("argument", arrays.args), ("auxiliary", arrays.aux), ("output", outputs)):
        pairs = named.items() if isinstance(named, Mapping) else named
        for name, tensor in pairs:
            tensors.append(tensor)
            req = f", gradient: {arrays.reqs[name]}" if kind == "argument" else ""
            shape = tuple(tensor.shape)
            lines.append(f"  {kind} {name}: {shape} {tensor.dtype} on {tensor.device}{req}")
    tensors += [grad for grad in arrays.grads.values() if grad is not None]
    lines.append(f"Total {_allocated(tensors):,} bytes allocated")
    return "\n".join(lines)


def _nodes(graph: fx.Graph) -> list[str]:
    return [f"  {_node(node)}" for node in graph.nodes if node.op.startswith("call")]


def _node(node: fx.Node) -> str:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    read = [str(value) for value in node.args]
    read += [f"{name}={value}" for name, value in node.kwargs.items()]
    return f"{node.name} = {target}({', '.join(read)})"


def _allocated(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory that tensors look at, shared memory once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr() or id(tensor), str(tensor.device)] = storage.nbytes()
    return sum(storages.values())
