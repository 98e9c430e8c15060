"""Samplers and iterables that record what is read of them, and epochs as lists of lists."""

from crumpets_like.epochs import Planner

__all__ = ["Lying", "OwnIterator", "Sized", "Unsized", "epochs", "planner", "reference", "rows"]


class Unsized:
    """Re-iterable, without a length."""

    def __init__(self, items):
        self.items = list(items)
        self.read = 0  # items that were read
        self.passes = 0  # calls of iter()
        self.finished = 0  # passes that were read beyond their last item

    def __iter__(self):
        self.passes += 1
        return self._steps()

    def _steps(self):
        for item in self.items:
            self.read += 1
            yield item
        self.finished += 1


class Sized(Unsized):
    """Re-iterable, with a length."""

    def __len__(self):
        return len(self.items)


class Lying(Unsized):
    """Re-iterable, with a length that is not that of its items."""

    def __init__(self, items, length):
        super().__init__(items)
        self.length = length

    def __len__(self):
        return self.length


class OwnIterator:
    """Its own iter(), over 0, 1, 2, ... length - 1."""

    def __init__(self, length):
        self.items = iter(range(length))
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        item = next(self.items)
        self.read += 1
        return item


def planner(iterable, batch_size, **options):
    return Planner(iterable, batch_size, **{"seed": 0, **options})


def rows(plan):
    return [[int(item) for item in batch] for batch in plan]


def epochs(planner, count):
    """Return `count` epochs as lists, each with the number of iterations that was announced."""
    result = []
    for _ in range(count):
        iterations = planner.iterations()
        plan = planner.open()
        assert plan.iterations == iterations
        result.append(rows(plan))
        if iterations is not None:
            assert len(result[-1]) == iterations
    return result


def reference(length, batch_size, last_batch, count, orders=None):
    """Return `count` epochs of one pass each, made of lists."""
    result, left = [], []
    for epoch in range(count):
        keys = left + (orders[epoch] if orders else list(range(length)))
        batches = [keys[i : i + batch_size] for i in range(0, len(keys), batch_size)]
        left = []
        if last_batch != "keep" and batches and len(batches[-1]) < batch_size:
            short = batches.pop()
            left = short if last_batch == "rollover" else []
        result.append(batches)
    return result
