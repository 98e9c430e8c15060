"""The loader of tensors: its arguments, and the CPU, where tensors are views."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
from pickle import PicklingError

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from crumpets_like import BufferExhausted, TurboDataLoader, Worker  # noqa: E402
from crumpets_like.torch import TorchTurboDataLoader  # noqa: E402
from tests.support.devices import Mixed, check_numbers, fork  # noqa: E402
from tests.support.leasing import FreeForm, Listed, Numbers, Rows  # noqa: E402

both = pytest.mark.parametrize("nworkers", [0, 2])


class TestSignature:
    def test_it_is_that_of_the_loader_and_two_more(self):
        names = list(inspect.signature(TurboDataLoader).parameters)
        position = names.index("shared_memory")
        ours = list(inspect.signature(TorchTurboDataLoader).parameters)
        expected = [*names[:position], "device", "gpu_augmentation", "shared_memory", "options"]
        assert ours == expected

    def test_all_options_are_passed_on(self):
        options = {"shuffle": True, "seed": 3, "prefetch": 1, "last_batch": "discard"}
        with fork(Numbers(20), 3, Rows(), 1, **options) as loader:
            ours = [mini_batch["y"].tolist() for _, (mini_batch,) in loader]
        with TurboDataLoader(Numbers(20), 3, Rows(), 0, **options) as loader:
            assert [mini_batch["y"].tolist() for _, (mini_batch,) in loader] == ours
        assert len(ours) == 6

    def test_positions(self):
        loader = TorchTurboDataLoader(Numbers(20), 4, Rows(), 0, 12, 2, 5, "cpu", False, 3)
        with loader:
            assert [iteration for iteration, _ in loader] == [5, 6, 7]
        assert loader._options.buffers == 3

    def test_an_unknown_option(self):
        with pytest.raises(TypeError, match="shuffel"):
            fork(Numbers(20), 3, Rows(), 1, shuffel=True)

    def test_a_device_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"device 'cuda:99' is not there: .* cpu:0"):
            fork(Numbers(20), 3, Rows(), 1, device="cuda:99")

    def test_a_list_of_devices_has_one_for_each_mini_batch(self):
        with pytest.raises(ValueError, match=r"got 1 devices .* num_mini_batches=2"):
            fork(Numbers(20), 4, Rows(), 1, num_mini_batches=2, device=["cpu"])

    def test_without_torch_the_extra_is_named(self):
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "try: import crumpets_like.torch\n"
            "except ImportError as error: print(error)"
        )
        command = [sys.executable, "-c", code]
        printed = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
        assert "pip install 'crumpets-like[torch]'" in printed.stdout


class TestCpu:
    @both
    @pytest.mark.parametrize("worker", [Rows(), Listed(), FreeForm((6,))])
    def test_epochs(self, nworkers, worker):
        with fork(Numbers(21), 4, worker, nworkers, num_mini_batches=2, device="cpu") as loader:
            for _ in range(2):
                seen = 0
                for _, mini_batches in loader:
                    for mini_batch in mini_batches:
                        rows = len(mini_batch["y"])
                        check_numbers(mini_batch, seen, rows)
                        seen += rows
                assert seen == 21

    def test_tensors_are_views_of_the_ring(self):
        with fork(Numbers(8), 4, Rows(), 1, device="cpu") as loader:
            (_, (mini_batch,)) = next(iter(loader))
            ring = loader._engine._parts.ring
            memory = ring.first_slots
            offset = mini_batch["x"].data_ptr() - memory.ctypes.data
            assert 0 <= offset < memory.nbytes
            assert mini_batch["y"].data_ptr() > mini_batch["x"].data_ptr()
            mini_batch["x"] += 1  # they are writable
            assert memory.view(np.int64)[offset // 8] == 1
            del memory, ring

    @both
    def test_a_tensor_keeps_its_buffer_and_no_more(self, nworkers):
        with fork(Numbers(400), 4, Rows(), nworkers, device="cpu") as loader:
            kept = []
            for number, (_, (mini_batch,)) in enumerate(loader):
                if number % 10 == 0:
                    kept.append(mini_batch["x"][1:, 2])
            del mini_batch
            gc.collect()
            assert loader.statistics().buffers_held == len(kept) == 10
        for number, view in enumerate(kept):
            assert view.tolist() == [40 * number + row for row in (1, 2, 3)]

    def test_tensors_outlive_the_loader(self):
        with fork(Numbers(64), 8, Rows(), 2, device="cpu") as loader:
            kept = [mini_batch for _, (mini_batch,) in loader]
        del loader
        gc.collect()
        for number, mini_batch in enumerate(kept):
            check_numbers(mini_batch, 8 * number, 8)
            mini_batch["x"] += 1

    def test_buffers_that_the_caller_holds_are_named(self):
        with fork(Numbers(400), 4, Rows(), 1, device="cpu", max_buffers=3) as loader:
            iterator = iter(loader)
            held = [next(iterator) for _ in range(3)]
            with pytest.raises(BufferExhausted, match="holds 3 mini-batches"):
                next(iterator)
            held.clear()
            next(iterator)

    @both
    def test_lists_and_foreign_dtypes_stay(self, nworkers):
        with fork(Numbers(4), 4, Mixed(), nworkers, device="cpu") as loader:
            (_, (mini_batch,)) = next(iter(loader))
        assert list(mini_batch) == ["small", "when", "name"]
        assert mini_batch["small"].dtype == torch.uint8
        assert mini_batch["when"].tolist() == np.arange(4).astype("M8[D]").tolist()
        assert mini_batch["name"] == ["0", "1", "2", "3"]

    @both
    def test_tensors_that_collate_returns(self, nworkers):
        with fork(Numbers(8), 4, Stacked(), nworkers, device="cpu") as loader:
            for number, (_, (mini_batch,)) in enumerate(loader):
                assert mini_batch["t"].dtype == torch.bfloat16
                assert mini_batch["t"].tolist() == [4 * number + row for row in range(4)]
                assert [t.tolist() for t in mini_batch["list"]] == [[number], [number]]

    def test_default_device(self):
        loader = fork(Numbers(4), 4, Rows(), 0)
        expected = "cuda:0" if torch.cuda.is_available() else "cpu"
        assert loader.devices == (torch.device(expected),)

    @both
    def test_workers_must_not_return_device_tensors(self, nworkers):
        with (
            fork(Numbers(4), 4, Elsewhere(), nworkers) as loader,
            pytest.raises(PicklingError, match="returned a tensor on cuda:0: workers prepare"),
        ):
            next(iter(loader))


class Stacked(Worker):
    def process(self, sample):
        return {"t": torch.tensor(sample, dtype=torch.bfloat16)}

    def collate(self, results):
        stacked = torch.stack([result["t"] for result in results])
        return {"t": stacked, "list": [stacked[:1].int() // 4] * 2}


class Elsewhere(Worker):
    """Returns what looks like a tensor of a GPU."""

    def process(self, sample):
        from crumpets_like.broker import tensors

        class OnGpu:
            device = torch.device("cuda:0")

            def __reduce__(self):
                return tensors._reduce(self)

        return {"x": OnGpu()}
