"""A DataLoader with the signature of gluon 1.9.1, and the datasets and samplers that go with it.

Layout: ``datasets`` says what the samples are, ``samplers`` in which order they come, ``batchify``
makes a batch of them, ``dataloader`` is the loader, ``arguments`` checks what it is given,
``pinning`` is its page-locked memory.
"""

from .batchify import default_batchify_fn
from .dataloader import DataLoader
from .datasets import ArrayDataset, Dataset, SimpleDataset
from .samplers import (
    BatchSampler,
    FilterSampler,
    IntervalSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "DataLoader",
    "Dataset",
    "FilterSampler",
    "IntervalSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SimpleDataset",
    "default_batchify_fn",
]
