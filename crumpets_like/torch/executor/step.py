"""Forward and backward of a program on fixed arrays.

NOTE [Static memory]. Inputs are copied into the bound arrays, results into the arrays of the
outputs, and gradients into the bound gradient arrays; none of these is ever allocated again. What
lies between comes from torch's allocator, which gives the same memory again at every step. A step
that is recorded as a CUDA graph has that fixed, too.

NOTE [Leaves]. The caller may write to the bound arrays in place, as MXNet's users do, so these do
not require gradients themselves. What runs are aliases of them that do. An alias shares the array's
version counter, so torch notices when an array that a backward needs has been written to since.

NOTE [Recording]. What a recorded backward reads is what the forward that was recorded in the same
step has left in its memory. So the forward waits until the backward has had its first runs, and is
recorded anew if no backward followed. Head gradients are copied to arrays of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .arrays import Arrays
from .direct import LinearRun, make_direct
from .graphs import Replays, open_recorder
from .heads import head_gradients
from .monitor import Monitor
from .placement import Places
from .program import Program
from .reshape import fit
from .shapes import Outputs
from .symbol import Symbol

__all__ = ["Run", "Step"]

_AS_IT_IS: contextlib.nullcontext[None] = contextlib.nullcontext()


@dataclass
class Run:
    """What forwards in one mode have left; training may have other outputs than inference.

    Attributes
    ----------
    names : list of str
        Of the outputs.
    outputs : list of Tensor
        Where results are copied to.
    results : list of Tensor
        Those of the last forward, with what a backward needs.
    ones : list of Tensor
        Head gradients where none are given.
    heads : list of Tensor
        Where a recorded backward reads head gradients.
    linear : list of LinearRun
        What gradients are made of that autograd does not compute.
    """

    names: list[str] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    ones: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] | None = None
    linear: list[LinearRun] = field(default_factory=list)


class Step:
    """A symbol on arrays.

    Parameters
    ----------
    symbol : Symbol
        What is run.
    places : Places
        Where.
    arrays : Arrays
        On what.
    outputs : list of (str, Tensor) or None
        Names, shapes and dtypes of the outputs, if they are known.
    cuda_graph : bool
        Whether to record and replay it.
    like : Step, optional
        One whose program and whose outputs' memory it shares.

    Attributes
    ----------
    program : Program
        What it runs.
    shown : Run
        That of the last forward; before any, that of inference.
    monitor : Monitor or None
        Who looks at every operator.
    """

    def __init__(
        self,
        symbol: Symbol,
        places: Places,
        arrays: Arrays,
        outputs: Outputs | None,
        cuda_graph: bool,
        like: Step | None = None,
    ) -> None:
        self._symbol = symbol
        self._places = places
        self._arrays = arrays
        self._written = arrays.wanted("write")
        added = arrays.wanted("add")
        self._added = list(added.values())
        self._wanted = self._written | added
        self._offers = [
            (arrays.args[name], grad)
            for name, grad in self._wanted.items()
            if arrays.args[name].is_leaf and arrays.is_alone(name)
        ]
        self._leaves = {name: self._leaf(name, like) for name in arrays.args}
        self._inputs = [self._leaves[name] for name in symbol.inputs]
        self._sources = {name: self._leaves[name] for name in self._wanted}
        self.program = self._make_program(like)
        self._runs = {False: Run(), True: Run()}
        self.shown = self._runs[False]
        self._allocate(outputs or [], [] if like is None else like._runs[False].outputs)
        self.monitor: Monitor | None = None if like is None else like.monitor
        self._versions: list[int] = []
        self._mode: bool | None = None
        recorder = open_recorder(places.device) if cuda_graph else None
        self._replays = None if recorder is None else Replays(recorder)
        self._offer_gradients()

    def _allocate(self, outputs: Outputs, old: Sequence[Tensor]) -> None:
        """Make arrays for the outputs of inference, in the memory of old ones if there are some."""
        run = self._runs[False]
        for number, (name, output) in enumerate(outputs):
            run.names.append(name)
            run.outputs.append(
                fit(self._arrays.room, f"output {number}", old[number], tuple(output.shape))
                if number < len(old)
                else torch.zeros(output.shape, dtype=output.dtype, device=self._places.device)
            )

    @property
    def recording(self) -> bool:
        """Whether it is, or will be, recorded."""
        return self._replays is not None and self._replays.active

    @property
    def _replaying(self) -> Replays | None:
        """What replays it now: nothing does while every operator is looked at."""
        if self._replays is None or self.monitor is not None:
            return None
        return self._replays if self._replays.active else None

    def named_outputs(self) -> Outputs:
        """The outputs with their names, of which some may be equal."""
        return list(zip(self.shown.names, self.shown.outputs, strict=True))

    def watch(self, monitor: Monitor | None) -> None:
        """Let somebody look at every operator. What was recorded is dropped: it needs results
        that other runs would replace.
        """
        self.monitor = monitor
        if self._replays is not None:
            self._replays.drop_all()

    def forward(self, is_train: bool) -> None:
        """Compute the outputs."""
        self._mode = None  # in case it fails
        replays = self._replaying
        if replays is None:
            for run in self._runs.values():
                run.results, run.linear = [], []  # the memory of one forward serves the next
            self._forward(is_train)
        else:
            name, back = ("forward", is_train), ("backward", is_train)
            if self._wanted and not replays.recorded(back):
                replays.drop(name)  # both are recorded in one step, see NOTE [Recording]
            replays.run(name, partial(self._forward, is_train), back if self._wanted else None)
            self._versions = self._versions_now()
        self.shown = self._runs[is_train]
        self._mode = is_train

    def backward(self, out_grads: Any) -> None:
        """Compute the gradients of the last forward; see ``Executor.backward``."""
        mode = self._mode
        if mode is None:
            raise ValueError(
                "backward needs a forward before it: there is nothing to go back from."
            )
        if not self._wanted:
            return
        run = self._runs[mode]
        heads = self._heads_of(run, out_grads)
        replays = self._replaying
        if replays is None:
            self._backward(run, heads)
        else:
            if self._versions != self._versions_now():
                raise _overwritten("")
            if run.heads is None:
                run.heads = [head.clone() for head in heads]
            for head, new in zip(run.heads, heads, strict=True):
                head.copy_(new)
            replays.run(("backward", mode), partial(self._backward, run, run.heads))
        self._offer_gradients()

    def _heads_of(self, run: Run, out_grads: Any) -> list[Tensor]:
        if out_grads is not None:
            return head_gradients(out_grads, run.names, run.results)
        if [one.shape for one in run.ones] != [result.shape for result in run.results]:
            run.ones = head_gradients(None, run.names, run.results)
        return run.ones

    def _versions_now(self) -> list[int]:
        """How often each argument has been written to, which a replay would not notice."""
        return [array._version for array in self._arrays.args.values()]

    def _leaf(self, name: str, like: Step | None) -> Tensor:
        """What stands for an argument in the graph. See NOTE [Leaves]."""
        array = self._arrays.args[name]
        if like is not None and like._arrays.args[name] is array:
            return like._leaves[name]
        if name not in self._wanted:
            return array.detach() if array.requires_grad else array
        own = name in self._symbol.parameters and array.requires_grad and array.is_leaf
        if own and self._arrays.is_alone(name):
            return array
        return array.detach().requires_grad_()

    def _make_program(self, like: Step | None) -> Program:
        tensors = {name: self._leaves[name] for name in self._symbol.parameters}
        if like is not None and all(tensors[name] is like._leaves[name] for name in tensors):
            return like.program
        graphs = self._symbol.graphs
        if graphs is not None and self._places.groups:
            graphs = self._places.split(graphs)
        program = Program(self._symbol, tensors | self._arrays.aux, self._places.device, graphs)
        if graphs is not None:
            program.linear = make_direct(program.root, graphs.values(), self._written)
        return program

    def _offer_gradients(self) -> None:
        """Let optimizers find the gradients; ``zero_grad`` takes them away."""
        for array, grad in self._offers:
            if array.grad is not grad:
                array.grad = grad

    def _forward(self, is_train: bool) -> None:
        run = self._runs[is_train]
        run.results, run.linear = [], []
        if self.monitor is not None:
            for name, array in self._arrays.args.items():
                self.monitor.input(name, array)
        with self._grad_mode():
            try:
                results = self.program.run(is_train, self._inputs, self.monitor)
            except RuntimeError as error:
                error.add_note(f"The arguments of this forward were {self._arrays.told()}.")
                raise
            run.names = [name for name, _ in results]
            del run.outputs[len(results) :]
            for number, (_, result) in enumerate(results):
                self._keep(is_train, number, result.detach())
        if self._wanted:
            run.results = [result for _, result in results]
            run.linear = self.program.linear.copy()
        self.program.linear.clear()

    def _grad_mode(self) -> Any:
        """The mode for a forward: there are gradients under the caller's no_grad, too."""
        if not self._wanted:
            return torch.no_grad()
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            return _AS_IT_IS
        return torch.inference_mode(False)

    def _keep(self, is_train: bool, number: int, result: Tensor) -> None:
        """Copy a result into the array of the output; the modes share it if they can."""
        for mode in (is_train, not is_train):
            outputs = self._runs[mode].outputs
            if number < len(outputs) and _alike(outputs[number], result):
                kept = outputs[number].copy_(result)
                break
        else:
            kept = result.clone()
        self._runs[is_train].outputs[number : number + 1] = [kept]

    def _backward(self, run: Run, heads: list[Tensor]) -> None:
        roots = [pair for pair in zip(run.results, heads, strict=True) if pair[0].requires_grad]
        gradients: Sequence[Tensor | None] = [None] * len(self._wanted)
        if roots:
            gradients = self._differentiate(run, *zip(*roots, strict=True))
        if self.monitor is not None:
            for name, gradient in zip(self._wanted, gradients, strict=True):
                if gradient is not None:
                    self.monitor.gradient(name, gradient)
        with torch.no_grad():
            self._take(gradients)

    def _take(self, gradients: Sequence[Tensor | None]) -> None:
        """Bring gradients into the bound arrays: first come those that are written."""
        bounds: list[Tensor] = []
        news: list[Tensor] = []
        for bound, gradient in zip(self._written.values(), gradients, strict=False):
            if gradient is None:
                bound.zero_()  # it has no influence
            elif gradient is not bound:  # it may be there already, see direct.py
                bounds.append(bound)
                news.append(gradient)
        if news:
            torch._foreach_copy_(bounds, news)
        for bound, gradient in zip(self._added, gradients[len(self._written) :], strict=True):
            if gradient is not None:
                bound.add_(gradient)

    def _differentiate(self, run: Run, results: Any, heads: Any) -> list[Tensor | None]:
        there = {name: array for linear in run.linear for name, array in linear.arrays.items()}
        sources = [leaf for name, leaf in self._sources.items() if name not in there]
        ends: list[Any] = [*sources, *(linear.edge for linear in run.linear)]
        try:
            found = torch.autograd.grad(results, ends, heads, retain_graph=True, allow_unused=True)
            with torch.no_grad():
                for linear, gradient in zip(run.linear, found[len(sources) :], strict=True):
                    linear.fill(gradient)
            gradients = iter(found)
            return [there[name] if name in there else next(gradients) for name in self._wanted]
        except RuntimeError as error:
            if "modified by an inplace operation" in str(error):
                raise _overwritten(f" ({error})") from error
            frozen = [name for name in self._wanted if not self._leaves[name].requires_grad]
            if frozen:
                raise ValueError(
                    f"Parameters have been frozen since they were bound: {', '.join(frozen)}. Bind "
                    "anew, with grad_req 'null' for them."
                ) from error
            raise


def _alike(array: Tensor, other: Tensor) -> bool:
    """Whether one can be copied to the other as it is."""
    return (
        array.shape == other.shape and array.dtype == other.dtype and array.device == other.device
    )


def _overwritten(why: str) -> ValueError:
    return ValueError(
        "Arrays that these gradients depend on have been written to since the forward, by an "
        "optimizer, by hand, or by the forward of an executor that shares them; or the network "
        "itself has changed what they need, in place. Call backward before that, or forward "
        f"again.{why}"
    )
