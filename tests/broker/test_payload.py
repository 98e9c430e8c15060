import mmap
import os
import pickle
import socket
import sys
import threading

import numpy as np
import pytest

from crumpets_like.broker import payload as payload_module
from crumpets_like.broker.payload import Payload, copy_template, load_payload
from tests.support.scenario import run_scenario


def there_and_back(obj, times=1):
    """Write a payload and load it, each time anew."""
    payload = Payload(obj)
    try:
        return [load_payload(payload.descriptor, payload.size) for _ in range(times)]
    finally:
        payload.close()


class Holder:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_plain_objects():
    obj = {"worker_template": Holder(a=1, b=[2, "three"]), "dataset": None}
    (copy,) = there_and_back(obj)
    assert copy["dataset"] is None
    assert vars(copy["worker_template"]) == {"a": 1, "b": [2, "three"]}
    assert type(copy["worker_template"]) is Holder


def test_what_plain_pickle_cannot():
    class Local:
        factor = 3

        def __call__(self, x):
            return self.factor * x

    add = 5
    (copy,) = there_and_back({"f": lambda x: x + add, "g": Local()})
    assert copy["f"](1) == 6
    assert copy["g"](2) == 6


@pytest.mark.parametrize(
    "array",
    [
        np.arange(100_000),
        np.arange(100_000).reshape(100, -1).T,
        np.arange(200_000)[::2],
        np.array(["text"] * 30_000),
        np.zeros((0, 5)),
        np.arange(10, dtype=">f4"),
    ],
    ids=["large", "Fortran", "strided", "text", "empty", "small"],
)
def test_arrays(array):
    (copy,) = there_and_back({"x": array})
    assert copy["x"].dtype == array.dtype
    np.testing.assert_array_equal(copy["x"], array)


def test_large_arrays_are_whole_pages_of_the_segment():
    arrays = [np.full(100_001, number, np.uint8) for number in range(3)]
    payload = Payload({"arrays": arrays})
    try:
        copies = [load_payload(payload.descriptor, payload.size)["arrays"] for _ in range(2)]
        content = os.pread(payload.descriptor, payload.size, 0)
    finally:
        payload.close()
    for number, array in enumerate(copies[0]):
        assert array.ctypes.data % mmap.PAGESIZE == 0
        assert content.count(bytes([number]) * 100_001) == 1, "once, and not in the pickle"
    copies[0][1][:] = 9  # private: nobody else sees it
    assert (copies[1][1] == 1).all()
    assert (arrays[1] == 1).all()


def test_other_buffers_stay_out_of_band_too():
    data = bytearray(b"x" * 100_000)
    (copy,) = there_and_back({"x": pickle.PickleBuffer(data)})
    assert bytes(copy["x"]) == data


def test_modules_that_unpickling_needs():
    from decimal import Decimal
    from fractions import Fraction

    payload = Payload({"x": Fraction(1, 2), "f": lambda: Decimal("1.5"), "module": threading})
    payload.close()
    assert {"fractions", "decimal", "threading"} <= set(payload.modules)
    assert "__main__" not in payload.modules
    assert set(payload.modules) <= set(sys.modules)


class Slots:
    __slots__ = ("lock",)

    def __init__(self, lock):
        self.lock = lock


class LeavesOut(Holder):
    def __getstate__(self):
        return {"kept": self.kept}


