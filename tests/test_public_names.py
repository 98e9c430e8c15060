"""What the package promises: its names, and the signatures of its front door."""

import importlib
import inspect
import subprocess
import sys

import pytest

from crumpets_like.dataloader import Consumer, TurboDataLoader

LAZY = ["crumpets_like", "crumpets_like.broker"]


@pytest.mark.parametrize("name", [*LAZY, "crumpets_like.torch", "crumpets_like.torch.executor"])
def test_public_names_are_there(name):
    if name not in LAZY:
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    for public in module.__all__:
        value = getattr(module, public)
        assert value.__name__ == public
        assert value is getattr(importlib.import_module(value.__module__), public)
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'Typo'"):
        module.Typo  # noqa: B018


@pytest.mark.parametrize("name", [*LAZY, "crumpets_like.broker.server"])
def test_what_starts_first_does_not_wait_for_numpy(name):
    code = f"import {name}, sys; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_all_of_workers():
    pytest.importorskip("cv2")
    module = importlib.import_module("crumpets_like.workers")
    public = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]
    assert module.__all__ == sorted(public)


def test_names_of_the_front_door():
    module = importlib.import_module("crumpets_like.dataloader")
    names = ["Consumer", "Slicer", "TurboDataLoader"]
    assert module.__all__ == [*names, "make_addresses", "remove_files", "remove_ipc_handles"]
    assert all(inspect.getdoc(getattr(module, name)) for name in module.__all__)


POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
KEYWORD = inspect.Parameter.KEYWORD_ONLY
REQUIRED = inspect.Parameter.empty


def parameters(function):
    return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]


def test_signature_of_the_loader():
    positional = {
        "iterable": REQUIRED,
        "batch_size": REQUIRED,
        "worker_template": REQUIRED,
        "nworkers": REQUIRED,
        "length": None,
        "num_mini_batches": 1,
        "start_iteration": 0,
        "shared_memory": True,
    }
    keyword = {
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
        "restarts": None,
        "worker_threads": 1,
        "rank": None,
        "world_size": None,
        "uneven": "pad",
    }
    expected = [(*item, POSITIONAL) for item in positional.items()]
    assert parameters(TurboDataLoader) == expected + [(*item, KEYWORD) for item in keyword.items()]


def test_signature_of_the_consumer():
    expected = {
        "result_address": REQUIRED,
        "control_address": REQUIRED,
        "recv_timeout": 1000,
        "bind": True,
    }
    positional = [(*item, POSITIONAL) for item in expected.items()]
    assert parameters(Consumer) == [*positional, ("token", b"", KEYWORD)]
