"""Texts of scripts that the start methods are tried with; ``sys.argv[1]`` is the start method."""

from __future__ import annotations

__all__ = [
    "LOCAL_CLASSES",
    "MAIN_CLASSES",
    "NOTEBOOK",
    "REOPENED_FILE",
    "RUNTIME_PATH",
    "SHARED_ITEMS",
]

_HEAD = """
import sys
import numpy as np
from crumpets_like import BufferWorker, TurboDataLoader, Worker

METHOD = sys.argv[1]
OPTIONS = {"nworkers": 0} if METHOD == "0" else {"nworkers": 2, "start_method": METHOD}

def load(dataset, worker, batch_size=4, **more):
    with TurboDataLoader(dataset, batch_size, worker, **{**OPTIONS, **more}) as loader:
        return [mini_batch for _, (mini_batch,) in loader]
"""

# Classes and exceptions of a script without a main guard come back as the very classes.
MAIN_CLASSES = (
    _HEAD
    + """
import collections, dataclasses, enum
print("run", flush=True)

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Box:
    content: object

Pair = collections.namedtuple("Pair", "a b")

@dataclasses.dataclass(slots=True)
class Slots:
    first: int
    second: object

class Private:
    __slots__ = ("__hidden",)

    def __init__(self, value):
        self.__hidden = value

    def value(self):
        return self.__hidden

class Above(Private):
    __slots__ = ("more", "__dict__")

class Result:
    class Inner:
        pass

    def __init__(self, value):
        self.value = value
        self.inner = Result.Inner()

class Failure(Exception):
    def __init__(self, index, *, reason="none"):
        super().__init__(index)
        self.index = index

class Mine(Worker):
    def process(self, sample):
        if sample == 9:
            raise Failure(sample)
        return {"result": Result(sample), "function": helper, **more(sample)}

class Rows(BufferWorker):
    def __init__(self):
        super().__init__()
        self.add_buffer("x", ((), np.int64))

    def prepare(self, sample, batch, buffers):
        buffers["x"][...] = sample
        for key, value in more(sample).items():
            batch[key].append(value)

def more(sample):
    above = Above(sample)
    above.more, above.other = 2, 3
    return {"color": Color.RED, "box": Box([Box(sample)]), "pair": Pair(sample, 2), "class": Box,
            "slots": Slots(sample, Private(sample)), "above": above}

def helper():
    return 7

for mini_batch in [*load(range(8), Mine()), *load(range(8), Rows())]:
    assert all(color is Color.RED for color in mini_batch["color"])
    assert all(type(box) is type(box.content[0]) is Box for box in mini_batch["box"])
    assert all(type(pair) is Pair for pair in mini_batch["pair"])
    assert all(found is Box for found in mini_batch["class"])
    for slots, above, pair in zip(mini_batch["slots"], mini_batch["above"], mini_batch["pair"]):
        assert type(slots) is Slots and type(slots.second) is Private and type(above) is Above
        assert slots.first == slots.second.value() == above.value() == pair.a
        assert (above.more, above.other) == (2, 3)

for mini_batch in load(range(8), Mine()):
    for result, function in zip(mini_batch["result"], mini_batch["function"]):
        assert type(result) is Result
        assert type(result.inner) is Result.Inner
        assert function() == 7
try:
    load(range(12), Mine())
except Failure as failure:
    assert type(failure) is Failure and failure.index == 9
else:
    raise SystemExit("no failure")
"""
)

LOCAL_CLASSES = (
    _HEAD
    + """
def make():
    offset = 100

    class Local:
        def __init__(self, value):
            self.value = value

    class Slots:
        __slots__ = ("value",)

    class Data:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return index

    class Mine(Worker):
        def __init__(self, transform):
            super().__init__()
            self.transform = transform

        def process(self, sample):
            slots = Slots()
            slots.value = Local(sample)
            return {"value": self.transform(sample) + offset, "object": slots}

    return Data(), Mine, Local, Slots

data, Mine, Local, Slots = make()
mini_batches = load(data, Mine(lambda value: 2 * value))
assert [int(v) for m in mini_batches for v in m["value"]] == [100 + 2 * i for i in range(8)]
objects = [o for m in mini_batches for o in m["object"]]
assert all(type(o) is Slots for o in objects), [type(o) for o in objects]
assert all(type(o.value) is Local for o in objects), [type(o.value) for o in objects]
"""
)

