import os
import random
import subprocess
import sys
import textwrap
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crumpets_like.seeding import (
    SampleRNG,
    check_seed,
    entropy_seed,
    preserve_globals,
    seed_globals,
    seed_sequence,
    seed_worker_globals,
)

words = st.integers(0, 2**64 - 1)


def draw_all(generator):
    """Draw through every path that could keep something back: 32 bits, normals, doubles."""
    return (
        generator.integers(0, 2**20, dtype=np.uint32),
        generator.normal(),
        generator.random(3).tolist(),
        generator.integers(0, 2**60),
        generator.permutation(5).tolist(),
    )


def draw_globals():
    return random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn())


@pytest.fixture
def caller_globals():
    """Leave this process's own generators alone."""
    with preserve_globals():
        yield


class TestCheckSeed:
    @pytest.mark.parametrize("seed", [0, 7, 2**200, np.int64(5)])
    def test_integers_pass(self, seed):
        assert check_seed(seed) == seed
        assert type(check_seed(seed)) is int

    @pytest.mark.parametrize("seed", [1.5, "4", None, True, [1]])
    def test_no_integer(self, seed):
        with pytest.raises(TypeError, match="seed must be an integer, got"):
            check_seed(seed)

    def test_negative(self):
        with pytest.raises(ValueError, match="seed must not be negative, got -3"):
            check_seed(-3)


class TestEntropySeed:
    def test_range_and_freshness(self):
        seeds = [entropy_seed() for _ in range(64)]
        assert len(set(seeds)) == 64
        assert all(0 <= seed < 2**63 for seed in seeds)
        assert max(seeds) > 2**60


class TestSeedSequence:
    def test_uses_and_numbers_do_not_collide(self):
        # SeedSequence itself pads with zeros: 5 and (5, 0) are one, as are 2**32 + 5 and (5, 1).
        sequences = [seed_sequence(seed, "a") for seed in (5, 2**32 + 5, 2**64 + 5)]
        sequences += [seed_sequence(5, "a", n) for n in (0, 1, 2**32)]
        sequences += [seed_sequence(5, "b", n) for n in (0, 1)]
        sequences += [np.random.SeedSequence(5), np.random.SeedSequence(5).spawn(1)[0]]
        assert len({tuple(s.generate_state(4)) for s in sequences}) == len(sequences)


class TestSampleRNG:
    def test_one_generator(self):
        rng = SampleRNG(0)
        assert rng.seek(0, 1) is rng.generator
        assert rng.seek(1, 0) is rng.generator

    @settings(deadline=None)
    @given(seed=st.integers(0, 2**130), epoch=words, position=words, detour=words)
    def test_depends_on_nothing_else(self, seed, epoch, position, detour):
        first, second = SampleRNG(seed), SampleRNG(seed)
        expected = draw_all(first.seek(epoch, position))
        second.seek(detour, position).integers(0, 9, dtype=np.uint32)  # half a word is left over
        second.generator.random(3)
        assert draw_all(second.seek(epoch, position)) == expected
        assert draw_all(second.seek(epoch, position)) == expected

    @pytest.mark.parametrize("draws", range(1, 6))
    def test_leftover_words_are_forgotten(self, draws):
        rng = SampleRNG(3)
        expected = rng.seek(0, 1).integers(0, 2**32, 8, dtype=np.uint32).tolist()
        rng.seek(0, 0).integers(0, 2**32, draws, dtype=np.uint32)
        assert rng.seek(0, 1).integers(0, 2**32, 8, dtype=np.uint32).tolist() == expected

    def test_every_coordinate_matters(self):
        values = [
            SampleRNG(seed).seek(epoch, position).random()
            for seed in (0, 1, 2**64)
            for epoch in (0, 1, 2**40)
            for position in (0, 1, 2**40)
        ]
        assert len(set(values)) == 27

    def test_many_positions_are_distinct_and_uniform(self):
        rng = SampleRNG(0)
        values = np.array([rng.seek(e, p).random() for e in range(4) for p in range(5000)])
        assert len(np.unique(values)) == values.size
        counts = np.histogram(values, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 60  # chi square of 19 degrees of freedom
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03

    def test_streams_do_not_overlap(self):
        rng = SampleRNG(0)
        streams = [set(rng.seek(0, p).integers(0, 2**63, 1000).tolist()) for p in range(8)]
        assert len(set.union(*streams)) == 8000

    def test_same_as_a_philox_at_that_counter(self):
        state = SampleRNG(9).generator.bit_generator.state
        bits = np.random.Philox(counter=[0, 0, 17, 3], key=state["state"]["key"])
        expected = np.random.Generator(bits).random(9)
        assert SampleRNG(9).seek(3, 17).random(9).tolist() == expected.tolist()

    def test_bad_seed(self):
        with pytest.raises(ValueError, match="seed"):
            SampleRNG(-1)


@pytest.mark.usefixtures("caller_globals")
class TestSeedGlobals:
    def test_depends_on_nothing_else(self):
        seed_globals(5, 1, 2)
        expected = draw_globals()
        seed_globals(5, 1, 3)
        random.gauss(0, 1)  # these keep a second value for the next call
        np.random.randn()
        seed_globals(5, 1, 2)
        assert draw_globals() == expected

    def test_every_coordinate_matters(self):
        values = []
        for coordinates in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**64, 0, 0), (0, 1, 1)]:
            seed_globals(*coordinates)
            values.append(draw_globals())
        for column in zip(*values, strict=True):
            assert len(set(column)) == len(values)

    def test_samples_are_distinct_and_uncorrelated(self):
        rows = []
        for position in range(2000):
            seed_globals(0, 0, position)
            rows.append((random.random(), float(np.random.rand())))
        columns = np.array(rows).T
        assert all(len(np.unique(column)) == 2000 for column in columns)
        assert all(abs(column.mean() - 0.5) < 0.03 for column in columns)
        assert abs(np.corrcoef(columns)[0, 1]) < 0.08  # random and numpy differ too
        assert all(abs(np.corrcoef(c[:-1], c[1:])[0, 1]) < 0.08 for c in columns)

    def test_torch(self):
        torch = pytest.importorskip("torch")
        values = []
        for position in (0, 1, 2, 0):
            seed_globals(2**63 - 1, 7, position)
            values.append((torch.rand(()).item(), torch.randn(()).item()))
        assert values[0] == values[3]
        assert len(set(values)) == 3


