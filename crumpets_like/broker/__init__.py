"""The engine behind the loaders.

The way of a sample, by file names: ``producer`` (numbers mini-batches, sends indices) →
``server`` and ``scheduler`` (the broker: which worker gets what) → ``worker_loop``, ``runner``,
``worker`` (rows are written into the ``ring``) → ``consumer`` (order) → ``assembly`` (arrays for
the caller).
``engine`` starts and stops it all; ``supervisor`` starts the processes and sees them end.
"""

from .buffers import BufferSpec
from .producer import Producer
from .server import Broker
from .worker import BufferWorker, Worker

__all__ = ["Broker", "BufferSpec", "BufferWorker", "Producer", "Worker"]
