"""Python state that code changes while it is captured, which a graph would not repeat.

What can be seen is refused: the attributes of modules, the variables that functions find outside of
themselves, the contents of lists, dicts and sets in these, and whoever keeps a stand-in.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType
from typing import Any

from torch import fx, nn

__all__ = ["KeptStandIns", "python_state", "refuse_changes"]

_MISSING: list[Any] = [object()]

State = dict[tuple[str, str], list[Any]]
"""What a variable holds, by the owner in words and the name."""


def python_state(target: Callable[..., Any]) -> State:
    """What code can change: attributes of modules, and variables outside of its functions."""
    return {
        (owner, name): _held(value)
        for owner, variables in _scopes(target)
        for name, value in variables.items()
    }


def refuse_changes(before: State, after: State, constants: Collection[str]) -> None:
    """Refuse what has been changed between two looks.

    Parameters
    ----------
    before, after : dict
        As of :func:`python_state`.
    constants : collection of str
        Names of attributes that tracing adds.

    Raises
    ------
    ValueError
        Naming the first of them.
    """
    for owner, name in before | after:
        old, new = before.get((owner, name), _MISSING), after.get((owner, name), _MISSING)
        if len(old) == len(new) and all(map(operator.is_, old, new)):
            continue
        if old is not _MISSING or name not in constants:
            raise ValueError(f"{owner.format(name)} is changed, which a graph does not repeat")


class KeptStandIns:
    """Finds stand-ins that outlive the code: a list, a closure or an object has kept them."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[fx.Proxy]] = []

    def add(self, proxy: fx.Proxy) -> None:
        """Look at one; torch.fx itself keeps those of parameters."""
        if proxy.node.op != "get_attr":
            self._made.append(weakref.ref(proxy))

    def refuse(self) -> None:
        """Refuse those that are still there.

        Raises
        ------
        ValueError
            Naming the first of them.
        """
        if self._kept():
            gc.collect()  # cycles keep nothing
        for proxy in self._kept():
            raise ValueError(
                f"What {proxy.node} stands for is kept beyond the call, in a list, a closure or an "
                "object, which a graph does not repeat: a stand-in is left there"
            )

    def _kept(self) -> list[fx.Proxy]:
        return [proxy for made in self._made if (proxy := made()) is not None]


def _scopes(target: Callable[..., Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(target, nn.Module):
        yield from _outside(target)
        return
    for path, module in target.named_modules():
        yield f"Attribute {{}} of {path or type(module).__name__}", vars(module)
        yield from _outside(type(module).forward)


def _outside(function: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The variables that a function uses and that are not its own."""
    if not isinstance(function, FunctionType):
        return
    code, owner = function.__code__, f"Variable {{}} outside of {function.__qualname__}"
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # it has no value yet
            yield owner, {name: cell.cell_contents}
    found = function.__globals__
    yield owner, {name: found[name] for name in code.co_names if name in found}


def _held(value: Any) -> list[Any]:
    """The objects that tell whether a value has changed."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return [*value] if isinstance(value, list | set) else [value]
