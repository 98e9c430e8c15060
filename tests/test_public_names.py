"""What can be imported is what is promised."""

import inspect

import pytest

import crumpets_like
from crumpets_like import broker, dataloader, errors


@pytest.mark.parametrize("module", [crumpets_like, broker, dataloader, errors])
def test_names_are_sorted_and_there(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(names)
    assert all(hasattr(module, name) for name in names)


def test_signature_of_the_loader() -> None:
    parameters = inspect.signature(crumpets_like.TurboDataLoader).parameters
    required = ["iterable", "batch_size", "worker_template", "nworkers"]
    defaults = {
        "length": None,
        "num_mini_batches": 1,
        "start_iteration": 0,
        "shared_memory": True,
        "shuffle": False,
        "seed": None,
        "sampler": None,
        "batch_sampler": None,
        "last_batch": "keep",
        "in_order": True,
        "prefetch": None,
        "timeout": 120.0,
        "on_error": "raise",
        "start_method": None,
        "max_buffers": None,
        "seed_globals": False,
    }
    assert list(parameters) == required + list(defaults)
    assert {name: parameters[name].default for name in defaults} == defaults
    assert parameters["shuffle"].kind is inspect.Parameter.KEYWORD_ONLY
