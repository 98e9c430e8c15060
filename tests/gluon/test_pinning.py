import re
import sys

import numpy as np
import pytest

from crumpets_like.gluon import ArrayDataset, DataLoader
from tests.support.gluon import MODES

torch = pytest.importorskip("torch")

WARNING = "torch finds no CUDA device"
PAIRS = ArrayDataset(np.arange(4000.0).reshape(4, 1000), [1, 2, 3, 4])


@pytest.fixture
def no_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("no_cuda")
def test_without_cuda_there_is_one_warning(mode):
    with pytest.warns(UserWarning, match=WARNING) as caught:
        loader = DataLoader(PAIRS, 2, pin_memory=True, **mode)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    batches = list(loader)
    for number, batch in enumerate(batches):
        assert type(batch) is list
        assert [type(item) for item in batch] == [torch.Tensor, torch.Tensor]
        rows = slice(2 * number, 2 * number + 2)
        np.testing.assert_array_equal(batch[0].numpy(), PAIRS._data[0][rows])
        assert batch[1].tolist() == PAIRS._data[1][rows]
        assert (batch[0].dtype, batch[1].dtype) == (torch.float64, torch.int64)


@pytest.mark.usefixtures("no_cuda")
def test_what_becomes_a_tensor():
    readonly = np.arange(3)
    readonly.flags.writeable = False

    def batchify(data):
        swapped = np.arange(3, dtype=">i4")
        arrays = (readonly, np.arange(3)[::-1], swapped)
        return (*arrays, np.array("text"), {"x": np.zeros(2)}, "name", 5)

    with pytest.warns(UserWarning, match=WARNING):
        loader = DataLoader([0], 1, pin_memory=True, batchify_fn=batchify)
    (batch,) = loader
    assert type(batch) is list
    assert [type(item) for item in batch[:3]] == [torch.Tensor] * 3
    assert [item.tolist() for item in batch[:3]] == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
    assert type(batch[3]) is np.ndarray
    assert type(batch[4]["x"]) is torch.Tensor
    assert batch[5:] == ["name", 5]


@pytest.fixture
def pinned(monkeypatch):
    """A CUDA device that is not there; the addresses of the tensors that were pinned."""
    made = []

    def pin_memory(tensor):
        made.append(tensor.clone())
        return made[-1]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    Device.used = []
    return made


class Device:
    """As the context manager of torch."""

    used: list[int]

    def __init__(self, number):
        self.number = number

    def __enter__(self):
        self.used.append(self.number)

    def __exit__(self, *error):
        pass


def test_every_tensor_is_pinned_for_the_device(pinned):
    loader = DataLoader(PAIRS, 4, pin_memory=True, pin_device_id=1)
    (batch,) = loader
    assert len(batch) == 2
    assert [item.data_ptr() for item in batch] == [item.data_ptr() for item in pinned]
    assert Device.used == [1]


@pytest.mark.usefixtures("pinned")
def test_wrong_devices():
    with pytest.raises(ValueError, match=r"pin_device_id must be less than 2, .* got 2"):
        DataLoader(PAIRS, 4, pin_memory=True, pin_device_id=2)
    with pytest.raises(ValueError, match="pin_device_id must be at least 0, got -1"):
        DataLoader(PAIRS, 4, pin_memory=True, pin_device_id=-1)
    with pytest.raises(TypeError, match="pin_device_id must be an integer, got '0'"):
        DataLoader(PAIRS, 4, pin_memory=True, pin_device_id="0")


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'crumpets-like[torch]'")):
        DataLoader(PAIRS, 4, pin_memory=True)
    assert len(list(DataLoader(PAIRS, 4))) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("mode", MODES)
def test_on_a_device(mode):
    for image, label in DataLoader(PAIRS, 2, pin_memory=True, **mode):
        assert image.is_pinned()
        assert label.is_pinned()
        assert image.cuda(non_blocking=True).shape == (2, 1000)
