"""Training on fixed arrays: each mini-batch is copied into bound memory, as MXNet's Executor does.

Run it with ``python examples/executor_training.py``. It needs the extras ``torch``, ``image`` and
``demo``. The network of the demonstration is trained twice, by an executor and by a plain loop,
and every loss of the one is that of the other, to the last bit.
"""

import tempfile
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor, nn

from crumpets_like.demo.digits import DigitFiles, make_worker, write_digits
from crumpets_like.demo.training import make_model
from crumpets_like.torch import TorchTurboDataLoader
from crumpets_like.torch.executor import trace

STEPS = 100
BATCH_SIZE = 64

MiniBatch = dict[str, Tensor]


class Loss(nn.Module):
    """The demonstration's network and its loss; `image` and `label` are fields of a mini-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.network = make_model()

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        """Mean cross entropy of a mini-batch."""
        return nn.functional.cross_entropy(self.network(image), label)


def mini_batches(files: DigitFiles) -> Generator[MiniBatch, None, None]:
    """Yield the same mini-batches each time; the last one of an epoch has fewer samples."""
    worker = make_worker(augment=True)
    with TorchTurboDataLoader(
        files, BATCH_SIZE, worker, 2, device="cpu", shuffle=True, seed=0
    ) as loader:
        while True:
            for _, parts in loader:
                yield from parts


def losses(files: DigitFiles, step: Callable[[MiniBatch], Tensor]) -> list[float]:
    """Train for some steps; dropout draws the same numbers each time."""
    torch.manual_seed(1)
    with closing(mini_batches(files)) as batches:
        return [step(next(batches)).item() for _ in range(STEPS)]


def main() -> None:
    """Train twice and compare."""
    torch.manual_seed(0)
    model, plain = Loss(), Loss()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    plain_optimizer = torch.optim.Adam(plain.parameters(), 1e-3)

    # Once: which arrays there are, and which of them get gradients. On a GPU: device "cuda", and
    # cuda_graph=True.
    executor = trace(model).simple_bind(
        "cpu",
        grad_req=dict.fromkeys(dict(model.named_parameters()), "write"),
        dtype={"label": torch.int64},
        image=(BATCH_SIZE, 1, 32, 32),
        label=(BATCH_SIZE,),
    )

    def executed(mini_batch: MiniBatch) -> Tensor:
        (loss,) = executor.step(optimizer, allow_short=True, **mini_batch)
        return loss

    def plainly(mini_batch: MiniBatch) -> Tensor:
        loss: Tensor = plain(mini_batch["image"], mini_batch["label"])
        plain_optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        plain_optimizer.step()
        return loss

    with tempfile.TemporaryDirectory() as folder:
        files, _ = write_digits(Path(folder), seed=0)
        ours = losses(files, executed)
        theirs = losses(files, plainly)
    print(f"loss {ours[0]:.3f} at first, {sum(ours[-10:]) / 10:.3f} after {STEPS} steps")
    print(f"the plain loop's losses, to the last bit: {ours == theirs}")


if __name__ == "__main__":
    main()
