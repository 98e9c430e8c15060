"""crumpets-like: a parallel data loader for deep learning.

Layout: ``dataloader`` is the front door; ``broker/`` the engine behind it; ``epochs``, ``passes``
and ``sampling`` decide which samples make up an epoch; ``seeding`` what random numbers they see.
"""

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
from .statistics import Statistics

__all__ = [
    "BufferExhausted",
    "BufferWorker",
    "LoaderClosed",
    "LoaderError",
    "LoaderTimeout",
    "Statistics",
    "TurboDataLoader",
    "Worker",
    "WorkerDied",
    "WorkerError",
]

__version__ = "0.1.0"
