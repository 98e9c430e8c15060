"""A folder of images as a dataset."""

from __future__ import annotations

import errno
import operator
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from crumpets_like.shared_list import SharedList

IMAGE_EXTENSIONS = (
    *(".avif", ".bmp", ".gif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm"),
    *(".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
"""Ends of the names of image files, in lower case."""


class ImageFolder:
    """A folder with one subfolder of images per class, as a dataset.

    ::

        train/
            cat/         class 0
                1.jpg
                more/2.png
            dog/         class 1
                3.jpg

    A sample is ``{"image": path, "label": number of the class}``, which the image workers take.
    The folder is listed once, at construction, and no file is opened. The paths lie in a
    :class:`SharedList`, so that workers share them.

    What is listed:

    - *Classes* are the subfolders, sorted by name (as strings, ``"10"`` before ``"9"``), as in
      torchvision. Files beside them belong to no class and are left out.
    - *Images* are the files of a class folder, and of all folders in it, whose name ends in one of
      `extensions`, in whatever case. They come in torchvision's order, too: sorted by their folder,
      then by name.
    - *Hidden* files and folders, whose name begins with a dot, are left out (torchvision lists
      them): ``.ipynb_checkpoints`` is no class.
    - *Symbolic links* are followed. A folder that links reach more than once within a class is
      listed once, so a link that leads back ends there. A link that leads nowhere is listed by its
      name: its sample raises an error, and does not go missing silently.

    Parameters
    ----------
    path : str or os.PathLike
        The folder.
    extensions : iterable of str
        Ends of the names of image files, with the dot. Default: `IMAGE_EXTENSIONS`.
    allow_empty : bool
        Whether a class may have no images. It has a number then, and no sample.

    Attributes
    ----------
    root : str
        The folder, as an absolute path.
    classes : tuple of str
        Names of the classes; a label is the place in it.
    class_to_index : dict of str to int
        The number of each class.
    paths : SharedList of str
        Of all images, absolute, class by class.

    Raises
    ------
    OSError
        If the folder, or one in it, cannot be listed: FileNotFoundError if it does not exist.
    TypeError
        If `path` is no path, or `extensions` are no strings.
    ValueError
        If there are no subfolders, or no images in one of them; if an extension has no dot.

    Examples
    --------
    >>> dataset = ImageFolder("train")
    >>> dataset.classes, len(dataset)
    (('cat', 'dog'), 3)
    >>> dataset[2]
    {'image': '/data/train/dog/3.jpg', 'label': 1}

    As many samples of each class, whatever their numbers of images:

    >>> weights = 1 / np.bincount(dataset.labels)[dataset.labels]
    >>> loader = TurboDataLoader(dataset, 64, worker, 4, sampler=WeightedSampler(weights))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        extensions: Iterable[str] = IMAGE_EXTENSIONS,
        *,
        allow_empty: bool = False,
    ) -> None:
        endings = _check_extensions(extensions)
        self.root = os.path.abspath(_check_path(path))
        self.classes = tuple(_class_names(self.root))
        if not self.classes:
            raise ValueError(
                f"the folder {self.root!r} has no subfolders, but each class of an ImageFolder is "
                f"one: folder/class/image.jpg"
            )
        self.class_to_index = {name: index for index, name in enumerate(self.classes)}
        counts: list[int] = []
        self.paths = SharedList(self._list(endings, counts))
        self._ends = list(accumulate(counts))
        empty = [name for name, count in zip(self.classes, counts, strict=True) if not count]
        if len(empty) == len(self.classes) or (empty and not allow_empty):
            shown = ", ".join(map(repr, empty[:5])) + (", ..." if len(empty) > 5 else "")
            raise ValueError(
                f"{len(empty)} of {len(self.classes)} classes in {self.root!r} have no image: "
                f"{shown}. Images are files whose names end in {', '.join(endings)}; with "
                f"allow_empty=True some classes may have none"
            )

    def _list(self, endings: tuple[str, ...], counts: list[int]) -> Iterator[str]:
        """Give the paths class by class, and append the number of each class to `counts`."""
        for name in self.classes:
            found = list_images(os.path.join(self.root, name), endings)
            counts.append(len(found))
            yield from found

    @property
    def labels(self) -> NDArray[np.int64]:
        """Labels of all samples, shape (N,); made anew at each access."""
        counts = np.diff(self._ends, prepend=0)
        return np.repeat(np.arange(len(self.classes), dtype=np.int64), counts)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Return a sample; negative indices count from the end.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        number = operator.index(index)
        path = self.paths[number]
        return {"image": path, "label": bisect_right(self._ends, number % len(self.paths))}

    def __repr__(self) -> str:
        return f"<ImageFolder {self.root!r}: {len(self):,} images, {len(self.classes):,} classes>"


def list_images(folder: str, endings: tuple[str, ...] = IMAGE_EXTENSIONS) -> list[str]:
    """List the images of a folder and of all folders in it.

    Parameters
    ----------
    folder : str
        Where to look.
    endings : tuple of str
        Of the names that count, in lower case.

    Returns
    -------
    list of str
        Paths that begin with `folder`, in the order that :class:`ImageFolder` states.
    """
    found: list[tuple[str, str]] = []
    folders = [folder]
    # A link to a folder above this one would lead to what is no part of it.
    seen = {_identity(parent) for parent in Path(folder).parents}
    while folders:
        here = folders.pop()
        if _identity(here) in seen:
            continue
        seen.add(_identity(here))
        inner = []
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    inner.append(entry.path)
                elif entry.name.lower().endswith(endings):
                    found.append((here, entry.name))
        folders += sorted(inner, reverse=True)
    found.sort()
    return [os.path.join(*place) for place in found]


def _identity(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """What a folder is, by whatever way it is reached."""
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _class_names(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(e.name for e in entries if _is_folder(e) and not e.name.startswith("."))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False  # a link that leads to itself, and so nowhere


def _check_path(path: Any) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path must be a string or an os.PathLike, got {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"path must be a path of type str, got {text!r}")
    return text


def _check_extensions(extensions: Iterable[str]) -> tuple[str, ...]:
    if isinstance(extensions, str):
        raise TypeError(f"extensions must be several strings, such as ['.jpg'], got {extensions!r}")
    endings = tuple(extensions)
    for ending in endings:
        if not isinstance(ending, str):
            raise TypeError(f"extensions must be strings, got {ending!r}")
        if not ending.startswith("."):
            raise ValueError(f"extensions must begin with a dot, got {ending!r}")
    return tuple(ending.lower() for ending in endings)