class TestWhatCannotBePickled:
    @pytest.mark.parametrize(
        ("obj", "path"),
        [
            (
                {"dataset": Holder(files=[Holder(lock=threading.Lock())])},
                r"dataset\.files\[0\]\.lock",
            ),
            ({"dataset": {"a": 1, "b": (1, threading.Lock())}}, r"dataset\['b'\]\[1\]"),
            ({"worker_template": Holder(stream=(i for i in ()))}, r"worker_template\.stream"),
            ({"worker_template": 1, "dataset": threading.Lock()}, "dataset"),
            ({"dataset": Slots(threading.Lock())}, r"dataset\.lock"),
            ({"dataset": LeavesOut(kept=threading.Lock(), left=iter([]))}, r"dataset\.kept"),
        ],
    )
    def test_the_error_names_the_attribute(self, obj, path):
        with pytest.raises(TypeError, match=rf"^{path} cannot be sent to the workers \(.*setup"):
            Payload(obj)

    def test_a_recursive_object(self):
        holder = Holder(lock=threading.Lock())
        holder.me = holder
        with pytest.raises(TypeError, match=r"^dataset(\.me)?\.lock cannot be sent"):
            Payload({"dataset": holder})

    def test_an_error_of_the_users_own(self):
        class Refuses:
            def __reduce__(self):
                raise KeyError("mine")

        with pytest.raises(pickle.PicklingError, match=r"dataset cannot be sent.*mine") as caught:
            Payload({"dataset": Refuses()})
        assert isinstance(caught.value.__cause__, KeyError)

    def test_sockets(self):
        with socket.socket() as made, pytest.raises(TypeError, match=r"^dataset\.socket cannot"):
            Payload({"dataset": Holder(socket=made)})


def test_copies_for_this_process_share_classes_functions_and_modules():
    seen = []

    class Local:
        def __init__(self, **attributes):
            self.__dict__.update(attributes)

        def see(self, value):
            seen.append(value)

    before = Local.see
    template = Local(items=[1], array=np.arange(3), module=os, function=len, add=lambda x: x + 1)
    made = copy_template(template)
    assert type(made) is Local
    assert Local.see is before
    assert made.items is not template.items
    assert not np.shares_memory(made.array, template.array)
    assert (made.module, made.function, made.add) == (os, len, template.add)
    made.see(5)
    assert seen == [5]


def test_the_error_for_a_template_that_cannot_be_copied():
    with pytest.raises(TypeError, match=r"^worker_template\.inner\.lock cannot be sent"):
        copy_template(Holder(inner=Holder(lock=threading.Lock())))


def test_no_descriptor_is_lost_when_writing_fails(monkeypatch):
    def refuse(*arguments):
        raise OSError("no space")

    monkeypatch.setattr(payload_module, "_write", refuse)
    with pytest.raises(OSError, match="no space"):
        Payload({"x": 1})  # the leak guard looks for the descriptor


class OpensWhenUnpickled:
    def __init__(self, path):
        self.path = path

    def __getstate__(self):
        return {"path": self.path}

    def __setstate__(self, state):
        self.path = state["path"]
        self.descriptor = os.open(self.path, os.O_RDONLY)


def test_each_load_unpickles_anew(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    first, second = there_and_back({"dataset": OpensWhenUnpickled(str(path))}, times=2)
    descriptors = [copy["dataset"].descriptor for copy in (first, second)]
    try:
        assert os.read(descriptors[0], 4) == b"0123"
        assert os.read(descriptors[1], 4) == b"0123", "they do not share an offset"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


MAIN = """
import os, pickle, subprocess, sys
from crumpets_like.broker.payload import Payload, load_payload

class Sample:
    pass

class Error(Exception):
    pass

def make():
    return Sample()

class Worker:
    error = Error
    def __call__(self):
        return make()

payload = Payload({"worker": Worker()})
code = '''
import pickle, sys
from crumpets_like.broker.payload import load_payload
worker = load_payload(int(sys.argv[1]), int(sys.argv[2]))["worker"]
assert sys.modules["__main__"].Sample is type(worker())
sys.stdout.buffer.write(pickle.dumps([worker(), worker.error("text")]))
'''
command = [sys.executable, "-c", code, str(payload.descriptor), str(payload.size)]
output = subprocess.run(command, pass_fds=[payload.descriptor], check=True, stdout=-1).stdout
sample, error = pickle.loads(output)
assert type(sample) is Sample
assert type(error) is Error
payload.close()
"""


def test_classes_of_main_come_back_as_the_very_class():
    run_scenario(MAIN, env={"PYTHONPATH": os.pathsep.join(sys.path)}).check()
