"""Arrays in packed samples: what msgpack-numpy writes comes back, and nothing else is trusted."""

import pickle
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pytest

from crumpets_like.workers import ClassificationWorker, DetectionWorker, SaliencyWorker
from crumpets_like.workers.packed import decode_packed
from tests.support.preparing import prepare

pytest.importorskip("cv2")

SPEC = ((3, 8, 10), np.uint8)
RECORD = np.dtype([("a", "<i4"), ("b", "<f8", (2, 3)), ("c", [("d", "|u1"), ("e", "<U3")])])
ADDRESSES = {b"nd": True, b"type": b"|O", b"kind": b"", b"shape": (1,), b"data": b"\x41" * 8}


def array(**changes: Any) -> dict[bytes, Any]:
    described = {b"nd": True, b"type": "<f4", b"kind": b"", b"shape": (2,), b"data": bytes(8)}
    return {**described, **{key.encode(): value for key, value in changes.items()}}


def unpacked(described: Any) -> Any:
    return msgpack.unpackb(msgpack.packb(described), object_hook=decode_packed)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.zeros((0, 5), np.float16),
        np.array(3.5),
        np.array(["ab", "c"]),
        np.array([b"ab", b"c"]),
        np.array([True, False]),
        np.array(["2026-01-01"], "M8[D]").view("i8"),
        np.array([1 + 2j]),
        np.zeros(2, RECORD),
        np.zeros((2, 2), "V5"),
        np.float32(1.5),
        np.bool_(True),
        np.int64(-7),
    ],
    ids=str,
)
def test_what_is_packed_comes_back(value: Any) -> None:
    packed = msgpack_numpy.packb({"value": value})
    found = msgpack.unpackb(packed, object_hook=decode_packed)["value"]
    expected = msgpack_numpy.unpackb(packed)["value"]
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    assert found.shape == value.shape
    np.testing.assert_array_equal(found, expected)


def test_complex_numbers_and_other_mappings() -> None:
    packed = msgpack.packb({"z": 1 + 2j, "d": {"a": 1}}, default=msgpack_numpy.encode)
    assert msgpack.unpackb(packed, object_hook=decode_packed) == {"z": 1 + 2j, "d": {"a": 1}}


@pytest.mark.parametrize(
    "described",
    [
        ADDRESSES,
        array(type="O", data=bytes(16)),
        array(type=[[b"a", b"|O"]], kind=b"V", data=bytes(16)),
        array(type=[["a", "<f4"], ["b", [["c", "|O"]]]], kind=b"V"),
        array(type=[["a", "|O", [2]]], kind=b"V"),
        array(kind=b"O", data=pickle.dumps([1])),
        {b"nd": False, b"type": "|O", b"data": b"\x41" * 8},
    ],
    ids=str,
)
def test_objects_are_refused(described: Any) -> None:
    with pytest.raises(ValueError, match=r"it has an array of (pickled )?objects, which are not"):
        unpacked(described)


@pytest.mark.parametrize(
    "described",
    [
        array(type=[[b"a"]]),
        array(type=[["a", "<f4"], ["a", "<f4"]]),
        array(type=[]),
        array(type=None),
        array(type="secret"),
        array(type="(2,)f4"),
        array(type="|V0", data=b"", shape=(2**40,)),
        array(type=3),
        array(nd="secret"),
        array(shape=(3,)),
        array(shape=(1,)),
        array(shape=(-2,)),
        array(shape=(2**63, 2)),
        array(shape=(True, 2)),
        array(shape=(1,) * 100 + (2,)),
        array(shape=2),
        array(shape=(0, 2**62), data=b""),
        array(data="secret!!"),
        array(data=None),
        {b"nd": True},
        {b"nd": False, b"type": "<f4", b"data": b""},
        {b"complex": True, b"data": "secret"},
        {b"complex": True, b"data": None},
        {b"complex": True},
    ],
    ids=str,
)
def test_malformed_descriptions_are_refused(described: Any) -> None:
    with pytest.raises(ValueError, match=r"it has a|dimension|too big") as error:
        unpacked(described)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("key", ["label", "boxes", "fixations"])
def test_workers_refuse_addresses_as_objects(key: str) -> None:
    sample: dict[str, Any] = {"image": np.zeros((8, 10, 3), np.uint8), key: ADDRESSES}
    if key == "fixations":
        sample["experiments"] = [{key: ADDRESSES}]
    worker = {
        "label": lambda: ClassificationWorker(SPEC, ((), np.int64)),
        "boxes": lambda: DetectionWorker(SPEC, 3),
        "fixations": lambda: SaliencyWorker(SPEC, ((8, 10), np.float32)),
    }[key]()
    with pytest.raises(ValueError, match="cannot be unpacked by msgpack: ValueError it has an arr"):
        prepare(worker, msgpack_numpy.packb(sample))


@pytest.mark.parametrize("sample", [msgpack.packb("secret") * 2, b"\xa9\xff secret!"])
def test_errors_do_not_show_the_sample(sample: bytes) -> None:
    worker = ClassificationWorker(SPEC, ((), np.int64))
    with pytest.raises(ValueError, match="cannot be unpacked by msgpack") as error:
        prepare(worker, sample)
    assert "secret" not in str(error.value)
