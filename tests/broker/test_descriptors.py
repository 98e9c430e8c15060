import os
import pickle
import threading

import pytest

from crumpets_like.broker.descriptors import arrived, attach, attached, detach
from crumpets_like.broker.payload import Payload, load_payload


@pytest.fixture
def pipe():
    read, write = os.pipe()
    yield read
    os.close(read)
    os.close(write)


def same(one, other):
    return os.path.samestat(os.fstat(one), os.fstat(other))


def test_only_while_a_payload_is_made_in_this_thread(pipe):
    assert attach(pipe) is None
    with attached() as descriptors:
        numbers = []
        thread = threading.Thread(target=lambda: numbers.append(attach(pipe)))
        thread.start()
        thread.join()
        assert numbers == [None]
        assert descriptors == []
    assert attach(pipe) is None


def test_duplicates_in_both_directions(pipe):
    with attached() as descriptors:
        assert [attach(pipe), attach(pipe)] == [0, 1]
    assert pipe not in descriptors
    with arrived(descriptors):
        found = detach(1)
    try:
        assert found not in descriptors
        assert same(found, pipe)
    finally:
        for descriptor in (found, *descriptors):
            os.close(descriptor)


def fail_within(pipe, seen):
    with attached() as descriptors:
        attach(pipe)
        seen += descriptors
        raise KeyError


def test_one_within_another(pipe):
    with attached() as outer:
        attach(pipe)
        inner = []
        with pytest.raises(KeyError):
            fail_within(pipe, inner)
        assert len(inner) == len(outer) == 1
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(inner[0])
        assert attach(pipe) == 1
    for descriptor in outer:
        os.close(descriptor)


def test_nothing_has_arrived():
    with pytest.raises(pickle.UnpicklingError, match="came with a loader's payload"):
        detach(0)


class Attaches:
    def __init__(self, descriptor):
        self.descriptor = descriptor

    def __reduce__(self):
        return detach, (attach(self.descriptor),)


def test_payloads(pipe):
    payload = Payload({"a": Attaches(pipe), "b": [Attaches(pipe)]})
    loaded = load_payload(payload.descriptor, payload.size, payload.descriptors)
    again = load_payload(payload.descriptor, payload.size, payload.descriptors)
    payload.close()
    found = [loaded["a"], *loaded["b"], again["a"], *again["b"]]
    assert len(set(found)) == 4
    for descriptor in found:
        assert same(descriptor, pipe)
        os.close(descriptor)


def test_what_cannot_be_pickled_leaves_none(pipe):
    with pytest.raises(TypeError, match=r"^dataset\[1\] cannot be sent"):
        Payload({"dataset": [Attaches(pipe), threading.Lock()]})  # see the leak guard
