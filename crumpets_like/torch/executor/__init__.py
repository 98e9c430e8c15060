"""Steps on fixed arrays: what MXNet 1.9.1 calls ``Executor``, on PyTorch.

General layout: ``symbol`` is what is executed, ``capture`` makes its graph, ``program`` is its code
with certain parameters, ``shapes`` runs it without values. ``binding`` checks or allocates the
``arrays``, ``reshape`` fits others into their memory, ``placement`` spreads them over devices.
``step`` goes forward and back on them: ``heads`` begins the way back, ``direct`` shortens it,
``graphs`` records and replays it, ``monitor`` and ``plan`` show it. ``executor`` is what the caller
holds; ``values`` takes what the caller gives.
"""

from .executor import Executor
from .heads import make_loss, softmax_output
from .symbol import Symbol, trace

__all__ = ["Executor", "Symbol", "make_loss", "softmax_output", "trace"]
