"""What is previewed is what training gets, and nothing of the loader moves."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from crumpets_like import TurboDataLoader
from crumpets_like.preview.draws import draw
from crumpets_like.sampling import SubsetSampler
from crumpets_like.workers import ClassificationWorker, ImageWorker, UniformRNG

cv2 = pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

RNG = UniformRNG(angle=(-30, 30), scale=(0.8, 1.5), shift=(-1, 1), hmirror=0.5, noise=(0, 0.1))


class Pictures:
    """Small smooth pictures; a sample's label is its index."""

    def __init__(self, count: int = 11) -> None:
        self.count = count
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        rows, columns = np.mgrid[0:20, 0:24]
        planes = [3 * rows + 9 * index, 5 * columns, rows + columns]
        return {"image": np.stack(planes, axis=-1).astype(np.uint8), "label": index}

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


class Speckled(Pictures):
    """Pictures with a speckle where the global generators say so."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        torch = pytest.importorskip("torch")
        column = (random.random() + np.random.random() + torch.rand(1).item()) / 3
        sample["image"][:, int(24 * column)] = 255
        return sample


def make_worker(**options: Any) -> ClassificationWorker:
    return ClassificationWorker(((3, 16, 16), np.uint8), ((), np.int64), image_rng=RNG, **options)


def make_loader(dataset: Any = None, nworkers: int = 0, **options: Any) -> TurboDataLoader:
    options.setdefault("seed", 3)
    dataset = Pictures() if dataset is None else dataset
    return TurboDataLoader(dataset, 4, make_worker(), nworkers, **options)


def next_epoch(loader: TurboDataLoader) -> dict[str, Any]:
    """All samples of an epoch."""
    batches = [batch for _, mini_batches in loader for batch in mini_batches]
    joined: dict[str, Any] = {
        key: np.concatenate([batch[key] for batch in batches]) for key in ("image", "label")
    }
    return {**joined, "augmentation": [x for batch in batches for x in batch["augmentation"]]}


def assert_first_of(batch: dict[str, Any], epoch: dict[str, Any], count: int) -> None:
    for key in ("image", "label"):
        np.testing.assert_array_equal(batch[key], epoch[key][:count])
    assert list(batch["augmentation"]) == epoch["augmentation"][:count]


@pytest.mark.parametrize("nworkers", [0, 2])
def test_the_first_draw_is_what_the_next_epoch_gives(nworkers: int) -> None:
    with make_loader(nworkers=nworkers, shuffle=True) as loader:
        for number in range(2):
            shown = draw(loader, 6, 2)
            assert shown.epochs == [number, number + 1]
            epoch = next_epoch(loader)
            assert_first_of(shown.batches[0], epoch, 6)
            assert shown.keys == epoch["label"][:6].tolist()
            assert [sample["label"] for sample in shown.samples] == shown.keys


def test_without_shuffle_the_others_are_those_of_later_epochs() -> None:
    with make_loader() as loader:
        shown = draw(loader, 5, 4)
        epochs = [next_epoch(loader) for _ in range(4)]
    for batch, epoch in zip(shown.batches, epochs, strict=True):
        assert_first_of(batch, epoch, 5)
    assert not np.array_equal(shown.batches[0]["image"], shown.batches[1]["image"])


@pytest.mark.parametrize(
    "options",
    [
        {"rank": 1, "world_size": 2, "shuffle": True},
        {"sampler": SubsetSampler([7, 2, 9, 4, 1])},
        {"last_batch": "rollover", "shuffle": True},
        {"length": 7, "shuffle": True},
        {"seed_globals": True, "dataset": Speckled()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_it_is_so_whatever_makes_the_order(options: dict[str, Any]) -> None:
    with make_loader(**options) as loader:
        next_epoch(loader)
        shown = draw(loader, 4, 1)
        assert_first_of(shown.batches[0], next_epoch(loader), 4)


def test_it_goes_on_where_a_state_was_taken() -> None:
    with make_loader(shuffle=True) as loader:
        next(iter(loader))
        state = loader.state_dict()
        loader.load_state_dict(state)
        shown = draw(loader, 4, 1)
        assert_first_of(shown.batches[0], next_epoch(loader), 4)


def test_of_what_an_own_sampler_gives_the_dataset_comes_first() -> None:
    class Untouchable:
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("the sampler was asked")

        def __len__(self) -> int:
            return 11

    shown = draw(make_loader(sampler=Untouchable()), 3, 1)
    with make_loader() as loader:
        assert_first_of(shown.batches[0], next_epoch(loader), 3)
    lists = make_loader(batch_sampler=[[4, 5], [6]])
    assert draw(lists, 3, 1).keys == [0, 1, 2]


def test_keys_of_a_mapping() -> None:
    pictures = Pictures()
    dataset = {name: pictures[number] for number, name in enumerate("abc")}
    shown = draw(make_loader(dataset, sampler=["c", "a"]), 2, 1)
    assert shown.keys == ["a", "b"]
    assert shown.batches[0]["label"] == [0, 1]


def test_nothing_moves() -> None:
    def run(look: bool) -> list[Any]:
        """Two epochs; a preview before, amid and between them must not show."""
        found: list[Any] = []
        with make_loader(shuffle=True) as loader:
            for _ in range(2):
                if look:
                    draw(loader, 3, 2)
                for iteration, (batch,) in loader:
                    found += [iteration, batch["image"].tobytes(), loader.state_dict()]
                    if look:
                        draw(loader, 3, 2)
            found.append(loader.iterations)
        return found

    assert run(look=True) == run(look=False)


def global_states() -> list[Any]:
    torch = pytest.importorskip("torch")
    numpy: Any = np.random.get_state(legacy=False)
    state = numpy["state"]["key"].tolist(), numpy["state"]["pos"]
    return [random.getstate(), *state, torch.get_rng_state().tolist()]


@pytest.mark.parametrize("seed_globals", [False, True])
def test_global_generators_stay_where_they_are(seed_globals: bool) -> None:
    before = global_states()
    draw(make_loader(Speckled(), seed_globals=seed_globals), 3, 2)
    assert global_states() == before


def test_opencv_keeps_its_threads() -> None:
    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(2)
        draw(make_loader(), 1, 1)
        assert cv2.getNumThreads() == 2
    finally:
        cv2.setNumThreads(before)


class Watched(ImageWorker):
    """Tells where it runs."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> Any:
        batch["where"].append((os.getpid(), threading.get_ident(), self.index))
        return super().prepare(sample, batch, buffers)


