"""The subcommand ``crumpets-like preview``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``preview`` to a parser.

    Parameters
    ----------
    parser : argparse.ArgumentParser
        Of the subcommand.
    """
    parser.add_argument(
        "folder",
        metavar="DATASET_FOLDER",
        help="of images: one subfolder per class, or the images themselves",
    )
    parser.add_argument(
        "--preset",
        default="imagenet_train",
        metavar="NAME",
        help="how the images are augmented: a name in crumpets_like.workers.presets (default: "
        "imagenet_train)",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("preview.png"), metavar="FILE",
        help="where the picture goes, in the format of its name (default: preview.png)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--samples", type=int, default=6, metavar="N", help="number of rows (default: 6)"
    )
    parser.add_argument(
        "--size", type=int, default=224, metavar="PIXELS",
        help="height and width of what the network would get (default: 224)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="of the loader: chooses samples and draws (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the contact sheet.

    Parameters
    ----------
    args : argparse.Namespace
        With the attributes that `add_arguments` defines.

    Returns
    -------
    int
        Exit status: 0, or 2 for wrong arguments, images that cannot be read, and a missing extra.
    """
    try:
        line = _preview(args)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"crumpets-like preview: {error}", file=sys.stderr)
        return 2
    print(line)
    return 0


def _preview(args: argparse.Namespace) -> str:
    import numpy as np

    from ..arguments import check_count
    from ..dataloader import TurboDataLoader
    from ..workers import ImageWorker
    from ..workers.presets import get_preset
    from . import make_sheet

    rng = get_preset(args.preset)
    size = check_count("--size", args.size)
    samples = check_count("--samples", args.samples)
    dataset = open_folder(args.folder)
    worker = ImageWorker(((3, size, size), np.uint8), image_rng=rng)
    loader = TurboDataLoader(
        dataset, samples, worker, 0, shuffle=True, seed=args.seed, on_error="skip"
    )
    sheet, draws = make_sheet(loader, samples)
    sheet.save(args.output)
    for _, error in draws.failed:
        print(f"crumpets-like preview: left out: {error}", file=sys.stderr)
    return (
        f"{args.output}: {len(draws.keys)} of {len(dataset):,} images, {args.preset}, "
        f"seed {args.seed}"
    )


def open_folder(folder: str) -> Any:
    """Return the images of a folder as a dataset, whether or not it has subfolders of classes.

    Parameters
    ----------
    folder : str
        Its path.

    Raises
    ------
    OSError
        If it cannot be listed.
    ValueError
        If there is no image in it.
    """
    from ..workers.folder import ImageFolder, list_images

    try:
        return ImageFolder(folder, allow_empty=True)
    except ValueError:  # no classes, or none has an image
        paths = list_images(folder)
    if not paths:
        raise ValueError(f"there is no image in the folder {folder!r}")
    return [{"image": path} for path in paths]
