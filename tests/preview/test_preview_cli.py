"""The command ``crumpets-like preview``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pytest.importorskip("PIL")

from PIL import Image

from crumpets_like.cli import main
from crumpets_like.workers.presets import PRESETS


def fill(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows, columns = np.mgrid[0:60, 0:80]
        planes = [rows + 20 * number, 2 * columns, rows + columns]
        Image.fromarray(np.stack(planes, axis=-1).astype(np.uint8)).save(folder / name)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "data", ["cat/1.png", "cat/2.jpg", "dog/3.png"])


def test_it_writes_a_sheet(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sheet.png"
    assert main(["preview", str(folder), "--preset", "imagenet_train", "-o", str(out)]) == 0
    with Image.open(out) as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 9 * 144
        assert sheet.height > 3 * 144
    printed = capsys.readouterr()
    assert printed.out == f"{out}: 3 of 3 images, imagenet_train, seed 0\n"
    assert printed.err == ""


def test_defaults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert main(["preview", "data"]) == 0
    assert (folder.parent / "preview.png").is_file()


def test_seed_samples_and_size_count(folder: Path, tmp_path: Path) -> None:
    def sheet(*arguments: str) -> bytes:
        out = tmp_path / "sheet.bmp"
        assert main(["preview", str(folder), "-o", str(out), *arguments]) == 0
        return out.read_bytes()

    plain = sheet("-n", "2")
    assert sheet("-n", "2") == plain
    assert len({plain, sheet("-n", "1"), sheet("-n", "2", "--seed", "5")}) == 3
    assert sheet("-n", "2", "--size", "40") != plain
    still = {sheet("-n", "1", "--preset", "center_crop", "--seed", str(n)) for n in range(4)}
    assert len(still) > 1  # other images, where nothing is drawn


@pytest.mark.parametrize("name", [*PRESETS, "IMAGENET_EVAL"])
def test_every_preset(folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "sheet.png"
    assert main(["preview", str(folder), "--preset", name, "-n", "1", "-o", str(out)]) == 0


def test_images_without_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = fill(tmp_path / "flat", ["1.png", "2.png"])
    (flat / "notes").mkdir()
    out = tmp_path / "sheet.png"
    assert main(["preview", str(flat), "-o", str(out)]) == 0
    assert ": 2 of 2 images" in capsys.readouterr().out


def test_broken_images_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path / "data", ["0.png", "2.png"])
    (folder / "1.jpg").write_bytes(b"\xff\xd8\xff no more")
    assert main(["preview", str(folder), "-o", str(tmp_path / "sheet.png")]) == 0
    printed = capsys.readouterr()
    assert ": 2 of 3 images" in printed.out
    assert re.fullmatch(r"crumpets-like preview: left out: .*1\.jpg.*\n", printed.err)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{data}", "--preset", "imagenet"], "'imagenet'.*imagenet_train, imagenet_eval"),
        (["{data}/nowhere"], "nowhere"),
        (["{data}/cat/1.png"], "1.png"),
        (["{empty}"], "no image in the folder"),
        (["{data}", "-n", "0"], "--samples must be .*0"),
        (["{data}", "--size", "0"], "--size must be .*0"),
        (["{data}", "--seed", "-1"], "seed must not be negative"),
        (["{data}", "-o", "{data}/nowhere/sheet.png"], "nowhere"),
        (["{data}", "-o", "{data}/sheet.txt"], ".txt"),
        (["{broken}"], "broken.jpg"),
    ],
)
def test_errors_are_one_sentence_and_status_2(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    text: str,
) -> None:
    (tmp_path / "empty").mkdir()
    broken = fill(tmp_path / "broken", [])
    broken.mkdir(exist_ok=True)
    (broken / "broken.jpg").write_bytes(b"\xff\xd8\xff no more")
    places = {"data": folder, "empty": tmp_path / "empty", "broken": broken}
    output = ["-o", str(tmp_path / "out.png")] if "-o" not in arguments else []
    status = main(["preview", *(a.format(**places) for a in arguments), *output])
    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert re.fullmatch(rf"crumpets-like preview: .*{text}.*\n", printed.err), printed.err
    assert not (tmp_path / "out.png").exists()
