"""States that a drop-in loader does not go on from, or does not give."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.dropin import Made, Numbers  # noqa: E402
from tests.support.going_on import through_json  # noqa: E402
from tests.torch.test_resume import go_on, make, own_generator, passes, stop  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


REFUSED: dict[str, tuple[Any, str]] = {
    "dataset": ({"dataset": Made(length=99)}, "dataset_length=100, but this one has .*=99"),
    "batch size": ({"batch_size": 5}, "batch_size=4, but this one has batch_size=5|batches=25"),
    "order": ({"shuffle": False}, "sampler='RandomSampler', .* sampler='SequentialSampler'"),
    "drop_last": ({"drop_last": True}, "drop_last=False, but this one has drop_last=True"),
    "draws": ({"seed_globals": True}, "seed_globals=False, but this one has seed_globals=True"),
}


class TestRefused:
    @pytest.mark.parametrize("kind", REFUSED)
    def test_another_loader(self, kind: str) -> None:
        options, text = REFUSED[kind]
        state, loader = stop(3), make(**options)
        before = loader.state_dict()
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(state)
        assert loader.state_dict() == before

    def test_another_number_of_streams(self) -> None:
        state = stop(2, 2, dataset=Numbers(40))
        with pytest.raises(ValueError, match="num_workers=2, but this one has num_workers=1"):
            go_on(state, 1, dataset=Numbers(40))

    def test_a_generator_that_is_missing(self) -> None:
        state = stop(3, generator=own_generator())
        with pytest.raises(ValueError, match="drawn from 'generator 0', but this loader has only"):
            go_on(state)

    @pytest.mark.parametrize(
        ("changes", "kind", "text"),
        [
            ({"version": 2}, ValueError, "version=2, but this one has version=1"),
            ({"received": -1}, ValueError, r"state\['received'\] must be at least 0"),
            ({"epoch": "1"}, TypeError, r"state\['epoch'\] must be an integer"),
            ({"base_seed": 1.5}, TypeError, r"state\['base_seed'\] must be an integer"),
            ({"generators": {"torch": ["?"]}}, ValueError, "holds no states of generators"),
            ({"generators": 3}, ValueError, "holds no states of generators"),
        ],
    )
    def test_damaged(self, changes: Any, kind: Any, text: str) -> None:
        with pytest.raises(kind, match=text):
            make().load_state_dict({**stop(3), **changes})

    def test_something_else(self) -> None:
        with pytest.raises(TypeError, match="must be a mapping"):
            make().load_state_dict([1])
        with pytest.raises(ValueError, match="state is none of this kind of loader: it has no"):
            make().load_state_dict({"version": 1})

    def test_a_sampler_that_gives_less(self) -> None:
        state = stop(10, sampler=[1] * 100)
        shorter = iter([1] * 100)

        class Short(list):  # type: ignore[type-arg]
            def __iter__(self) -> Any:
                return iter([next(shorter)] * 8)

        Short.__name__ = "list"
        loader = make(sampler=Short([1] * 100))
        loader.load_state_dict(state)
        for _ in range(2):  # nothing is lost by trying
            with pytest.raises(ValueError, match="gave 2 items, where it had given 10"):
                iter(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_in_order_false(num_workers: int) -> None:
    torch.manual_seed(5)
    whole = passes(2)
    torch.manual_seed(5)
    loader = make(num_workers, in_order=False)
    iterator = iter(loader)
    next(iterator)
    if num_workers:
        with pytest.raises(ValueError, match=r"1 batches of epoch 0 are no state .* two epochs"):
            loader.state_dict()
    else:
        assert loader.state_dict()["received"] == 1
    list(iterator)
    state = through_json(loader)
    loader.close()
    assert go_on(state, num_workers) == [whole[1]]
