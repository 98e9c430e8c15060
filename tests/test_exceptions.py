"""Exceptions of samples reach the caller as what they are, whatever their class is like."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

from crumpets_like import TurboDataLoader, Worker, WorkerError
from tests.support.loading import Items
from tests.support.matrix import PROCESSES


class TwoArguments(Exception):
    def __init__(self, first: int, second: str) -> None:
        super().__init__(first, second)


class Hides(Exception):
    """Its arguments are not those of its constructor."""

    def __init__(self, first: int, second: str) -> None:
        super().__init__(f"{first} and {second}")


class KeywordOnly(Exception):
    def __init__(self, *, number: int) -> None:
        super().__init__()
        self.number = number


class RaisesKeyError(Exception):
    def __init__(self, *arguments: Any) -> None:
        if len(arguments) != 2:
            raise KeyError("constructor")
        super().__init__(f"{arguments}")


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def chained() -> Exception:
    try:
        raise LookupError("the cause")
    except LookupError as cause:
        error = ValueError("the effect")
        error.__cause__ = cause
        error.add_note("a note\non two lines")
        return error


SURVIVE: dict[str, Callable[[], BaseException]] = {
    "two arguments": lambda: TwoArguments(1, "a"),
    "called process": lambda: subprocess.CalledProcessError(3, ["a", "command"], b"out"),
    "key error": lambda: KeyError("k"),
    "group": lambda: ExceptionGroup("several", [ValueError(1), KeyError("k")]),
    "chained": chained,
    "index error": lambda: IndexError("out"),
    "keyboard": lambda: KeyboardInterrupt("pressed"),
    "os error": lambda: FileNotFoundError(2, "No such file", "name"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
}
TEXT: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "hides": (lambda: Hides(1, "b"), "Hides", "1 and b"),
    "keyword-only": (lambda: KeywordOnly(number=4), "KeywordOnly", ""),
    "constructor raises": (lambda: RaisesKeyError(1, 2), "RaisesKeyError", "(1, 2)"),
    "lock": (lambda: HoldsALock("mine"), "HoldsALock", "mine"),
    "stop": (lambda: StopIteration(5), "StopIteration", "5"),
    "generator exit": (lambda: GeneratorExit("over"), "GeneratorExit", "over"),
}


class Raises(Items):
    """Raises one of these at sample 6."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 6:
            raise SURVIVE[self.name]() if self.name in SURVIVE else TEXT[self.name][0]()
        super().prepare(sample, batch, buffers)


def caught(name: str, start_method: str) -> BaseException:
    with TurboDataLoader(range(20), 4, Raises(name), 2, start_method=start_method) as loader:
        seen = []
        try:
            for _, (mini_batch,) in loader:
                seen += mini_batch["item"].tolist()
        except BaseException as error:  # noqa: BLE001  KeyboardInterrupt among others
            assert seen == [0, 1, 2, 3]
            return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("name", list(SURVIVE))
def test_type_and_arguments_survive(name: str, start_method: str) -> None:
    expected = SURVIVE[name]()
    error = caught(name, start_method)
    assert type(error) is type(expected)
    assert repr(error.args) == repr(expected.args)
    trace = str(error.__cause__)
    assert "in prepare\n" in trace, "with real line ends"
    assert "raise SURVIVE[" in trace
    assert "sample with index 6" in trace
    for note in getattr(expected, "__notes__", ()):
        assert note in trace
    if expected.__cause__ is not None:
        assert repr(expected.__cause__.args[0])[1:-1] in trace


@pytest.mark.parametrize("start_method", PROCESSES)
@pytest.mark.parametrize("name", list(TEXT))
def test_what_does_not_survive_keeps_its_text(name: str, start_method: str) -> None:
    _, class_name, text = TEXT[name]
    error = caught(name, start_method)
    assert type(error) is WorkerError
    assert (error.class_name, error.text) == (class_name, text)
    assert "sample with index 6" in str(error)
    assert "in prepare\n    raise SURVIVE" in str(error)
    assert (error.index, error.indices, error.epoch) == (6, (), 0)
    assert error.where.worker_id == error.worker_id in (0, 1)
    assert error.where.pid == error.pid != os.getpid()


class KnowsMore(Items):
    """Raises an exception of a module that only this process has."""

    def prepare(self, sample: Any, batch: Any, buffers: Any) -> None:
        if sample == 6:
            module = types.ModuleType("only_in_the_worker")
            exec("class Odd(Exception): pass", module.__dict__)
            sys.modules["only_in_the_worker"] = module
            raise module.Odd("text", 5)
        super().prepare(sample, batch, buffers)


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_class_that_the_caller_does_not_know(start_method: str) -> None:
    with (
        TurboDataLoader(range(20), 4, KnowsMore(), 2, start_method=start_method) as loader,
        pytest.raises(WorkerError, match=r"^Odd: \('text', 5\)") as caught,
    ):
        list(loader)
    assert (caught.value.class_name, caught.value.index) == ("Odd", 6)
    assert "only_in_the_worker.Odd: " in caught.value.worker_traceback


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class HasTransform(Worker):
    def __init__(self) -> None:
        self.transform = Locked()


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_template_that_cannot_be_pickled(start_method: str) -> None:
    loader = TurboDataLoader(range(8), 4, HasTransform(), 2, start_method=start_method)
    with pytest.raises(TypeError, match=r"worker_template\.transform\.lock cannot be sent"):
        loader.start()


class DatasetWithLock(Locked):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_dataset_that_cannot_be_pickled(start_method: str) -> None:
    loader = TurboDataLoader(DatasetWithLock(), 4, Items(), 2, start_method=start_method)
    with pytest.raises(TypeError, match=r"dataset\.lock cannot be sent"):
        loader.start()


class Shy:
    def __getstate__(self) -> Any:
        raise LookupError("not mine")


class ReturnsShy(Worker):
    def process(self, sample: Any) -> dict[str, Any]:
        return {"it": Shy() if sample == 6 else sample}


@pytest.mark.parametrize("start_method", PROCESSES)
def test_a_result_that_cannot_be_pickled(start_method: str) -> None:
    with (
        TurboDataLoader(range(20), 4, ReturnsShy(), 2, start_method=start_method) as loader,
        pytest.raises(
            pickle.PicklingError, match=r"^result\['it'\] cannot be.*\(not mine\)"
        ) as caught,
    ):
        list(loader)
    assert "sample with index 6." in caught.value.__notes__[0]
    assert "LookupError: not mine" in str(caught.value.__cause__)
