"""The demonstration: a small network learns handwritten digits, loaded by worker processes.

General layout: ``digits`` writes the scans as JPEG files and makes the worker that loads them,
``training`` holds the network, its training and what is timed, ``report`` what is printed. This
module only joins them, so that a missing extra can be named before anything heavy is imported.
"""

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from crumpets_like.demo.report import accuracy_line, times_table

__all__ = ["run"]

_EXTRAS = {
    "cv2": "image",
    "simplejpeg": "image",
    "sklearn": "demo",
    "tqdm": "demo",
    "torch": "torch",
}
"""The extra that brings each module."""


def run(epochs: int = 12, seed: int = 0, floor: float = 0.95) -> int:
    """Train, test and time the demonstration, and print what came out.

    The scans are stored in a temporary folder, which is removed at the end.

    Parameters
    ----------
    epochs : int
        Epochs of training.
    seed : int
        Seed of the split, the network, the order and the augmentation.
    floor : float
        Lowest share of right answers on the test scans that counts as success.

    Returns
    -------
    int
        0, or 1 if an extra is missing or the accuracy is below `floor`; the reason goes to
        standard error.
    """
    missing = [name for name in _EXTRAS if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({_EXTRAS[name] for name in missing}))
        print(
            f"The demo needs {', '.join(missing)}, which cannot be found: "
            f"pip install 'crumpets-like[{extras}]'",
            file=sys.stderr,
        )
        return 1

    from crumpets_like.demo import training
    from crumpets_like.demo.digits import write_digits

    with tempfile.TemporaryDirectory(prefix="crumpets-like-demo-") as folder:
        train, test = write_digits(Path(folder), seed)
        print(f"{len(train):,} scans to train on, {len(test):,} to test on, as JPEG in {folder}")
        model, ours = training.train(train, epochs, seed)
        right = training.count_right(model, test)
        torch_times = training.time_torch(model, train)

    print(accuracy_line(right, len(test), floor))
    print(times_table({"crumpets-like": ours, "torch DataLoader": torch_times}))
    if right < floor * len(test):
        print(
            f"The test accuracy {right / len(test):.1%} is below {floor:.0%} "
            f"after {epochs} epochs with seed {seed}.",
            file=sys.stderr,
        )
        return 1
    return 0