# A notebook's cells have no file. They are executed in the namespace of __main__, or in one that
# only says that it is that, or in that of a module that takes the place of __main__ (IPython).
NOTEBOOK = (
    _HEAD
    + """
import types
CELLS = ['''
class Box:
    def __init__(self, value):
        self.value = value

class Failure(Exception):
    pass

class Cell(Worker):
    def process(self, sample):
        if sample == 9:
            raise Failure(sample)
        return {"value": scale(sample), "box": Box(sample)}
''', '''
def scale(value):
    return factor * value
factor = 3
''', '''
mini_batches = load(range(8), Cell())
values = [int(v) for m in mini_batches for v in m["value"]]
assert values == [3 * i for i in range(8)], values
assert all(type(box) is Box for m in mini_batches for box in m["box"])
try:
    load(range(12), Cell())
except Failure as failure:
    assert failure.args == (9,)
else:
    raise SystemExit("no failure")
''']

def run(namespace):
    for number, cell in enumerate(CELLS):
        exec(compile(cell, f"<cell {number}>", "exec"), namespace)

run(globals())
run({"__name__": "__main__", "Worker": Worker, "load": load})
module = types.ModuleType("__main__")
module.Worker, module.load = Worker, load
main, sys.modules["__main__"] = sys.modules["__main__"], module
run(vars(module))
sys.modules["__main__"] = main
"""
)

# A module that is found through a path added at run time; then the working directory changes, and
# with it what a relative path means.
RUNTIME_PATH = (
    _HEAD
    + """
import os
os.makedirs("late")
with open("late/found_late.py", "w") as file:
    file.write("from crumpets_like import Worker\\n"
               "class Late(Worker):\\n"
               "    def process(self, sample):\\n"
               "        return {'value': sample + 1}\\n")
sys.path.insert(0, "late")
import found_late
os.makedirs("elsewhere")
os.chdir("elsewhere")
values = [int(v) for m in load(range(8), found_late.Late()) for v in m["value"]]
assert values == list(range(1, 9)), values
os.chdir("..")
import shutil
shutil.rmtree("late")
sys.path.remove("late")
sys.path.insert(0, "")
os.chdir("elsewhere")
os.rmdir("../elsewhere")
sys.argv.append("\\udcff")  # the name of a file, perhaps

class Tells(Worker):
    def process(self, sample):
        return {"arguments": sys.argv}

assert load(range(4), Tells(), 4)[0]["arguments"] == [sys.argv] * 4
"""
)

# Workers that shared the offset of one open file would read each other's records.
REOPENED_FILE = (
    _HEAD
    + """
import os

class Records:
    def __init__(self, path):
        self.path = path
        self.file = open(path, "rb")

    def __getstate__(self):
        return self.path

    def __setstate__(self, path):
        self.__init__(path)

    def __len__(self):
        return os.path.getsize(self.path) // 8

    def __getitem__(self, index):
        self.file.seek(8 * index)
        return int.from_bytes(self.file.read(8), "little")

class Mine(BufferWorker):
    def __init__(self):
        super().__init__()
        self.add_buffer("value", ((), np.int64))

    def prepare(self, sample, batch, buffers):
        buffers["value"][...] = sample

np.arange(20_000).tofile("records")
records = Records("records")
mini_batches = load(records, Mine(), 8, **({} if METHOD == "0" else {"nworkers": 4}))
values = np.concatenate([mini_batch["value"] for mini_batch in mini_batches])
assert (values == np.arange(20_000)).all(), (values != np.arange(20_000)).sum()
records.file.close()
os.unlink("records")
"""
)

# The items of a shared list are pickles of their own, which know these classes by name only.
SHARED_ITEMS = (
    _HEAD
    + """
from crumpets_like import SharedList

class Box:
    class Inner:
        pass

    def __init__(self, value):
        self.value = value
        self.inner = Box.Inner()

def double(value):
    return 2 * value

class Mine(Worker):
    def process(self, sample):
        if isinstance(sample, tuple):
            function, local, value = sample
            return {"result": Box(function(value) + local(value))}
        return {"result": sample}

def make():
    return [(double, lambda value, number=number: number, number) for number in range(4)]

for dataset in (SharedList(map(Box, range(0, 12, 3))), SharedList(make())):
    (mini_batch,) = load(dataset, Mine())
    assert [box.value for box in mini_batch["result"]] == [0, 3, 6, 9]
    assert all(type(box) is Box for box in mini_batch["result"])
    assert all(type(box.inner) is Box.Inner for box in mini_batch["result"])
"""
)

# In a process that multiprocessing spawns, the main module has another name, which no worker knows.
SPAWNED = """
import multiprocessing, sys
from crumpets_like import SharedList, TurboDataLoader, Worker

class Dataset:
    items = None
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 7:
            raise Trouble(index)
        return self.items[index] if self.items else index

class Sample:
    def __init__(self, value):
        self.value = value

class Trouble(Exception):
    pass

class MyWorker(Worker):
    def process(self, sample):
        return {"x": sample, "sample": Sample(sample), "call": lambda: sample}

def train(method):
    for items in (None, SharedList(range(8))):
        dataset = Dataset()
        dataset.items = items
        seen = []
        with TurboDataLoader(dataset, 2, MyWorker(), 2, start_method=method) as loader:
            try:
                for _, (batch,) in loader:
                    assert all(type(sample) is Sample for sample in batch["sample"])
                    seen += [call() for call in batch["call"]]
            except Trouble as error:
                assert error.args == (7,)
                assert seen == [0, 1, 2, 3, 4, 5]
                print("right", flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=train, args=sys.argv[1:])
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
