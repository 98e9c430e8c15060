"""The engine behind the loaders.

The way of a sample, by file names: ``producer`` (numbers mini-batches, sends indices) →
``server`` and ``scheduler`` (the broker: which worker gets what) → ``worker_loop``, ``runner``,
``worker`` (rows are written into the ``ring``) → ``consumer``, ``stream`` (order) → ``assembly``
(arrays for the caller).
``engine`` carries the passes (``local`` does so in the caller's thread; ``contract`` says what both
can do); ``parts`` starts and stops everything; ``supervisor`` starts the processes and sees them
end; ``threads`` holds workers that are threads.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .buffers import BufferSpec
    from .producer import Producer
    from .server import Broker
    from .worker import BufferWorker, Worker

__all__ = ["Broker", "BufferSpec", "BufferWorker", "Producer", "Worker"]

if not TYPE_CHECKING:  # where it would hide names that do not exist
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Broker": "server",
            "BufferSpec": "buffers",
            "BufferWorker": "worker",
            "Producer": "producer",
            "Worker": "worker",
        },
    )
