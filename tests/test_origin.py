"""Where generators stand: read, written, through JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from crumpets_like.origin import Origin, Part, Stand, pack_stands, torch_part, unpack_stands
from crumpets_like.seeding import imported_torch


def draw() -> list[Any]:
    """Of the global generators; odd numbers of normals leave one behind."""
    drawn = [random.random(), random.gauss(0, 1), np.random.random(), np.random.normal()]
    torch = imported_torch()
    return drawn if torch is None else [*drawn, float(torch.rand(())), float(torch.randn(()))]


def through_json(stands: dict[str, Stand]) -> dict[str, Stand]:
    return unpack_stands("state", json.loads(json.dumps(pack_stands(stands))))


@pytest.mark.parametrize("before", [lambda: None, draw, lambda: draw() and draw()])
def test_global_generators(before: Callable[[], Any]) -> None:
    origin = Origin("numpy", {})
    before()
    stands = origin.stands()
    assert through_json(stands) == stands
    drawn = draw()
    draw()
    assert origin.stands() != stands
    origin.restore(through_json(stands))
    assert origin.stands() == stands
    assert draw() == drawn


def test_what_is_given_is_written_alone() -> None:
    origin = Origin("numpy", {})
    stands = origin.stands()
    draw()
    now = origin.stands()
    origin.restore({"numpy": stands["numpy"]})
    assert origin.stands() == {**now, "numpy": stands["numpy"]}


def test_own_parts() -> None:
    kept: list[Any] = [1, 2]

    def write(stand: Stand) -> None:
        kept[:] = stand.rest

    origin = Origin("numpy", {"kept": Part(lambda: Stand(b"", list(kept)), write)})
    stands = through_json(origin.stands())
    kept.clear()
    origin.restore(stands)
    assert kept == [1, 2]
    assert origin.knows("kept")
    assert not origin.knows("generator 0")


def test_a_generator_of_torch() -> None:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    part = torch_part(generator)
    stand = part.read()
    drawn = torch.randn(3, generator=generator)
    part.write(through_json({"generator 0": stand})["generator 0"])
    assert torch.equal(torch.randn(3, generator=generator), drawn)


def test_another_bit_generator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"bit_generator": "PCG64", "state": {"state": 1, "inc": 1}}
    monkeypatch.setattr(np.random, "get_state", lambda legacy: state)
    assert "numpy" not in Origin("numpy", {}).stands()


def test_they_are_small() -> None:
    packed = pack_stands(Origin("numpy", {}).stands())
    assert all(len(json.dumps(one)) < 4_500 for one in packed.values())


@pytest.mark.parametrize("packed", [3, None, {"numpy": 3}, {"numpy": ["?"]}, {"numpy": ["eJw="]}])
def test_damaged(packed: Any) -> None:
    with pytest.raises(ValueError, match="state holds no states of generators"):
        unpack_stands("state", packed)
