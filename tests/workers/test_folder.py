"""A folder of images is a dataset; what is listed, in which order, and what is refused."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crumpets_like import SharedList, TurboDataLoader, Worker
from crumpets_like.workers import ImageFolder, decode_image
from crumpets_like.workers.folder import IMAGE_EXTENSIONS, list_images


def fill(root: Path, names: Iterable[str]) -> None:
    """Make empty files: nothing here opens them."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def relative(dataset: ImageFolder) -> list[str]:
    return [os.path.relpath(path, dataset.root) for path in dataset.paths]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path, ["dog/1.jpg", "cat/2.png", "cat/10.jpg", "cat/more/0.webp"])
    return tmp_path


def test_classes_and_samples(root: Path) -> None:
    dataset = ImageFolder(root)
    assert dataset.classes == ("cat", "dog")
    assert dataset.class_to_index == {"cat": 0, "dog": 1}
    assert relative(dataset) == ["cat/10.jpg", "cat/2.png", "cat/more/0.webp", "dog/1.jpg"]
    assert isinstance(dataset.paths, SharedList)
    assert dataset.labels.tolist() == [0, 0, 0, 1]
    assert dataset.labels.dtype == np.int64
    assert len(dataset) == 4
    assert list(dataset) == [  # type: ignore[call-overload]
        {"image": path, "label": label}
        for path, label in zip(dataset.paths, dataset.labels, strict=True)
    ]
    assert dataset[np.int64(3)] == dataset[-1] == {"image": str(root / "dog/1.jpg"), "label": 1}
    assert repr(dataset) == f"<ImageFolder {str(root)!r}: 4 images, 2 classes>"


def test_classes_are_sorted_as_strings(tmp_path: Path) -> None:
    fill(tmp_path, [f"{name}/x.jpg" for name in ("9", "10", "b", "B", "a c")])
    assert ImageFolder(tmp_path).classes == ("10", "9", "B", "a c", "b")


def test_samples_come_in_the_order_of_torchvision(tmp_path: Path) -> None:
    names = ["c/b/1.jpg", "c/b-a/2.jpg", "c/z.jpg", "c/a.jpg", "c/b/a/3.jpg", "c/B/4.jpg"]
    fill(tmp_path, names)
    expected = []  # as torchvision.datasets.folder.make_dataset lists
    for folder, _, files in sorted(os.walk(tmp_path / "c", followlinks=True)):
        expected += [os.path.join(folder, name) for name in sorted(files)]
    assert list(ImageFolder(tmp_path).paths) == expected


def test_only_images_count_in_whatever_case(tmp_path: Path) -> None:
    fill(tmp_path, [f"c/x{ending}" for ending in IMAGE_EXTENSIONS])
    fill(tmp_path, ["c/y.JPG", "c/z.JpEg", "c/notes.txt", "c/jpg", "c/x.jpg.part", "beside.jpg"])
    found = {os.path.basename(path) for path in ImageFolder(tmp_path).paths}
    assert found == {"y.JPG", "z.JpEg"} | {f"x{ending}" for ending in IMAGE_EXTENSIONS}


