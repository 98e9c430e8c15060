"""The arrays of an executor: the caller's, checked, or allocated ones."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .arrays import Arrays
from .placement import Places
from .shapes import DTypes, Outputs, check_names, infer, input_specs

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["allocate", "bind", "grad_reqs", "own_buffers"]

GRAD_REQS = ("write", "add", "null")


def bind(
    symbol: Symbol,
    places: Places,
    args: Any,
    args_grad: Any,
    grad_req: Any,
    aux_states: Any,
) -> tuple[Arrays, Outputs | None]:
    """Check the caller's arrays; see ``Symbol.bind``."""
    arguments = symbol.list_arguments()
    if isinstance(args, Mapping):
        unknown = [name for name in args if name not in arguments]
        if unknown:
            warnings.warn(
                f"args names {', '.join(unknown)}, which are no arguments and are ignored; there "
                f"are {', '.join(arguments)}.",
                UserWarning,
                stacklevel=3,
            )
    bound = _all_named("args", arguments, args)
    aux = own_buffers(symbol)
    if aux_states is not None:
        aux = _all_named("aux_states", symbol.list_auxiliary_states(), aux_states)
    for name, array in [*bound.items(), *aux.items()]:
        place = places.device if name in symbol.inputs else places.find(name)
        if array.device != place:
            raise ValueError(f"Array {name} is on {array.device}, but is bound on {place}.")
    for name, own in symbol.tensors.items():
        array = bound[name] if name in bound else aux[name]
        if array.shape != own.shape:
            raise ValueError(
                f"Array {name} must have the shape {tuple(own.shape)} that it has in the module, "
                f"got {tuple(array.shape)}."
            )
    reqs = grad_reqs(arguments, grad_req)
    grads = _gradients(bound, args_grad)
    specs = {name: (tuple(array.shape), array.dtype) for name, array in bound.items()}
    _refuse_inference_tensors(bound | aux)
    return Arrays(bound, grads, reqs, aux), infer(symbol, specs)


def allocate(
    symbol: Symbol, places: Places, grad_req: Any, dtype: DTypes, shapes: Mapping[str, Any]
) -> tuple[Arrays, Outputs | None]:
    """Make zeros for the inputs and gradients; see ``Symbol.simple_bind``."""
    specs = input_specs(symbol, shapes, dtype)
    reqs = grad_reqs(symbol.list_arguments(), grad_req)
    outputs = infer(symbol, specs)
    target = symbol.target
    args = {}
    for name in symbol.inputs:
        shape, kind = specs[name]
        args[name] = torch.zeros(shape, dtype=kind, device=places.device)
    blank = {name: array._version for name, array in args.items()}
    if isinstance(target, nn.Module):
        _take_to(target, places)
        args.update(target.named_parameters())
    grads: dict[str, Tensor | None] = {}
    for name, array in args.items():
        differentiable = array.is_floating_point() or array.is_complex()
        frozen = name in symbol.parameters and not array.requires_grad
        if isinstance(grad_req, str):
            if frozen or not differentiable:
                reqs[name] = "null"
        elif not differentiable and reqs[name] != "null":
            raise ValueError(
                f"grad_req of {name} is {reqs[name]!r}, but {array.dtype} has no gradient."
            )
        grads[name] = None if reqs[name] == "null" else torch.zeros_like(array.detach())
    aux = own_buffers(symbol)
    _refuse_inference_tensors(args | aux)
    return Arrays(args, grads, reqs, aux, blank=blank), outputs


def own_buffers(symbol: Symbol) -> dict[str, Tensor]:
    """The buffers that the module has now: moving it has made others."""
    return dict(symbol.target.named_buffers()) if isinstance(symbol.target, nn.Module) else {}


