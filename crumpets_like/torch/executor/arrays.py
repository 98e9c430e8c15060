"""The arrays of an executor, by name and in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Arrays", "Bound"]


@dataclass
class Arrays:
    """What is bound, by name, in the order of the symbol's lists.

    Attributes
    ----------
    args, aux : dict of str to Tensor
        Arguments and auxiliary states.
    grads : dict of str to Tensor or None
        Where the gradients of the arguments go.
    reqs : dict of str to str
        ``"write"``, ``"add"`` or ``"null"``.
    room : dict of str to Tensor
        The whole memory of arrays that were reshaped, flat.
    blank : dict of str to int
        Inputs that ``simple_bind`` has made, with how often they had been written to then.
    """

    args: dict[str, Tensor]
    grads: dict[str, Tensor | None]
    reqs: dict[str, str]
    aux: dict[str, Tensor]
    room: dict[str, Tensor] = field(default_factory=dict)
    blank: dict[str, int] = field(default_factory=dict)

    def wanted(self, req: str) -> dict[str, Tensor]:
        """The gradient arrays that a backward writes, or adds to."""
        return {
            name: grad
            for name, grad in self.grads.items()
            if grad is not None and self.reqs[name] == req
        }

    def told(self) -> str:
        """The arguments in words."""
        return ", ".join(
            f"{name} {tuple(array.shape)} {array.dtype} on {array.device}"
            for name, array in self.args.items()
        )

    def is_alone(self, name: str) -> bool:
        """Whether an argument's array is that of no other one: else it has several gradients."""
        return sum(array is self.args[name] for array in self.args.values()) == 1


class Bound:
    """The part of an executor that shows its arrays, in order and by name.

    Parameters
    ----------
    arrays : Arrays
        What is bound.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    @property
    def arg_arrays(self) -> list[Tensor]:
        """The arguments, in the order of ``Symbol.list_arguments``."""
        return list(self._arrays.args.values())

    @property
    def grad_arrays(self) -> list[Tensor | None]:
        """The gradients of the arguments; None where there is none."""
        return list(self._arrays.grads.values())

    @property
    def aux_arrays(self) -> list[Tensor]:
        """The auxiliary states."""
        return list(self._arrays.aux.values())

    @property
    def arg_dict(self) -> dict[str, Tensor]:
        """The arguments by name."""
        return dict(self._arrays.args)

    @property
    def grad_dict(self) -> dict[str, Tensor | None]:
        """The gradients by the argument's name; None where there is none."""
        return dict(self._arrays.grads)

    @property
    def aux_dict(self) -> dict[str, Tensor]:
        """The auxiliary states by name."""
        return dict(self._arrays.aux)
