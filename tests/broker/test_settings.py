from typing import get_type_hints

from crumpets_like.broker.segment import RingGeometry
from crumpets_like.broker.settings import Settings


def make(**changes):
    """Settings with a different value in each field."""
    values = {
        name: example(kind, number)
        for number, (name, kind) in enumerate(get_type_hints(Settings).items())
    }
    return Settings(**{**values, **changes})


def example(kind, number):
    values = {int: number, bool: number % 2 == 0, str: f"s{number}", bytes: b"b%d" % number}
    if kind in values:
        return values[kind]
    return {"": 30, "a.b": number} if kind == dict[str, int] else ["a", "b"]


def test_round_trip():
    settings = make()
    again = Settings.unpack(settings.pack())
    assert again == settings
    assert all(type(a) is type(b) for a, b in zip(again, settings, strict=True))


def test_descriptors_are_those_of_the_receiver():
    settings = Settings(*make()[:-2])
    assert (settings.ring, settings.payload) == (-1, -1)
    assert Settings.unpack(settings.pack())._replace(ring=5, payload=6)[-2:] == (5, 6)


def test_geometry():
    geometry = make(nworkers=3, stride=128, slots=7).geometry
    expected = RingGeometry(3, 128, 7)
    assert vars(geometry) == vars(expected)


def test_text_of_any_kind():
    settings = make(uid="größe", modules=["a.b", "ä"])
    assert Settings.unpack(settings.pack()) == settings
