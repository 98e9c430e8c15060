"""What becomes of samples that fail: raised, skipped, or replaced by others."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from crumpets_like import BufferWorker, TurboDataLoader, Worker, WorkerDied

BAD = {5, 8, 9, 10, 11}  # one of [4..7], all of [8..11]
GOOD = [[0, 1, 2, 3], [4, 6, 7], [12, 13, 14, 15], [16, 17]]

everywhere = pytest.mark.parametrize(
    ("nworkers", "start_method"), [(0, "fork"), (2, "fork"), (1, "thread")]
)


class Data:
    """Numbers, some of which cannot be read."""

    def __init__(self, n: int = 18, bad: Any = BAD) -> None:
        self.n = n
        self.bad = bad

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise ValueError(f"bad {index}")
        return index


class ManyAtOnce(Data):
    """The same, read in chunks."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Fields(BufferWorker):
    """A small array, a list, a draw; `rows` makes the array too large for scratch memory."""

    def __init__(self, size: int = 2, fill: Any = None) -> None:
        super().__init__()
        self.add_buffer("item", ((size,), np.int64, fill))

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        batch["name"].append(str(sample))
        batch["draw"].append(float(self.rng.random()))
        buffers["item"][:1] = sample


class BulkFields(Fields):
    """The same for a whole chunk."""

    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        batch["name"] += [str(sample) for sample in samples]
        batch["draw"] += [float(rng.random()) for rng in self.rngs]
        buffers["item"][:, 0] = samples


class FreeForm(Worker):
    """The same without buffers."""

    def process(self, sample: Any) -> dict[str, Any]:
        item = np.full(2, sample)
        return {"item": item, "name": str(sample), "draw": np.float64(self.rng.random())}


class Collates(FreeForm):
    """The same with a collate of its own, so one worker makes the whole mini-batch."""

    def collate(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "item": np.stack([result["item"] for result in results]),
            "name": [result["name"] for result in results],
            "draw": [result["draw"] for result in results],
        }


WORKERS = {
    "small": Fields,
    "large": lambda: Fields(1000),
    "filled": lambda: Fields(2, 7),
    "bulk": BulkFields,
    "free": FreeForm,
    "collate": Collates,
}


def load(dataset: Any, worker: Any, nworkers: int, start_method: str, **options: Any) -> Any:
    defaults = {"on_error": "skip", "seed": 3, "start_method": start_method}
    return TurboDataLoader(dataset, 4, worker, nworkers, **{**defaults, **options})


def epoch(loader: TurboDataLoader) -> list[tuple[list[int], list[str], list[float]]]:
    return [
        (batch["item"][:, 0].tolist(), list(batch["name"]), [float(x) for x in batch["draw"]])
        for _, mini_batches in loader
        for batch in mini_batches
    ]


