"""What the caller holds: the object that MXNet 1.9.1 calls ``Executor``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .arrays import Arrays, Bound
from .monitor import Monitor
from .placement import Places
from .plan import describe_plan
from .reshape import new_specs, reshaped
from .shapes import Outputs, Shape
from .step import Step
from .symbol import Symbol
from .values import Copies, array_of, check_value, checked

__all__ = ["Executor"]


class Executor(Bound):
    """A symbol bound to arrays; made by ``Symbol.bind`` and ``Symbol.simple_bind``.

    Parameters
    ----------
    symbol : Symbol
        What is executed.
    places : Places
        Where.
    arrays : Arrays
        On what.
    outputs : list of (str, Tensor) or None
        Names, shapes and dtypes of the outputs, if they are known.
    cuda_graph : bool
        Whether to record and replay the step.
    like : Step, optional
        That of an executor whose program and memory it shares.
    """

    def __init__(
        self,
        symbol: Symbol,
        places: Places,
        arrays: Arrays,
        outputs: Outputs | None,
        cuda_graph: bool = False,
        like: Step | None = None,
    ) -> None:
        self._symbol = symbol
        self._places = places
        super().__init__(arrays)
        self._step = Step(symbol, places, arrays, outputs, cuda_graph, like)
        self._copies = Copies()
        self._short: Executor | None = None
        self._shorts: dict[Any, Executor] = {}

    def __repr__(self) -> str:
        return f"<Executor of {self._symbol!r} on {self._places.device}>"

    def __reduce__(self) -> Any:
        arrays = replace(self._arrays, room={}, blank={})
        state = self._symbol, self._places, arrays, self._step.named_outputs()
        return _restore, (*state, self._step.recording)

    @property
    def outputs(self) -> list[Tensor]:
        """The outputs of the last forward: always the same arrays."""
        return list((self._short or self)._step.shown.outputs)

    @property
    def output_dict(self) -> dict[str, Tensor]:
        """The outputs by name.

        Raises
        ------
        ValueError
            If two have the same name.
        """
        named = (self._short or self)._step.named_outputs()
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            raise ValueError(f"Duplicate names detected, {names}")
        return dict(named)

    def forward(
        self, is_train: bool = False, strict: bool = True, allow_short: bool = False, **kwargs: Any
    ) -> list[Tensor]:
        """Copy arrays into arguments and compute the outputs.

        Parameters
        ----------
        is_train : bool
            The mode that modules run in.
        strict : bool
            Whether to refuse what is no argument, and lists. If not, they are ignored, so that a
            mini-batch may hold more than the arguments.
        allow_short : bool
            Whether arrays may have fewer rows than is bound: the last mini-batch of an epoch.
            It runs in the first rows of the arrays.
        **kwargs : Tensor or numpy.ndarray
            New values of arguments, cast to the bound dtype.

        Returns
        -------
        list of Tensor
            The outputs: the next forward writes to the same arrays.

        Raises
        ------
        TypeError
            If a name is that of no argument.
        ValueError
            If a value is no array of numbers, or has another shape. Nothing has been changed then.
        """
        values = checked(kwargs, self._arrays.args, strict)
        short = self._for_short(values) if allow_short else None
        args = (short or self)._arrays.args
        for name, value in values.items():
            check_value(name, args[name], value)
        self._short = short
        self._copies.copy([(args[name], value) for name, value in values.items()])
        (short or self)._step.forward(bool(is_train))
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients of the last forward, which may be repeated.

        Parameters
        ----------
        out_grads : Tensor, numpy.ndarray, or list or dict of these, optional
            Head gradients, one for each output. Loss heads and scalars need none.
        is_train : bool
            For MXNet's callers: gradients are always those of the mode that the forward ran in.

        Raises
        ------
        ValueError
            If there was no forward, if a head gradient is missing or has another shape, or if
            arguments that the gradients depend on have been written to since the forward: gradient
            arrays may then be changed in part.
        TypeError
            If a head gradient is no array.
        """
        (self._short or self)._step.backward(out_grads)

    def step(self, optimizer: torch.optim.Optimizer, **mini_batch: Any) -> list[Tensor]:
        """One step of training: forward, backward, and the optimizer's step.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
            Of a module's parameters, or of tensors in ``arg_dict``. Their ``grad`` is the bound
            gradient array. ``zero_grad`` is needed only with ``grad_req="add"``, and then with
            ``set_to_none=False``.
        **mini_batch : Tensor, numpy.ndarray or others
            As a loader gives it; what is no argument is ignored, and so are lists. Also
            ``allow_short``, as of :meth:`forward`.

        Returns
        -------
        list of Tensor
            The outputs.

        Raises
        ------
        ValueError
            If an argument that ``simple_bind`` has made was never given a value, now or before, and
            is none that the optimizer trains.
        """
        if self._arrays.blank:
            self._check_blank(optimizer, mini_batch)
        outputs = self.forward(is_train=True, strict=False, **mini_batch)
        self.backward()
        optimizer.step()
        return outputs

    def _check_blank(self, optimizer: torch.optim.Optimizer, mini_batch: Mapping[str, Any]) -> None:
        """Refuse the zeros that an argument was made with: its name may be misspelt."""
        trained = {id(array) for group in optimizer.param_groups for array in group["params"]}
        for name, version in self._arrays.blank.items():
            array = self._arrays.args[name]
            if name in mini_batch or array._version != version or id(array) in trained:
                continue
            raise ValueError(
                f"Argument {name} has no value yet: the step would run on the zeros it was made "
                f"with. The mini-batch has {', '.join(mini_batch) or 'nothing'}. Pass it as "
                f"{name}=..., or write to arg_dict[{name!r}] once if it stays the same."
            )
        self._arrays.blank.clear()

    def _for_short(self, values: Mapping[str, Tensor]) -> Executor | None:
        """The executor for arrays with fewer rows; None if none has."""
        shapes = {}
        for name, value in values.items():
            rows, bound = value.shape[:1], self._arrays.args[name].shape
            if rows < bound[:1] and value.shape[1:] == bound[1:]:
                shapes[name] = tuple(value.shape)
        if not shapes:
            return None
        key = tuple(shapes.items())
        if key not in self._shorts:
            self._shorts[key] = self._reshape(shapes)
        return self._shorts[key]

    def copy_params_from(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:
        """Copy values into arguments and auxiliary states, cast to the bound dtypes.

        Parameters
        ----------
        arg_params, aux_params : dict of str to Tensor or numpy.ndarray
            New values by name.
        allow_extra_params : bool
            Whether names that are not bound are ignored.

        Raises
        ------
        ValueError, TypeError
            If a name is unknown, a shape differs, or a value is no array. Nothing has been
            written then.
        """
        copies = []
        for what, bound, given in (
            ("arguments", self._arrays.args, arg_params),
            ("auxiliary states", self._arrays.aux, aux_params or {}),
        ):
            for name, value in given.items():
                tensor = array_of(value)
                if tensor is None:
                    raise TypeError(f"The value of {name} is no array: {type(value).__name__}.")
                if name in bound:
                    check_value(name, bound[name], tensor)
                    copies.append((bound[name], tensor))
                elif not allow_extra_params:
                    raise ValueError(f'Find name "{name}" that is not in the {what}')
        self._copies.copy(copies)

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Shape
    ) -> Executor:
        """Bind the same symbol to arrays of other shapes in the same memory.

        Parameters
        ----------
        partial_shaping : bool
            Whether arguments that are not named may change, if the symbol could not run otherwise.
        allow_up_sizing : bool
            Whether to allocate arrays that are larger than the bound ones.
        **shapes : tuple of int
            New shapes of arguments.

        Returns
        -------
        Executor
            Arrays of the same shape are the same, smaller ones are the first elements of the old
            ones. This executor still works; but of two forwards in the same memory, only the
            later one has a backward.

        Raises
        ------
        ValueError
            If a name is unknown, a shape is none, or what is not allowed would be needed.
        """
        return self._reshape(shapes, partial_shaping, allow_up_sizing)

    def _reshape(
        self,
        shapes: Mapping[str, Shape],
        partial_shaping: bool = False,
        allow_up_sizing: bool = False,
    ) -> Executor:
        old = {name: (tuple(a.shape), a.dtype) for name, a in self._arrays.args.items()}
        step = self._step
        with torch.inference_mode(False):
            specs, outputs = new_specs(self._symbol, old, shapes, partial_shaping)
            arrays = reshaped(self._arrays, specs, allow_up_sizing)
            return Executor(self._symbol, self._places, arrays, outputs, step.recording, step)

    def set_monitor_callback(
        self, callback: Callable[[str, Tensor], object] | None, monitor_all: bool = False
    ) -> None:
        """Look at what every operator computes.

        Parameters
        ----------
        callback : callable or None
            Takes a name and a tensor: ``add_output`` for the result of the node ``add``,
            ``add_output_grad`` for its gradient, and ``weight_grad`` for that of an argument. An
            exception in it ends the forward or backward. None: no more.
        monitor_all : bool
            Whether to show the arguments, under their names, and what each operator reads, as
            ``add_input0`` and so on.
        """
        self._step.watch(None if callback is None else Monitor(callback, monitor_all))
        self._shorts.clear()

    def debug_str(self) -> str:
        """The plan, node by node, the arrays, and how many bytes they take."""
        return describe_plan(self._step.program.graphs, self._arrays, self._step.named_outputs())

    def get_optimized_symbol(self) -> Symbol:
        """The symbol without what no output needs; bound again, it gives the same outputs."""
        return Symbol(self._symbol.target, self._symbol.captured, optimized=True)


def _restore(
    symbol: Symbol, places: Places, arrays: Arrays, outputs: Outputs, cuda_graph: bool
) -> Executor:
    """Unpickle."""
    executor = Executor(symbol, places, arrays, outputs, cuda_graph)
    executor._step.shown.outputs = [output for _, output in outputs]
    return executor
