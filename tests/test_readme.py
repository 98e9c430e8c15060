"""The README's examples run as they stand, and what the pages name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.scenario import run_scenario

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/architecture.md",
    "docs/executor.md",
    "docs/images.md",
    "docs/migrate-gluon.md",
    "docs/migrate-torch.md",
    "docs/migrate.md",
    "docs/reliability.md",
    "docs/resume.md",
    "docs/targets.md",
    "docs/tokens.md",
    "docs/torch.md",
]


def run(code: str, logged: str = "") -> None:
    result = run_scenario(code, options=["-W", "error"]).check()
    lines = result.stderr.splitlines()
    assert [line for line in lines if not logged or not line.startswith(logged)] == []


def test_quick_start() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line]) <= 20
    run(BLOCKS[0])


def test_the_other_examples_go_on_from_it() -> None:
    assert len(BLOCKS) > 5
    code = "\n".join(f"# example {number}\n{code}" for number, code in enumerate(BLOCKS))
    run(code, logged="samples are skipped")


def test_the_examples_of_resuming() -> None:
    text = (ROOT / "docs/resume.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    run("\n".join(block for block in blocks if "torch" not in block))


def test_the_example_of_resuming_the_drop_in_loader() -> None:
    pytest.importorskip("torch")
    text = (ROOT / "docs/resume.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (block,) = [block for block in blocks if "crumpets_like.torch" in block]
    run(block)


def test_the_guide_to_torch() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("cv2")
    guide = (ROOT / "docs/torch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    run("\n".join(blocks))


IMAGES = """
from pathlib import Path
from PIL import Image

for number in range(64):
    folder = Path("train", "ab"[number % 2])
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (50, 40), (3 * number, 0, 0)).save(folder / f"{number}.jpg")
"""


def test_the_guide_to_images() -> None:
    for module in ("cv2", "simplejpeg", "PIL"):
        pytest.importorskip(module)
    guide = (ROOT / "docs/images.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    (command,) = re.findall(r"^crumpets-like (preview .*)$", guide, re.MULTILINE)
    claims = f"""
assert (mini_batch["image"].dtype, mini_batch["image"].shape) == (np.float32, (64, 3, 224, 224))
assert sorted(mini_batch["label"]) == [0] * 32 + [1] * 32
assert len(mini_batch["augmentation"]) == 64
Path("preview.png").unlink()

from crumpets_like.cli import main

assert main({command.split()}) == 0
assert Path("preview.png").is_file()
"""
    run(IMAGES + block + claims)
    assert (ROOT / "docs/preview.png").stat().st_size < 400_000


def test_the_guide_to_executors() -> None:
    pytest.importorskip("torch")
    guide = (ROOT / "docs/executor.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    run("\n".join(blocks))


def test_commands() -> None:
    for command in (
        "pip install -c constraints.txt -e '.[all]' && crumpets-like demo",
        "pip install tox && tox",
    ):
        assert f"```sh\n{command}\n```" in README


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_files_that_the_architecture_names() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(names) > 10
    for name in names:
        assert (ROOT / "crumpets_like" / name).is_file(), name