class TestSkip:
    @everywhere
    @pytest.mark.parametrize("kind", list(WORKERS))
    @pytest.mark.parametrize("dataset", [Data, ManyAtOnce])
    def test_rows_and_lists_are_closed_up(
        self, dataset: Any, kind: str, nworkers: int, start_method: str
    ) -> None:
        with load(Data(bad=()), WORKERS[kind](), nworkers, start_method) as loader:
            draws = [draw for _, _, found in epoch(loader) for draw in found]
        with load(dataset(), WORKERS[kind](), nworkers, start_method) as loader:
            batches = epoch(loader)
            statistics = loader.statistics()
        assert [items for items, _, _ in batches] == GOOD
        for items, names, found in batches:
            assert names == [str(item) for item in items]
            assert found == [draws[item] for item in items]
        assert (statistics.samples, statistics.skipped) == (13, 5)

    @pytest.mark.parametrize("kind", ["small", "large", "bulk", "free"])
    def test_arrays_in_messages(self, kind: str) -> None:
        with load(Data(), WORKERS[kind](), 2, "fork", shared_memory=False) as loader:
            assert [items for items, _, _ in epoch(loader)] == GOOD

    @everywhere
    @pytest.mark.parametrize("kind", ["small", "bulk", "free"])
    def test_samples_that_travel(self, kind: str, nworkers: int, start_method: str) -> None:
        class Refuses(WORKERS[kind]):  # type: ignore[misc, valid-type]
            def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
                if sample in BAD:
                    raise ValueError
                super().prepare(sample, batch, buffers)

            def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
                if BAD & set(samples):
                    raise ValueError
                super().prepare_batch(samples, batch, buffers)

            def process(self, sample: Any) -> Any:
                if sample in BAD:
                    raise ValueError
                return super().process(sample)

        if kind == "small":
            del Refuses.prepare_batch
        with load(iter(range(18)), Refuses(), nworkers, start_method) as loader:
            assert [items for items, _, _ in epoch(loader)] == GOOD

    @everywhere
    def test_an_empty_mini_batch_is_left_out(self, nworkers: int, start_method: str) -> None:
        data = Data(12, bad={0, 1, 5, 8, 9, 10, 11})
        with load(data, Fields(), nworkers, start_method, num_mini_batches=2) as loader:
            found = [
                (iteration, [batch["item"][:, 0].tolist() for batch in mini_batches])
                for iteration, mini_batches in loader
            ]
            assert found == [(0, [[2, 3]]), (1, [[4], [6, 7]])]
            assert loader.iterations == 2

    @everywhere
    def test_nothing_is_left(self, nworkers: int, start_method: str) -> None:
        with load(Data(bad=range(18)), Fields(), nworkers, start_method) as loader:
            assert epoch(loader) == []
            assert epoch(loader) == []
            assert loader.statistics().skipped == 36

    def test_appends_of_a_failed_sample_are_undone(self) -> None:
        class Late(Fields):
            def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
                super().prepare(sample, batch, buffers)
                if sample == 0:
                    batch["only here"].append(sample)
                    raise ValueError
                if sample == 6:
                    raise ValueError

        with load(Data(8, ()), Late(), 0, "fork") as loader:
            (first, second) = [mini_batches[0] for _, mini_batches in loader]
        assert first.keys() == {"item", "name", "draw"}
        assert (first["name"], second["name"]) == (["1", "2", "3"], ["4", "5", "7"])

    @pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
    def test_only_exceptions(self, error: type[BaseException]) -> None:
        class Interrupts(Fields):
            def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
                raise error

        with load(Data(), Interrupts(), 0, "fork") as loader, pytest.raises(error):
            epoch(loader)


