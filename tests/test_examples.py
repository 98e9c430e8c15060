"""Every example runs as a user would run it, and says what it should."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

EXPECTED = {
    "ddp_training.py": (
        r"2 processes, 300 batches of 25 in 5 epochs\ntest accuracy (9\d|100)\.\d%\n"
    ),
    "executor_training.py": (
        r"loss 2\.\d{3} at first, [01]\.\d{3} after 100 steps\n"
        r"the plain loop's losses, to the last bit: True\n"
    ),
    "image_folder.py": (
        r"1437 and 360 images, 10 classes\n"
        r"(epoch [0-4]: loss \d\.\d{3}\n){5}"
        r"test accuracy (9\d|100)\.\d%\n"
    ),
    "kornia_augmentation.py": (
        r"RandAugment: 4 mini-batches, none and two workers agree bit by bit: True\n"
        r"TrivialAugment: 4 mini-batches, none and two workers agree bit by bit: True\n"
        r"MixUp: \d of 8 images mixed, loss \d\.\d\d\n"
        r"CutMix: \d of 8 images mixed, loss \d\.\d\d\n"
    ),
    "lightning_datamodule.py": (
        r"two runs of 13 and 17 steps\nthe same batches as in one run: True\n"
    ),
    "own_augmentation.py": (
        r"200 windows of 32 x 32, mean grey \d+\.\d\n"
        r"one and three workers agree bit by bit: True\n"
    ),
    "own_image_worker.py": (
        r"40 pictures of 96 x 96, \d+ with holes\n"
        r"one and three workers agree bit by bit: True\n"
    ),
    "plain_loop.py": r"(epoch [01]: energy 64000, wave \d+ came last\n){2}",
    "resume.py": (
        r"stopped after 40 batches, state: \d{3} bytes\n"
        r"a new process went on with 60 batches\n"
        r"the same bits as without a stop: True\n"
    ),
    "saliency.py": (
        r"(epoch [0-3]: loss \d\.\d{3}, \d{5} points, 5120 NaN\n){4}"
        r"(correlation with the map of all people: (0\.[6-9]\d|1\.00)\n){2}"
    ),
    "segmentation.py": (
        r"(epoch [0-3]: loss \d\.\d{3}\n){4}"
        r"((rest|orange|sky): intersection over union ([7-9]\d|100)%\n){3}"
    ),
    "tokens.py": (
        r"2000 documents in \d{3} rows of 128 tokens, (99|100)\.\d% full\n"
        r"(epoch [01]: \d+% of the next tokens right\n){2}"
        r"epoch 2: (9[5-9]|100)% of the next tokens right\n"
    ),
    "torch_training.py": r"(epoch [0-4]: loss \d\.\d{3}\n){5}test accuracy (9\d|100)\.\d%\n",
    "torch_turbo.py": r"(epoch [0-4]: \d+% right\n){5}epoch 5: 9\d% right\n",
}
"""What each example prints, in full."""

NEEDS = {
    "ddp_training.py": ("torch", "sklearn"),
    "executor_training.py": ("torch", "sklearn", "cv2", "simplejpeg", "tqdm"),
    "image_folder.py": ("torch", "sklearn", "cv2", "simplejpeg"),
    "kornia_augmentation.py": ("torch", "sklearn", "cv2", "simplejpeg", "kornia"),
    "own_image_worker.py": ("sklearn", "cv2", "simplejpeg"),
    "saliency.py": ("torch", "sklearn", "cv2", "simplejpeg", "PIL"),
    "segmentation.py": ("torch", "sklearn", "cv2", "simplejpeg", "PIL"),
    "tokens.py": ("torch",),
    "torch_training.py": ("torch", "sklearn"),
    "torch_turbo.py": ("torch",),
}


def test_every_example_is_tested() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_example(name: str, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert re.fullmatch(EXPECTED[name], run.stdout), run.stdout


def test_kornia_is_asked_for_where_it_is_missing() -> None:
    for module in ("torch", "sklearn", "cv2", "simplejpeg"):
        pytest.importorskip(module)
    path = EXAMPLES / "kornia_augmentation.py"
    code = f"import runpy, sys; sys.modules['kornia'] = None; runpy.run_path({str(path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    expected = "This example needs kornia: pip install 'crumpets-like[kornia]'\n"
    assert (run.returncode, run.stdout, run.stderr) == (1, "", expected)