@pytest.mark.usefixtures("caller_globals")
class TestSeedWorkerGlobals:
    def test_workers_differ_and_repeat(self):
        values = []
        for worker_id in [*range(8), 0]:
            seed_worker_globals(3, worker_id)
            values.append(draw_globals())
        assert len(set(values)) == 8
        assert values[0] == values[8]

    def test_differs_from_the_seed_of_a_sample(self):
        seed_worker_globals(3, 0)
        worker = draw_globals()
        seed_globals(3, 0, 0)
        assert not set(worker) & set(draw_globals())

    def test_torch(self):
        torch = pytest.importorskip("torch")
        values = set()
        for worker_id in range(8):
            seed_worker_globals(3, worker_id)
            values.add(torch.rand(()).item())
        assert len(values) == 8


class TestPreserveGlobals:
    def test_states_come_back(self):
        random.gauss(0, 1)
        np.random.randn()  # both now keep a second normal value
        with preserve_globals():
            expected = draw_globals()
        with preserve_globals():
            seed_globals(1, 2, 3)
            draw_globals()
        assert draw_globals() == expected

    def test_after_an_error(self):
        with preserve_globals():
            expected = draw_globals()
        with suppress(KeyError), preserve_globals():
            seed_globals(1, 2, 3)
            raise KeyError
        assert draw_globals() == expected

    def test_nested(self):
        with preserve_globals():
            expected = draw_globals()
        with preserve_globals(), preserve_globals():
            seed_globals(1, 2, 3)
        assert draw_globals() == expected

    def test_torch(self):
        torch = pytest.importorskip("torch")
        torch.randn(())
        with preserve_globals():
            expected = torch.randn(3).tolist()
        with preserve_globals():
            seed_globals(1, 2, 3)
        assert torch.randn(3).tolist() == expected


def test_torch_is_neither_imported_nor_needed():
    code = """
        import sys
        from crumpets_like.seeding import *
        with preserve_globals():
            seed_globals(1, 2, 3)
            seed_worker_globals(1, 2)
        assert "torch" not in sys.modules
    """
    run_python(code)


def test_torch_imported_inside_does_not_keep_the_seed_of_a_sample():
    pytest.importorskip("torch")
    code = """
        from crumpets_like.seeding import *
        with preserve_globals():
            import torch
            seed_globals(1, 2, 3)
            seeded = torch.default_generator.get_state()
        assert not torch.equal(torch.default_generator.get_state(), seeded)
    """
    run_python(code)


def run_python(code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=60, env=environment
    )
