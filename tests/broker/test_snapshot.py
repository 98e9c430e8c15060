"""Snapshots: what objects are at one moment, read by processes that run already."""

from __future__ import annotations

import gc
import os
import sys

import numpy as np
import pytest

from crumpets_like import SharedList
from crumpets_like.broker.payload import Payload, load_payload
from crumpets_like.broker.snapshot import Place, Snapshot, load_snapshot, reachable

linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


def contents(number=0):
    big = np.arange(100_000)
    big[-1] = number
    return {"dataset": [number, big]}


@linux
class TestSnapshot:
    def test_a_copy(self):
        snapshot = Snapshot(contents(3))
        number, big = load_snapshot(snapshot.place)["dataset"]
        assert (number, big[-1], big[5]) == (3, 3, 5)
        big[:] = 0  # of its own
        assert load_snapshot(snapshot.place)["dataset"][1][-1] == 3

    def test_the_same_where_nothing_has_changed(self):
        snapshot = Snapshot(contents())
        assert snapshot.renewed(contents()) is snapshot
        for changed in (contents(1), {"dataset": [0, np.arange(100_001)]}, {"dataset": [0]}):
            assert snapshot.renewed(changed) is not snapshot

    def test_lists_in_shared_memory(self):
        names = SharedList("abc")
        snapshot = Snapshot({"dataset": names})
        assert snapshot.renewed({"dataset": names}) is snapshot
        other = SharedList("abd")
        renewed = snapshot.renewed({"dataset": other})
        assert renewed is not snapshot
        assert load_snapshot(snapshot.place)["dataset"] == list("abc")
        assert load_snapshot(renewed.place)["dataset"] == list("abd")

    def test_nothing_stays_open(self):
        before = os.listdir("/proc/self/fd")
        snapshot = Snapshot({"dataset": SharedList("abc")})
        snapshot.renewed(contents())
        load_snapshot(snapshot.place)
        del snapshot
        gc.collect()
        assert os.listdir("/proc/self/fd") == before

    def test_what_is_gone_is_not_mistaken(self):
        place = Snapshot(contents()).place
        with pytest.raises(FileNotFoundError):
            load_snapshot(place)
        descriptor = os.open(os.devnull, os.O_RDONLY)
        try:
            taken = place._replace(descriptor=descriptor)
            with pytest.raises(FileNotFoundError, match="does not hold the dataset any more"):
                load_snapshot(taken)
        finally:
            os.close(descriptor)

    def test_places_travel(self):
        place = Snapshot({"dataset": SharedList("abc")}).place
        assert Place.unpack(place.pack()) == place

    def test_inherited_within_another_payload(self):
        snapshot = Snapshot(contents(4))
        payload = Payload({"template": snapshot})
        place = load_payload(payload.descriptor, payload.size, payload.descriptors)["template"]
        payload.close()
        del snapshot
        assert load_snapshot(place)["dataset"][0] == 4
        os.close(place.descriptor)

    def test_what_cannot_be_pickled_is_named(self):
        with pytest.raises(TypeError, match=r"dataset\[1\] cannot be sent"):
            Snapshot({"dataset": [1, (x for x in "")]})


@linux
def test_reachable():
    assert reachable()


def test_not_reachable_without_proc(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not reachable()
