"""Parts of one graph on several devices: MXNet's ``group2ctx``, by submodule."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from ..device import check_devices
from .shapes import check_names

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["Places", "move"]


@dataclass(frozen=True)
class Places:
    """Where arrays and operators are.

    Attributes
    ----------
    device : torch.device
        For all that is in no group.
    groups : dict of str to torch.device
        Devices of submodules, by prefix; the longest one counts.
    """

    device: torch.device
    groups: Mapping[str, torch.device]

    @classmethod
    def of(
        cls,
        symbol: Symbol,
        device: torch.device | str,
        groups: Mapping[str, torch.device | str],
    ) -> Places:
        """Check devices and prefixes.

        Raises
        ------
        ValueError
            If a device is none or is not there, a prefix is that of no submodule, there is no graph
            to split, or a tensor would be on two devices.
        """
        target = symbol.target
        modules = dict(target.named_modules()) if isinstance(target, nn.Module) else {}
        check_names("group2device", groups, [name for name in modules if name])
        if groups and symbol.graphs is None:
            raise ValueError(
                "group2device splits a graph, and this symbol has none: capture=False, or a single "
                f"layer of torch.nn ({symbol.name})."
            )
        places = cls(_device(device), {name: _device(place) for name, place in groups.items()})
        if isinstance(target, nn.Module):
            places._check_tied(target)
        return places

    def _check_tied(self, module: nn.Module) -> None:
        """Refuse to place a tensor that several submodules have on several devices."""
        firsts: dict[int, str] = {}
        for name, tensor in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            first = firsts.setdefault(id(tensor), name)
            if self.find(first) != self.find(name):
                raise ValueError(
                    f"{first} and {name} are one tensor, but are placed on {self.find(first)} and "
                    f"{self.find(name)}: group2device must leave them together."
                )

    def find(self, name: str) -> torch.device:
        """The device of a parameter, a buffer or a submodule."""
        prefixes = [p for p in self.groups if name == p or name.startswith(f"{p}.")]
        return self.groups[max(prefixes, key=len)] if prefixes else self.device

    def split(self, graphs: Mapping[bool, fx.Graph]) -> dict[bool, fx.Graph]:
        """The same graphs, with moves between devices."""
        return {mode: self._split(copy.deepcopy(graph)) for mode, graph in graphs.items()}

    def _split(self, graph: fx.Graph) -> fx.Graph:
        moved: dict[tuple[fx.Node, torch.device], fx.Node] = {}
        devices: dict[fx.Node, torch.device] = {}
        for node in list(graph.nodes):
            if node.op == "output":
                break
            device = devices[node] = self.find(_module_of(node))
            for source in node.all_input_nodes:
                if devices[source] == device:
                    continue
                if (source, device) not in moved:
                    with graph.inserting_before(node):
                        moved[source, device] = graph.call_function(move, (source, device))
                node.replace_input_with(source, moved[source, device])
        return graph


def move(value: Any, device: torch.device) -> Any:
    """Take the tensors in a value to a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list | tuple):
        return type(value)(move(item, device) for item in value)
    return value


def _module_of(node: fx.Node) -> str:
    """The submodule that a node is in, or the attribute that it reads."""
    if node.op == "placeholder":
        return ""
    if node.op in ("get_attr", "call_module"):
        return str(node.target)
    stack = node.meta.get("nn_module_stack") or {"": ("", None)}
    return str(list(stack.values())[-1][0])


def _device(device: torch.device | str) -> torch.device:
    """A device as tensors name it that are there."""
    found = torch.device("meta") if str(device) == "meta" else check_devices(device, 1)[0]
    return torch.empty(0, device=found).device
