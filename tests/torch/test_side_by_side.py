"""torch's DataLoader and ours side by side: types, dtypes, shapes, values, order, length, draws."""

from __future__ import annotations

import collections
import dataclasses
import random
import time
import types
from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils import data  # noqa: E402

from crumpets_like.torch import DataLoader  # noqa: E402

LENGTH = 11


class Made(data.Dataset):
    """Samples that a function makes of their index."""

    def __init__(self, make, length=LENGTH):
        self.make = make
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.make(index)


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Record:
    samples: object
    names: list


class Mapping(collections.abc.Mapping):
    """A mapping that is no dict, and cannot be changed."""

    def __init__(self, items):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class InBulk(Made):
    """Reads a batch in one call."""

    def __getitem__(self, index):
        raise AssertionError("sample by sample")

    def __getitems__(self, indices):
        return [(np.full(3, index), index) for index in indices]


class Named(data.Dataset):
    """Samples with names."""

    def __getitem__(self, name):
        return name, len(name)


class Numbers(data.IterableDataset):
    """Each worker's share of some numbers; with `uneven` the first worker has more."""

    def __init__(self, length=13, share=True, uneven=False):
        self.length = length
        self.share = share
        self.uneven = uneven

    def __iter__(self):
        info = data.get_worker_info()
        numbers = range(self.length)
        if info is None or not self.share:
            yield from numbers
        elif self.uneven:
            yield from numbers[3:] if info.id == 0 else numbers[:3]
        else:
            yield from numbers[info.id :: info.num_workers]


class Sized(Numbers):
    """Tells its length."""

    def __len__(self):
        return self.length


class Draws(data.Dataset):
    """Draws from every global generator, and tells what a worker knows of itself."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        info = data.get_worker_info()
        seed = -1 if info is None else info.seed
        return index, torch.rand(2), random.random(), np.random.rand(), seed


class DrawsAtOnce(data.Sampler):
    """Draws from torch's global generator in its __iter__ itself."""

    def __init__(self, batches=False):
        self.batches = batches

    def __iter__(self):
        order = torch.randperm(LENGTH).tolist()
        return iter([order[:4], order[4:9], order[9:]] if self.batches else order)

    def __len__(self):
        return 3 if self.batches else LENGTH


class DrawsOnTheWay(data.Sampler):
    """Draws from torch's global generator whenever it is asked."""

    def __iter__(self):
        for _ in range(LENGTH):
            yield int(torch.randint(LENGTH, ()))

    def __len__(self):
        return LENGTH


def as_record(samples):
    return Record(torch.tensor([sample for sample, _ in samples]), [name for _, name in samples])


def unusual(samples):
    """Types that a serialiser might take for others."""
    ones = torch.ones(2000)
    return {
        1: bytearray(b"ab"),
        (2, "x"): {3, 4},
        None: (ones, ones),
        "deep": [np.arange(5), np.float32(3), types.SimpleNamespace(sum=sum(samples))],
        "big": 2**80,
        "range": range(3),
        "half": torch.ones(3000, dtype=torch.bfloat16),
        "grad": torch.ones(2, requires_grad=True),
    }


def shift(worker_id):
    """Change what the worker's copy of the dataset has."""
    info = data.get_worker_info()
    assert info.id == worker_id
    info.dataset.length += 2 * (worker_id + 1)


def every_dtype(index):
    """An array and a scalar of each dtype that numpy and torch have."""
    sample = {"uint64": np.full(2, 2**63 + index, np.uint64)}
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32"):
        sample[name] = np.full((2, 3), index % 2, name), np.dtype(name).type(index % 2)
    for name in ("float16", "float32", "float64", "complex64", "complex128"):
        sample[name] = np.full((2, 3), index / 3, name), np.dtype(name).type(index / 3)
    return sample


def tensors(*shape, dtype=torch.float32):
    return Made(lambda i: (torch.full(shape, i, dtype=dtype), i))


LARGE = Made(lambda i: {"x": np.full((3, 50, 50), i, np.float32), "y": i})

