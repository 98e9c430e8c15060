"""A step of an executor beside the same step in plain eager PyTorch, in turn, in one process."""

from __future__ import annotations

import copy
import operator
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from crumpets_like.torch.executor import Executor, trace

BATCH_SIZE = 64
WARM_UPS = 5
"""Steps after which nothing may be allocated any more."""


class Loss(nn.Module):
    """A network and its loss.

    Parameters
    ----------
    network : torch.nn.Module
        Gives scores of 10 classes.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross entropy of a batch."""
        return nn.functional.cross_entropy(self.network(x), y)


def perceptron() -> tuple[nn.Module, tuple[int, ...]]:
    """A multi-layer perceptron, and the shape of its samples."""
    layers = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (784,)


def convolutional() -> tuple[nn.Module, tuple[int, ...]]:
    """A small convolutional network, and the shape of its samples."""
    layers: list[nn.Module] = []
    for channels in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(*channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10)), (3, 32, 32)


NETWORKS = {"ours": perceptron, "ours-cnn": convolutional}


def measure(contender: str, steps: int) -> dict[str, float]:
    """Time forward and backward of an executor and of PyTorch, one step of each in turn.

    Parameters
    ----------
    contender : str
        A key of `NETWORKS`.
    steps : int
        Timed steps of each.

    Returns
    -------
    dict of str to float
        ``ms_per_batch``, ``samples_per_second``; ``eager_ratio``: our time by PyTorch's, the
        median over the pairs of steps; ``reallocated``: arrays of inputs, gradients and outputs
        that were not where they had been after the fifth step.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, shape = NETWORKS[contender]()
    module = Loss(network)
    plain = copy.deepcopy(module)
    executor = trace(module).simple_bind(
        "cpu",
        {name: "write" for name, _ in module.named_parameters()},
        {"y": torch.int64},
        x=(BATCH_SIZE, *shape),
        y=(BATCH_SIZE,),
    )
    x, y = torch.randn(BATCH_SIZE, *shape), torch.randint(10, (BATCH_SIZE,))

    def ours() -> None:
        executor.forward(is_train=True, x=x, y=y)
        executor.backward()

    def eager() -> None:
        plain.zero_grad()
        plain(x, y).backward()

    for _ in range(WARM_UPS):
        ours()
        eager()
    before = places(executor)
    times: dict[Callable[[], None], list[float]] = {ours: [], eager: []}
    order = [ours, eager]
    for _ in range(steps):
        for step in order:
            begin = time.perf_counter()
            step()
            times[step].append(time.perf_counter() - begin)
        order.reverse()  # each leaves the other's memory out of the processor's cache
    own = statistics.median(times[ours])
    ratios = map(operator.truediv, times[ours], times[eager])
    moved = sum(map(int.__ne__, before, places(executor)))
    return {
        "ms_per_batch": 1e3 * own,
        "samples_per_second": BATCH_SIZE / own,
        "eager_ratio": statistics.median(ratios),
        "reallocated": float(moved),
    }


def places(executor: Executor) -> list[int]:
    """Addresses of the inputs, gradients and outputs."""
    gradients = [gradient for gradient in executor.grad_arrays if gradient is not None]
    return [a.data_ptr() for a in (*executor.arg_arrays, *gradients, *executor.outputs)]