@pytest.mark.parametrize("ending", IMAGE_EXTENSIONS)
def test_what_counts_as_an_image_can_be_decoded(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("cv2")
    image = pytest.importorskip("PIL.Image")
    picture = image.new("RGB", (30, 20), (200, 100, 50))
    formats = {".avif": "AVIF", ".jpe": "JPEG", ".jp2": "JPEG2000", ".pbm": "PPM", ".pnm": "PPM"}
    picture.convert({".pbm": "1", ".pgm": "L"}.get(ending, "RGB")).save(
        tmp_path / f"x{ending}", formats.get(ending)
    )
    assert decode_image(tmp_path / f"x{ending}").shape == (20, 30, 3)


def test_own_extensions(tmp_path: Path) -> None:
    fill(tmp_path, ["c/x.jpg", "c/x.DCM", "c/x.npy"])
    assert relative(ImageFolder(tmp_path, [".dcm", ".NPY"])) == ["c/x.DCM", "c/x.npy"]


def test_hidden_names_are_left_out(root: Path) -> None:
    fill(root, [".ipynb_checkpoints/1.jpg", "cat/.2.jpg", "cat/.trash/3.jpg"])
    assert len(ImageFolder(root)) == 4
    assert ImageFolder(root).classes == ("cat", "dog")


def test_links_are_followed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    away = tmp_path_factory.mktemp("away")
    fill(away, ["1.jpg", "2.jpg"])
    (root / "bird").symlink_to(away)
    (root / "dog/0.jpg").symlink_to(away / "1.jpg")
    (root / "dog/9.jpg").symlink_to(away / "nowhere.jpg")
    (root / "dog/inner").symlink_to(away)
    assert relative(ImageFolder(root)) == [
        *("bird/1.jpg", "bird/2.jpg"),
        *("cat/10.jpg", "cat/2.png", "cat/more/0.webp"),
        *("dog/0.jpg", "dog/1.jpg", "dog/9.jpg", "dog/inner/1.jpg", "dog/inner/2.jpg"),
    ]


def test_links_that_lead_back_end_there(root: Path) -> None:
    before = relative(ImageFolder(root))
    (root / "cat/itself").symlink_to(root / "cat")
    (root / "cat/more/up").symlink_to("..")
    (root / "cat/more/root").symlink_to(root)
    (root / "cat/more/above").symlink_to(root.parent)
    (root / "cat/twice").symlink_to(root / "cat/more")  # of two ways the first by name
    assert relative(ImageFolder(root)) == before


def test_links_to_themselves_lead_nowhere(root: Path) -> None:
    before = relative(ImageFolder(root))
    for name in ("bird", "cat/itself", "dog/round.jpg"):
        (root / name).symlink_to(root / name)
    assert ImageFolder(root).classes == ("cat", "dog")
    assert relative(ImageFolder(root)) == sorted([*before, "dog/round.jpg"])


def test_paths_hold_where_the_process_goes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    dataset = ImageFolder(root.name)
    monkeypatch.chdir("/")
    assert os.path.exists(dataset[0]["image"])


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_names_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    path = os.fsencode(tmp_path / "c") + b"/\xff.jpg"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    assert os.fsencode(ImageFolder(tmp_path)[0]["image"]) == path


def test_list_images_of_a_flat_folder(root: Path) -> None:
    assert list_images(str(root / "cat")) == [
        str(root / "cat" / name) for name in ("10.jpg", "2.png", "more/0.webp")
    ]


class Echo(Worker):
    def process(self, sample: Any) -> dict[str, Any]:
        return {"path": sample["image"], "label": sample["label"]}


@pytest.mark.parametrize("method", ["forkserver", "spawn", "thread"])
def test_it_travels_to_workers(root: Path, method: str) -> None:
    dataset = ImageFolder(root)
    with TurboDataLoader(dataset, 4, Echo(), 2, start_method=method) as loader:
        ((_, (batch,)),) = loader
    assert batch["path"] == list(dataset.paths)
    assert batch["label"].tolist() == dataset.labels.tolist()


def test_a_copy_shares_the_paths(root: Path) -> None:
    dataset = ImageFolder(root)
    assert copy.deepcopy(dataset).paths is dataset.paths


def test_missing_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="train"):
        ImageFolder(tmp_path / "train")
    fill(tmp_path, ["file"])
    with pytest.raises(NotADirectoryError, match="file"):
        ImageFolder(tmp_path / "file")


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, ["1.jpg"])
    with pytest.raises(ValueError, match=r"has no subfolders.*folder/class/image\.jpg"):
        ImageFolder(tmp_path)


def test_empty_classes(root: Path) -> None:
    fill(root, ["bird/notes.txt", "eel/x.heic"])
    with pytest.raises(ValueError, match=r"2 of 4 classes.*'bird', 'eel'.*\.webp;.*allow_empty"):
        ImageFolder(root)
    dataset = ImageFolder(root, allow_empty=True)
    assert dataset.classes == ("bird", "cat", "dog", "eel")
    assert dataset.labels.tolist() == [1, 1, 1, 2]
    assert [dataset[index]["label"] for index in range(4)] == [1, 1, 1, 2]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match="1 of 1 classes"):
        ImageFolder(tmp_path, allow_empty=True)


@pytest.mark.parametrize("index", [4, -5])
def test_numbers_out_of_range(root: Path, index: int) -> None:
    with pytest.raises(IndexError, match=f"{index} is out of range"):
        ImageFolder(root)[index]


def test_slices_are_no_index(root: Path) -> None:
    with pytest.raises(TypeError, match="slice"):
        ImageFolder(root)[1:2]  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3,), TypeError, "path must be a string or an os.PathLike, got 3"),
        ((b"x",), TypeError, "path must be a string or an os.PathLike, got b'x'"),
        ((".", ".jpg"), TypeError, "extensions must be several strings.*'.jpg'"),
        ((".", [3]), TypeError, "extensions must be strings, got 3"),
        ((".", ["jpg"]), ValueError, "extensions must begin with a dot, got 'jpg'"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ImageFolder(*arguments)
