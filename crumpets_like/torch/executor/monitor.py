"""Looking at what a graph computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

__all__ = ["Monitor"]


class Monitor:
    """Shows tensors to a callback, under the names that MXNet 1.9.1 has for them.

    Parameters
    ----------
    callback : callable
        Takes a name and a tensor.
    monitor_all : bool
        Whether to show inputs, too.
    """

    def __init__(self, callback: Callable[[str, Tensor], object], monitor_all: bool) -> None:
        self.callback = callback
        self.monitor_all = monitor_all

    def input(self, name: str, tensor: Tensor) -> None:
        """Show an argument, or what an operator reads."""
        if self.monitor_all:
            self.callback(name, tensor.detach())

    def output(self, name: str, tensor: Tensor) -> None:
        """Show what an operator has computed, and its gradient once that is known."""
        self.callback(name, tensor.detach())
        if tensor.requires_grad:
            tensor.register_hook(partial(self.gradient, name))  # type: ignore[no-untyped-call]

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Show the gradient of an operator's output or of an argument."""
        self.callback(f"{name}_grad", gradient.detach())