def grad_reqs(arguments: Sequence[str], grad_req: Any) -> dict[str, str]:
    """What to do with each gradient.

    Raises
    ------
    ValueError, TypeError
        If one is unknown, or a list has another length.
    """
    if isinstance(grad_req, str):
        reqs = dict.fromkeys(arguments, grad_req)
    elif isinstance(grad_req, Mapping):
        check_names("grad_req", grad_req, arguments)
        reqs = {name: grad_req.get(name, "null") for name in arguments}
    elif isinstance(grad_req, list | tuple):
        _check_length("grad_req", arguments, grad_req)
        reqs = dict(zip(arguments, grad_req, strict=True))
    else:
        raise TypeError(
            f"grad_req must be a str, or a list or dict of str, got {type(grad_req).__name__}."
        )
    for name, req in reqs.items():
        if req not in GRAD_REQS:
            raise ValueError(f"grad_req of {name} must be one of {GRAD_REQS}, got {req!r}.")
    return reqs


def _take_to(module: nn.Module, places: Places) -> None:
    """Move what is elsewhere, each submodule to its own device; what is tied stays tied."""
    moved: dict[int, tuple[Tensor, Tensor]] = {}
    for path, part in module.named_modules():
        place = places.find(path)
        own = dict([*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)])
        if any(tensor.device != place for tensor in own.values()):
            part._apply(lambda tensor, place=place: tensor.to(place), recurse=False)
        for name, tensor in own.items():
            _, new = moved.setdefault(id(tensor), (tensor, getattr(part, name)))
            if getattr(part, name) is not new:
                setattr(part, name, new)


def _all_named(what: str, names: Sequence[str], given: Any) -> dict[str, Tensor]:
    """An array for each name, from a dict or a list."""
    if not isinstance(given, Mapping | list | tuple):
        raise TypeError(f"{what} must be a list or dict of tensors, got {type(given).__name__}.")
    if not isinstance(given, Mapping):
        _check_length(what, names, given)
        given = dict(zip(names, given, strict=True))
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(missing)}; it needs {', '.join(names)}.")
    for name in names:
        _check_tensor(what, name, given[name])
    return {name: given[name] for name in names}


def _gradients(args: Mapping[str, Tensor], args_grad: Any) -> dict[str, Tensor | None]:
    if args_grad is None:
        return dict.fromkeys(args)
    if isinstance(args_grad, Mapping):
        check_names("args_grad", args_grad, args)
        grads = {name: args_grad.get(name) for name in args}
    elif isinstance(args_grad, list | tuple):
        _check_length("args_grad", list(args), args_grad)
        grads = dict(zip(args, args_grad, strict=True))
    else:
        raise TypeError(
            f"args_grad must be a list or dict of tensors, got {type(args_grad).__name__}."
        )
    for name, grad in grads.items():
        if grad is None:
            continue
        _check_tensor("args_grad", name, grad)
        array = args[name]
        if (grad.shape, grad.dtype, grad.device) != (array.shape, array.dtype, array.device):
            raise ValueError(
                f"The gradient array of {name} must be {_told(array)} as its argument, "
                f"got {_told(grad)}."
            )
        if not (array.is_floating_point() or array.is_complex()):
            raise ValueError(f"args_grad has an array for {name}, but {array.dtype} has none.")
    return grads


def _refuse_inference_tensors(arrays: Mapping[str, Tensor]) -> None:
    for name, array in arrays.items():
        if array.is_inference():
            raise ValueError(
                f"Array {name} was made under torch.inference_mode, and could not be written to "
                "outside of it: make it, or clone() it, outside."
            )


def _check_tensor(what: str, name: str, array: Any) -> None:
    if not isinstance(array, Tensor):
        raise TypeError(
            f"{what}: the array of {name} must be a tensor, got {type(array).__name__}. "
            "torch.from_numpy makes one of a numpy array that shares its memory."
        )


def _check_length(what: str, names: Sequence[str], given: Sequence[Any]) -> None:
    if len(given) != len(names):
        raise ValueError(
            f"{what} has {len(given)} entries for {len(names)} names: {', '.join(names)}."
        )


def _told(array: Tensor) -> str:
    return f"{tuple(array.shape)} {array.dtype} on {array.device}"
