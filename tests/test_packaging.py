"""What gets installed: metadata, mapped folders, type marker, cheap import."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.metadata import entry_points, metadata, requires
from importlib.util import find_spec
from pathlib import Path

import pytest

import crumpets_like
from tests.support.scenario import run_scenario

ROOT = Path(__file__).resolve().parents[1]


def names(extra: str | None) -> set[str]:
    """Names of the distributions that an extra, or the bare package, requires."""
    found = set()
    for line in requires("crumpets-like") or []:
        requirement, _, marker = line.partition(";")
        match = re.search(r"extra == ['\"](\w+)['\"]", marker)
        if (match and match.group(1)) == extra:
            found.add(re.split(r"[<>=!~ ]", requirement.strip())[0].lower())
    return found


def test_version_has_a_single_source() -> None:
    assert metadata("crumpets-like")["Version"] == crumpets_like.__version__


def test_requirements() -> None:
    core = {"pyzmq", "numpy", "msgpack", "msgpack-numpy", "cloudpickle", "psutil"}
    assert names(None) == core
    image = {"opencv-python-headless", "simplejpeg", "pillow"}
    assert names("torch") == {"torch"}
    assert names("image") == image
    assert names("kornia") == {"torch", "kornia"}
    assert names("demo") == {"scikit-learn", "tqdm"}
    assert names("all") == {"torch", "kornia", "scikit-learn", "tqdm"} | image
    assert metadata("crumpets-like")["Requires-Python"] == ">=3.11"


def test_mapped_folders() -> None:
    for name in ("workers", "benchmarks"):
        module = importlib.import_module(f"crumpets_like.{name}")
        assert module.__name__ == f"crumpets_like.{name}"
        assert module.__file__ is not None
        assert Path(module.__file__).parent.resolve() == ROOT / name


@pytest.mark.parametrize("folder", [ROOT, ROOT / "tests", Path("/")])
def test_mapped_folders_are_found_from_everywhere(folder: Path) -> None:
    code = "import crumpets_like.workers as w, crumpets_like.benchmarks as b; print('found')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("found\n", "")


def test_type_marker() -> None:
    spec = find_spec("crumpets_like")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").is_file()


def test_console_script() -> None:
    (script,) = entry_points(group="console_scripts", name="crumpets-like")
    assert script.load() is importlib.import_module("crumpets_like.cli").main
    for command in (["crumpets-like"], [sys.executable, "-m", "crumpets_like"]):
        if command[0] == "crumpets-like":
            command = [str(Path(sys.executable).with_name("crumpets-like"))]
        done = subprocess.run(
            [*command, "--help"], capture_output=True, text=True, timeout=60, check=True
        )
        assert "demo" in done.stdout
        assert "bench" in done.stdout


def test_public_names_are_sorted_and_exist() -> None:
    for name in ("crumpets_like", "crumpets_like.broker", "crumpets_like.dataloader"):
        module = importlib.import_module(name)
        assert list(module.__all__) == sorted(module.__all__)
        assert all(hasattr(module, public) for public in module.__all__)


def test_import_is_cheap() -> None:
    code = """
import sys
import crumpets_like
heavy = {"torch", "cv2", "PIL", "sklearn", "psutil", "cloudpickle", "simplejpeg", "tqdm"}
print(sorted(heavy.intersection(sys.modules)))
"""
    assert run_scenario(code).check().stdout == "[]\n"
