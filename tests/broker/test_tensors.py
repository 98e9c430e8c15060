import warnings

import numpy as np
import pytest

from crumpets_like.broker.encoding import Arena, decode, encode
from crumpets_like.broker.payload import Payload, load_payload
from crumpets_like.broker.pickling import dump_object, load_object

torch = pytest.importorskip("torch")

BIG, SMALL = (80, 60), (3,)


class Slot:
    """Memory of a slot, as a worker and as the caller sees it."""

    def __init__(self, size=1 << 20):
        self.memory = bytearray(size)
        self.base = np.frombuffer(self.memory, np.uint8)

    def send(self, value):
        frames = encode({"x": value}, Arena(self.memory, 0, 0, len(self.memory)))
        return decode([bytes(frame) for frame in frames], self.base)["x"]

    def holds(self, tensor):
        start = self.base.__array_interface__["data"][0]
        return start <= tensor.data_ptr() < start + len(self.memory)


def assert_same(found, expected):
    assert type(found) is type(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.requires_grad == expected.requires_grad
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [BIG, SMALL, (), (0, 5)])
@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "bfloat16", "uint8", "int64", "bool", "complex64", "uint16"],
)
def test_types_and_values(dtype, shape):
    slot = Slot()
    value = torch.ones(shape, dtype=getattr(torch, dtype))
    found = slot.send(value)
    assert_same(found, value)
    if shape == BIG:
        assert slot.holds(found), "not copied into a message"
    found.reshape(-1)[:1] = 0  # it can be written to


def test_inside_of_other_things():
    slot = Slot()
    value = {"a": [torch.arange(3000), (torch.ones(2000), "text")], "b": torch.tensor(5)}
    found = slot.send(value)
    assert_same(found["a"][0], value["a"][0])
    assert type(found["a"][1]) is tuple
    assert found["a"][1][1] == "text"
    assert slot.holds(found["a"][0])
    assert slot.holds(found["a"][1][0])
    assert_same(found["b"], value["b"])


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6000).reshape(60, 100).T,
        torch.arange(6000)[::3],
        torch.complex(torch.ones(1000), torch.ones(1000)).conj(),
        torch.ones(2000, requires_grad=True),
        torch.nn.Parameter(torch.ones(2000)),
    ],
    ids=["transposed", "strided", "conjugated", "with a gradient", "parameter"],
)
def test_more_than_plain_bytes(value):
    assert_same(Slot().send(value), value)


@pytest.mark.parametrize("dtype", ["bfloat16", "uint16", "float32"])
def test_one_value_of_any_stride(dtype):
    value = torch.ones((1, 4), dtype=torch.float32).to(getattr(torch, dtype))[:, 0]
    assert value.stride() == (4,)
    found = Slot().send(value)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.item() == 1


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 30, 40, 50), (1, 3, 4, 5)])
def test_the_order_of_dimensions_is_kept(shape):
    value = torch.rand(shape).contiguous(memory_format=torch.channels_last)
    found = Slot().send(value)
    assert_same(found, value)
    assert found.is_contiguous(memory_format=torch.channels_last)
    transposed = torch.arange(6000).reshape(60, 100).T
    assert Slot().send(transposed).stride() == (1, 100)


def in_a_dataset(value):
    payload = Payload({"dataset": value})
    found = load_payload(payload.descriptor, payload.size)["dataset"]
    payload.close()
    return found


@pytest.mark.parametrize("dtype", ["uint16", "uint64", "float8_e5m2", "float32"])
def test_views_in_a_dataset(dtype):
    value = torch.arange(50, dtype=torch.float32).to(getattr(torch, dtype))[5:]
    found = in_a_dataset(value)
    assert found.dtype is value.dtype
    assert torch.equal(found.float(), value.float())


def test_nested_ones():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are a prototype
        value = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])
        for found in (Slot().send(value), in_a_dataset(value)):
            assert [len(part) for part in found.unbind()] == [3, 5]


def test_sparse_ones_in_a_dataset():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those in rows are in beta
        for value in (torch.eye(50).to_sparse(), torch.eye(50).to_sparse_csr()):
            assert torch.equal(in_a_dataset(value).to_dense(), value.to_dense())


def test_sparse_ones():
    value = torch.eye(50).to_sparse()
    assert torch.equal(Slot().send(value).to_dense(), value.to_dense())


def test_one_that_is_there_twice():
    value = torch.ones(2000)
    first, second = Slot().send([(value, value)])[0]
    assert first is second


def test_with_things_that_only_cloudpickle_can():
    tensor, function = Slot().send((torch.ones(2000), lambda: 7))
    assert tensor.sum() == 2000
    assert function() == 7


def test_not_on_a_device(monkeypatch):
    class Device(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda:0")

    value = torch.ones(3)
    monkeypatch.setattr(torch, "Tensor", Device)
    with pytest.raises(RuntimeError, match="a worker returned a tensor on cuda:0"):
        Slot().send(value.as_subclass(Device))


def test_without_buffers_tensors_are_pickled_as_usual():
    value = torch.ones(5)
    assert torch.equal(load_object(dump_object(value)), value)


@pytest.mark.parametrize("tensor", [torch.ones(5), torch.ones(100_000), torch.ones(9)[::3]])
def test_of_a_dataset_let_the_workers_import_torch_once_for_all(tensor):
    payload = Payload({"dataset": [{"x": tensor}]})
    payload.close()
    assert "torch" in payload.modules