def test_no_worker_is_started_and_the_template_stays_as_it_is() -> None:
    worker = Watched(((3, 8, 8), np.uint8))
    before = {name: repr(value) for name, value in vars(worker).items()}
    loader = TurboDataLoader(Pictures(), 4, worker, 3)
    shown = draw(loader, 2, 1)
    here = os.getpid(), threading.get_ident()
    assert list(shown.batches[0]["where"]) == [(*here, 0), (*here, 1)]
    assert {name: repr(value) for name, value in vars(worker).items()} == before


def test_a_dataset_is_not_told_of_epochs() -> None:
    dataset = Pictures()
    draw(make_loader(dataset), 2, 3)
    assert dataset.epochs == []


def test_fewer_samples_than_asked_for() -> None:
    assert len(draw(make_loader(Pictures(2)), 9, 1).keys) == 2


def test_failures_are_raised() -> None:
    broken = [*(Pictures()[index] for index in range(2)), {"image": b"no image", "label": 2}]
    for on_error in ("raise", lambda index, error: "skip"):
        with pytest.raises(ValueError, match="image"):
            draw(make_loader(broken, on_error=on_error), 3, 1)


def test_next_samples_take_the_place_of_skipped_ones() -> None:
    whole = [Pictures()[index] for index in range(4)]
    broken = [whole[0], {"image": b"no image", "label": 2}, *whole[2:]]
    shown = draw(make_loader(broken, on_error="skip"), 2, 2)
    assert shown.keys == [0, 2]
    assert [key for key, _ in shown.failed] == [1]
    every = draw(make_loader(whole), 4, 2)
    for mine, others in zip(shown.batches, every.batches, strict=True):
        np.testing.assert_array_equal(mine["image"], np.array(others["image"])[[0, 2]])
    with pytest.raises(ValueError, match="image"):
        draw(make_loader(broken[1:2], on_error="skip"), 2, 2)


def test_an_iterable_is_not_used_up() -> None:
    items = iter([Pictures()[0]])
    with pytest.raises(TypeError, match="would be missing in training"):
        draw(make_loader(items), 1, 1)
    assert len(list(items)) == 1


def test_without_samples_there_is_nothing_to_see() -> None:
    with pytest.raises(ValueError, match="has no samples"):
        draw(make_loader(Pictures(0)), 1, 1)
