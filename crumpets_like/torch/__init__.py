"""The PyTorch side: a loader of tensors on a device, and one with torch's own interface."""

from typing import TYPE_CHECKING

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "crumpets_like.torch needs torch, which is not installed: "
        "pip install 'crumpets-like[torch]' brings it."
    ) from error

from ..lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .dataloader import DataLoader
    from .layers import Normalize, Unpacker
    from .randomizer import Randomizer
    from .turbo import TorchTurboDataLoader

__all__ = ["DataLoader", "Normalize", "Randomizer", "TorchTurboDataLoader", "Unpacker"]

if not TYPE_CHECKING:  # where it would hide names that do not exist
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "DataLoader": "dataloader",
            "Normalize": "layers",
            "Randomizer": "randomizer",
            "TorchTurboDataLoader": "turbo",
            "Unpacker": "layers",
        },
    )
