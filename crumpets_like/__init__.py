"""crumpets-like: a parallel data loader for deep learning.

Layout: ``dataloader`` is the front door; ``broker/`` the engine behind it; ``epochs``, ``passes``
and ``sampling`` decide which samples make up an epoch; ``seeding`` what random numbers they see.
"""

import logging as _logging
from typing import TYPE_CHECKING

from .lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .broker.worker import BufferWorker, Worker
    from .dataloader import TurboDataLoader
    from .errors import (
        BufferExhausted,
        LoaderClosed,
        LoaderError,
        LoaderTimeout,
        WorkerDied,
        WorkerError,
    )
    from .shared_list import SharedList
    from .statistics import Statistics

__all__ = [
    "BufferExhausted",
    "BufferWorker",
    "LoaderClosed",
    "LoaderError",
    "LoaderTimeout",
    "SharedList",
    "Statistics",
    "TurboDataLoader",
    "Worker",
    "WorkerDied",
    "WorkerError",
]

__version__ = "0.1.0"

_logging.getLogger(__name__).addHandler(_logging.NullHandler())  # the program says where they go

if not TYPE_CHECKING:  # where it would hide names that do not exist
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            **dict.fromkeys(__all__, "errors"),
            "BufferWorker": "broker.worker",
            "SharedList": "shared_list",
            "Statistics": "statistics",
            "TurboDataLoader": "dataloader",
            "Worker": "broker.worker",
        },
    )