class TestCallable:
    @everywhere
    @pytest.mark.parametrize("kind", list(WORKERS))
    @pytest.mark.parametrize("dataset", [Data, ManyAtOnce])
    def test_another_sample(
        self, dataset: Any, kind: str, nworkers: int, start_method: str
    ) -> None:
        def instead(index: int, error: Exception) -> Any:
            assert str(error) == f"bad {index}"
            return "skip" if index == 9 else 100 + index

        with load(Data(bad=()), WORKERS[kind](), nworkers, start_method) as loader:
            draws = [draw for _, _, found in epoch(loader) for draw in found]
        worker = WORKERS[kind]()
        with load(dataset(), worker, nworkers, start_method, on_error=instead) as loader:
            batches = epoch(loader)
        items = [item for found, _, _ in batches for item in found]
        expected = [100 + n if n in BAD else n for n in range(18) if n != 9]
        assert items == expected
        assert [name for _, names, _ in batches for name in names] == [str(n) for n in expected]
        assert [x for _, _, found in batches for x in found] == [draws[n % 100] for n in expected]

    @everywhere
    def test_none_raises(self, nworkers: int, start_method: str) -> None:
        seen: list[int] = []
        options = {"on_error": lambda index, error: seen.append(index)}
        with (
            load(Data(), Fields(), nworkers, start_method, **options) as loader,
            pytest.raises(ValueError, match="bad 5"),
        ):
            epoch(loader)
        assert seen[:1] in ([], [5])  # in the worker's process, or here

    @everywhere
    def test_its_own_error(self, nworkers: int, start_method: str) -> None:
        def fails(index: int, error: Exception) -> Any:
            raise LookupError("mine")

        with (
            load(Data(), Fields(), nworkers, start_method, on_error=fails) as loader,
            pytest.raises(LookupError, match="mine"),
        ):
            epoch(loader)

    def test_a_replacement_that_fails_is_an_error(self) -> None:
        with (
            load(Data(), Fields(), 0, "fork", on_error=lambda *_: "no number") as loader,
            pytest.raises(ValueError, match="no number"),
        ):
            epoch(loader)

    def test_the_row_of_a_replacement_is_filled_anew(self) -> None:
        class Spills(Fields):
            def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
                if sample == 1:
                    buffers["item"][...] = 99
                    raise ValueError
                super().prepare(sample, batch, buffers)

        worker = Spills(2, 7)
        with load(Data(4, ()), worker, 0, "fork", on_error=lambda *_: 50) as loader:
            ((_, (batch,)),) = list(loader)
        assert batch["item"].tolist() == [[0, 7], [50, 7], [2, 7], [3, 7]]

    def test_samples_of_an_iterable_are_counted(self) -> None:
        seen: list[Any] = []

        def note(index: Any, error: Exception) -> str:
            seen.append(index)
            return "skip"

        class Refuses(Fields):
            def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
                raise ValueError

        with load(iter(range(3)), Refuses(), 0, "fork", on_error=note) as loader:
            assert epoch(loader) == []
        assert seen == [0, 1, 2]


class Deadly(Fields):
    """Sample 17 ends every worker."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare(sample, batch, buffers)


class DeadlyBulk(BulkFields):
    """The same for a whole chunk; only a chunk of it alone tells whose fault it is."""

    def prepare_batch(self, samples: Any, batch: Any, buffers: Any) -> None:
        if 17 in list(samples):
            self._crumpets_current.cell[0] = 17
            os.kill(os.getpid(), signal.SIGKILL)
        super().prepare_batch(samples, batch, buffers)


class DeadlyFree(FreeForm):
    def process(self, sample: Any) -> dict[str, Any]:
        if sample == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().process(sample)


class DeadlyCollates(DeadlyFree, Collates):
    pass


class TestDeaths:
    @pytest.mark.parametrize("worker", [Deadly, DeadlyBulk, DeadlyFree, DeadlyCollates])
    def test_skip(self, worker: Any) -> None:
        with load(Data(64, ()), worker(), 4, "fork") as loader:
            items = [item for found, _, _ in epoch(loader) for item in found]
            assert items == [n for n in range(64) if n != 17]
            assert loader.statistics().skipped == 1

    def test_another_sample(self) -> None:
        def instead(index: int, error: Exception) -> int:
            assert isinstance(error, WorkerDied)
            assert error.index == index == 17
            return 1000

        with load(Data(64, ()), Deadly(), 2, "fork", on_error=instead) as loader:
            items = [item for found, _, _ in epoch(loader) for item in found]
            assert items == [1000 if n == 17 else n for n in range(64)]

    def test_none_raises(self) -> None:
        with (
            load(Data(64, ()), Deadly(), 2, "fork", on_error=lambda *_: None) as loader,
            pytest.raises(WorkerDied) as caught,
        ):
            epoch(loader)
        assert (caught.value.index, caught.value.epoch, caught.value.batch) == (17, 0, 4)


@pytest.mark.parametrize("value", ["ignore", None, 3, b"skip"])
def test_unknown(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^on_error must be 'raise', 'skip' or callable, got"):
        load(Data(), Fields(), 0, "fork", on_error=value)