MAPS = {
    "every dtype": (Made(every_dtype), {}),
    "numbers": (Made(lambda i: (i, i / 2, i > 3)), {}),
    "huge integers": (Made(lambda i: 2**62 + i), {}),
    "text": (Made(lambda i: (str(i), b"%d" % i)), {}),
    "dict of text": (Made(lambda i: {"name": str(i), "n": [i, str(i)]}), {}),
    "0-d": (Made(lambda i: (np.array(i), torch.tensor(i))), {}),
    "empty arrays": (Made(lambda i: (np.zeros((0, 3)), torch.zeros(0))), {}),
    "arrays in order F": (Made(lambda i: np.full((30, 40), i, order="F")), {}),
    "mixed dtypes": (Made(lambda i: np.ones(3, "f4" if i % 2 else "f8")), {}),
    "mixed numbers": (Made(lambda i: i if i % 2 else float(i)), {"batch_size": 3}),
    "mixed integers": (Made(lambda i: i if i % 3 else bool(i)), {"batch_size": 3}),
    "nested": (Made(lambda i: {"a": (i, [str(i), {"b": np.arange(i, i + 3)}])}), {}),
    "named tuples": (Made(lambda i: Point(i, Point(np.ones(2), str(i)))), {}),
    "ordered": (Made(lambda i: collections.OrderedDict(b=i, a=str(i))), {}),
    "other mapping": (Made(lambda i: Mapping({"a": i})), {}),
    "memory map": (Made(lambda i: np.ones(3).view(np.memmap)), {}),
    "large arrays": (LARGE, {"batch_size": 4}),
    "large, one by one": (LARGE, {"batch_size": None}),
    "large tensors": (tensors(3, 40, 40), {"batch_size": 4, "drop_last": True}),
    "bfloat16": (tensors(3, 40, 40, dtype=torch.bfloat16), {"batch_size": 4}),
    "views": (Made(lambda i: torch.arange(i, i + 4000).reshape(40, 100).T), {}),
    "tensor dataset": (data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6)), {}),
    "subset": (data.Subset(Made(float), [3, 5, 7]), {}),
    "concatenation": (data.ConcatDataset([Made(float, 3), Made(float, 4)]), {}),
    "in bulk": (InBulk(None), {}),
    "names": (Named(), {"sampler": ["ab", "c", "def"], "batch_size": 2}),
    "one by one": (Made(lambda i: (i, np.arange(i))), {"batch_size": None}),
    "one by one, names": (Named(), {"sampler": ["ab", "c"], "batch_size": None}),
    "lists of keys": (Made(lambda i: sum(i)), {"sampler": [[1, 2], [3]], "batch_size": None}),
    "shuffled": (Made(float), {"shuffle": True, "batch_size": 3}),
    "shuffled, last dropped": (Made(float), {"shuffle": True, "batch_size": 3, "drop_last": True}),
    "own generator": (Made(float), {"shuffle": True, "generator": 7}),
    "a batch sampler": (Made(float), {"batch_sampler": [[1], [2, 3, 4], (5, 6), [7] * 20]}),
    "draws at once": (Made(float), {"batch_sampler": DrawsAtOnce(batches=True)}),
    "draws at once, singly": (Made(float), {"sampler": DrawsAtOnce(), "batch_size": None}),
    "draws on the way": (Made(float), {"sampler": DrawsOnTheWay(), "batch_size": 2}),
    "replacement": (Made(float), {"sampler": data.RandomSampler(range(9), True, 40)}),
    "weighted": (Made(float), {"sampler": data.WeightedRandomSampler([0.1, 0.9, 0.5], 20)}),
    "random subset": (Made(float), {"sampler": data.SubsetRandomSampler([4, 5, 6, 7])}),
    "a dataclass": (Made(lambda i: (i, str(i))), {"collate_fn": as_record, "batch_size": 4}),
    "unusual types": (Made(int), {"collate_fn": unusual, "batch_size": 4}),
    "lambda": (Made(int), {"collate_fn": lambda samples: samples, "batch_size": 4}),
    "persistent": (Made(float), {"persistent_workers": True, "shuffle": True}),
    "prefetch": (Made(float), {"prefetch_factor": 5, "sampler": DrawsOnTheWay()}),
}
# These run with workers where the full matrix does.
MATRIX = {
    "huge integers",
    "text",
    "0-d",
    "empty arrays",
    "mixed integers",
    "ordered",
    "memory map",
    "subset",
    "concatenation",
    "lists of keys",
    "replacement",
    "random subset",
}
ERRORS = {
    "unsigned scalars that torch refuses": (Made(lambda i: np.uint64(i)), {}),
    "sizes that differ": (Made(lambda i: np.ones(3 + (i == 7))), {"batch_size": 3}),
    "tensor sizes that differ": (Made(lambda i: torch.ones(3 + (i == 7))), {"batch_size": 3}),
    "lengths that differ": (Made(lambda i: [i] * (3 + (i == 7))), {"batch_size": 3}),
    "keys that differ": (Made(lambda i: {"a": 1} if i != 7 else {"b": 1}), {"batch_size": 3}),
    "no type of torch's": (Made(lambda i: {i}), {}),
    "an error": (Made(lambda i: 1 // (7 - i)), {"batch_size": 3}),
    "arrays of text": (Made(lambda i: np.array(["a"])), {}),
}
STREAMS = {
    "shares": (Numbers(), {"batch_size": 2}),
    "copies": (Numbers(share=False), {"batch_size": 3}),
    "uneven": (Numbers(17, uneven=True), {"batch_size": 2}),
    "last dropped": (Numbers(uneven=True), {"batch_size": 3, "drop_last": True}),
    "one by one": (Numbers(), {"batch_size": None}),
    "none at all": (Numbers(0), {}),
    "one for the first": (Numbers(1), {}),
    "with a length": (Sized(), {"batch_size": 4, "drop_last": True}),
    "persistent": (Numbers(), {"batch_size": 2, "persistent_workers": True}),
    "changed by worker_init_fn": (Numbers(share=False), {"worker_init_fn": shift}),
    "a collate_fn": (Numbers(), {"batch_size": 4, "collate_fn": lambda samples: samples}),
}


def run(kind, dataset, num_workers, options, passes=2):
    """Batches of some passes; the length; states of the generators and a draw in the loop."""
    options = dict(options)
    if isinstance(options.get("generator"), int):
        options["generator"] = torch.Generator().manual_seed(options["generator"])
    if not num_workers:
        for name in ("persistent_workers", "prefetch_factor", "worker_init_fn"):
            options.pop(name, None)
    elif kind is DataLoader:
        options["multiprocessing_context"] = "fork"
    before = torch.get_rng_state()
    torch.manual_seed(3)
    loader = kind(dataset, num_workers=num_workers, **options)
    try:
        length = len(loader)
    except TypeError:
        length = None
    seen = []
    for _ in range(passes):
        try:
            for batch in loader:
                seen.append((batch, torch.rand(())))
        except Exception as error:  # noqa: BLE001  they are compared, too
            seen.append(type(error))
        else:
            seen.append(torch.get_rng_state())
    generator = options.get("generator")
    seen.append(length if generator is None else generator.get_state())
    torch.set_rng_state(before)
    if isinstance(loader, DataLoader):
        loader.close()
    return seen


def check(ours, theirs):
    """Raise AssertionError unless both are the same in every respect."""
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (theirs.dtype, theirs.shape, theirs.layout)
        assert ours.requires_grad == theirs.requires_grad
        assert torch.equal(ours.to_dense(), theirs.to_dense())
    elif isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, collections.abc.Mapping):
        assert list(ours) == list(theirs)
        for key in ours:
            check(ours[key], theirs[key])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            check(our, their)
    elif dataclasses.is_dataclass(ours):
        check(vars(ours), vars(theirs))
    else:
        assert ours == theirs


def side_by_side(dataset, num_workers, options):
    check(
        run(DataLoader, dataset, num_workers, options),
        run(data.DataLoader, dataset, num_workers, options),
    )


@pytest.mark.parametrize(
    ("name", "num_workers"),
    [
        pytest.param(name, number, marks=pytest.mark.matrix if name in MATRIX and number else ())
        for name in MAPS
        for number in (0, 2)
    ],
)
def test_maps(name, num_workers):
    dataset, options = MAPS[name]
    side_by_side(
        dataset, num_workers, {"batch_size": 5 if "batch_sampler" not in options else 1} | options
    )


@pytest.mark.parametrize(("dataset", "options"), ERRORS.values(), ids=ERRORS)
def test_errors(dataset, options):
    """The same type behind the same batches (of torch without workers: with, it leaves files)."""
    ours, theirs = run(DataLoader, dataset, 2, options), run(data.DataLoader, dataset, 0, options)
    assert any(isinstance(entry, type) for entry in ours)
    for our, their in zip(ours, theirs, strict=True):
        if not isinstance(our, torch.Tensor):
            check(our, their)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("dataset", "options"), STREAMS.values(), ids=STREAMS)
def test_streams(dataset, options, num_workers):
    side_by_side(dataset, num_workers, options)


@pytest.mark.parametrize("persistent", [False, True])
def test_draws_in_a_worker(persistent):
    """One worker, so that it is known which draws are whose."""
    side_by_side(Draws(), 1, {"batch_size": 3, "persistent_workers": persistent})


class Knows(data.Dataset):
    """What a worker knows of itself; slow, so that every worker has to do with it."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        time.sleep(0.02)
        info = data.get_worker_info()
        return info.id, info.seed, random.random(), np.random.rand(), torch.rand(())


def test_every_worker_is_seeded_as_torch_does():
    """Which worker makes a batch depends on timing; what it knows and draws first does not."""

    def first(kind):
        seen = {}
        number = 0
        for entry in run(kind, Knows(), 2, {"batch_size": 1}):
            if isinstance(entry, tuple):
                seen.setdefault((number, int(entry[0][0])), [float(x) for x in entry[0][1:]])
            else:
                number += 1
        return seen

    ours = first(DataLoader)
    assert len(ours) == 4
    assert ours == first(data.DataLoader)
