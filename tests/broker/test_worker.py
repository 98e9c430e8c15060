import copy
import pickle

import numpy as np
import pytest

from crumpets_like.broker import BufferSpec, BufferWorker, Worker


class TestBuffers:
    def test_every_form(self):
        worker = BufferWorker()
        worker.add_buffer("image", ((3, 8, 8), np.uint8))
        worker.add_buffer("label", ((), np.int64, -1))
        worker.add_buffer("mask", np.ones((2, 2), bool))
        worker.add_buffer("spec", BufferSpec((5,), "f4"))
        assert list(worker.buffer_specs) == ["image", "label", "mask", "spec"]
        assert worker.buffer_specs["label"] == BufferSpec((), np.int64, -1)
        assert worker.buffer_specs["mask"].given_fill

    def test_each_key_once(self):
        worker = BufferWorker()
        worker.add_buffer("x", ((), "u1"))
        with pytest.raises(ValueError, match=r"'x' has a buffer already: BufferSpec\(\(\), uint8"):
            worker.add_buffer("x", ((), "u1"))

    def test_keys_are_strings(self):
        with pytest.raises(TypeError, match="key must be a string, got 5"):
            BufferWorker().add_buffer(5, ((), "u1"))

    @pytest.mark.parametrize(
        ("buffer", "error"),
        [
            (5, TypeError),
            (((-1,), "u1"), ValueError),
            (((), object), TypeError),
            (((), "u1", 300), ValueError),
        ],
    )
    def test_errors_name_the_buffer(self, buffer, error):
        with pytest.raises(error, match=r"^buffer 'image': "):
            BufferWorker().add_buffer("image", buffer)

    def test_forgotten_super(self):
        class Forgets(BufferWorker):
            def __init__(self):
                pass

        for use in (
            lambda worker: worker.add_buffer("x", ((), "u1")),
            lambda worker: worker.add_params("x", 1),
            lambda worker: worker.buffer_specs,
            lambda worker: worker.params,
        ):
            with pytest.raises(TypeError, match=r"Forgets\.__init__ must call super"):
                use(Forgets())

    def test_prepare_must_be_there(self):
        class Empty(BufferWorker):
            pass

        with pytest.raises(NotImplementedError, match=r"Empty must override prepare\(sample"):
            Empty().prepare(None, {}, {})


class TestParams:
    def test_default_where_none(self):
        worker = BufferWorker()
        worker.add_params("a", 1, 2)
        worker.add_params("b", None, 2)
        worker.add_params("c", None)
        worker.add_params("d", 0, 2)
        assert worker.params == {"a": 1, "b": 2, "c": None, "d": 0}


class TestFreeForm:
    def test_dicts_pass(self):
        sample = {"a": 1}
        assert Worker().process(sample) is sample

    def test_others_need_an_own_process(self):
        with pytest.raises(TypeError, match="the sample is a int, not a dict"):
            Worker().process(5)

    def test_collate(self):
        results = [{"x": np.arange(2), "n": 1, "s": "a"}, {"x": np.arange(2), "n": 2, "s": "b"}]
        joined = Worker().collate(results)
        assert joined["x"].shape == (2, 2)
        assert joined["n"].tolist() == [1, 2]
        assert joined["s"] == ["a", "b"]

    def test_every_sample_has_the_same_keys(self):
        results = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}]
        with pytest.raises(ValueError, match=r"keys \['a'\] for sample 2 .*\['a', 'b'\] for"):
            Worker().collate(results)


class TestOutsideOfTheLoader:
    @pytest.mark.parametrize("make", [Worker, BufferWorker])
    def test_attributes(self, make):
        worker = make()
        assert (worker.worker_id, worker.epoch, worker.index, worker.indices) == (-1, 0, -1, None)
        with pytest.raises(RuntimeError, match="belongs to a sample"):
            worker.rng  # noqa: B018
        with pytest.raises(RuntimeError, match="only defined in prepare_batch"):
            worker.rngs  # noqa: B018

    @pytest.mark.parametrize("make", [Worker, BufferWorker])
    def test_hooks_may_be_left_out(self, make):
        worker = make()
        worker.setup()
        worker.start_epoch(3)
        worker.teardown()

    @pytest.mark.parametrize(
        "how", [copy.copy, copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))]
    )
    def test_copies(self, how):
        worker = BufferWorker()
        worker.add_buffer("x", ((2,), "f4", [1, 2]))
        worker.add_params("p", [1])
        made = how(worker)
        assert made.buffer_specs == worker.buffer_specs
        assert made.params == {"p": [1]}
        rows = np.zeros((1, 2), "f4")
        made.buffer_specs["x"].fill(rows)
        assert rows.tolist() == [[1, 2]]
