"""Wrong arguments: at construction, with the texts that MXNet 1.9.1 gave where it gave one."""

import pytest

from crumpets_like.gluon import DataLoader
from tests.support.gluon import as_lists

TEN = list(range(10))
SAMPLER = [1, 2]
LISTS = "batch_size, shuffle, sampler and last_batch must not be specified if batch_sampler is"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "^batch_size must be specified unless batch_sampler is specified$"),
        (
            {"batch_size": 4, "sampler": SAMPLER, "shuffle": True},
            "^shuffle must not be specified if sampler is specified$",
        ),
        *(
            ({"batch_sampler": [SAMPLER], **other}, f"^{LISTS} specified.$")
            for other in (
                {"batch_size": 4},
                {"shuffle": True},
                {"sampler": SAMPLER},
                {"last_batch": "keep"},
            )
        ),
        *(
            ({"batch_size": size}, f"batch_size must be .*got {size!r}")
            for size in (0, -1, 2.5, "4")
        ),
        ({"batch_size": 4, "last_batch": "drop"}, "last_batch must be .*got 'drop'"),
        ({"batch_size": 4, "last_batch": ""}, "last_batch must be .*got ''"),
        ({"batch_size": 4, "timeout": 0}, "^timeout must be positive, given 0$"),
        ({"batch_size": 4, "timeout": -1.5}, "^timeout must be positive, given -1.5$"),
        ({"batch_size": 4, "timeout": float("nan")}, "^timeout must be positive, given nan$"),
    ],
)
def test_wrong_values(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataLoader(TEN, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 2.5}, "num_workers must be an integer, got 2.5"),
        ({"prefetch": "2"}, "prefetch must be an integer, got '2'"),
        ({"timeout": "5"}, "timeout must be .*'5'"),
        ({"batchify_fn": 3}, "batchify_fn must be callable, got 3"),
        ({"sampler": 3}, r"sampler must be iterable, got 3 \(int\)"),
        ({"batch_size": None, "batch_sampler": 3}, r"batch_sampler must be iterable, got 3"),
        ({"dataset": iter(TEN)}, "dataset must have __getitem__ and __len__, got"),
    ],
)
def test_wrong_types(arguments, message):
    with pytest.raises(TypeError, match=message):
        DataLoader(**{"dataset": TEN, "batch_size": 4, **arguments})


def test_negative_numbers_mean_none():
    assert as_lists(DataLoader(TEN, 4, num_workers=-3, prefetch=-3, auto_reload=True)) == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
