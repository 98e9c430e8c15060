"""The layout of a contact sheet."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")

from PIL import Image

from crumpets_like.preview import sheet as module
from crumpets_like.preview.sheet import CELL, Cell, contact_sheet, fit

PAPER = (255, 255, 255)


def red(width: int = CELL, height: int = CELL) -> Image.Image:
    return Image.new("RGB", (width, height), (255, 0, 0))


def boxes_of_red(sheet: Image.Image) -> list[tuple[int, int, int, int]]:
    """The (left, top, width, height) of each red area, in order of reading."""
    import cv2

    mask = (np.asarray(sheet) == (255, 0, 0)).all(axis=2).astype(np.uint8)
    _, _, found, _ = cv2.connectedComponentsWithStats(mask)
    areas = [(int(x), int(y), int(w), int(h)) for x, y, w, h, _ in found[1:]]
    return sorted(areas, key=lambda area: (area[1], area[0]))


def test_rows_and_columns() -> None:
    pytest.importorskip("cv2")
    rows = [[Cell(red(), ["one"])] * 3, [Cell(red(), ["two", "words"])] * 3]
    areas = boxes_of_red(contact_sheet(["a", "b", "c"], rows))
    assert [area[2:] for area in areas] == [(CELL, CELL)] * 6
    assert [area[0] for area in areas[:3]] == [area[0] for area in areas[3:]]
    assert len({area[1] for area in areas[:3]}) == 1
    first, second, third = (area[0] for area in areas[:3])
    assert second - first > third - second > CELL  # the first column is set apart


def test_pictures_of_different_sizes_hang_from_one_line() -> None:
    pytest.importorskip("cv2")
    row = [Cell(red(CELL, 50), []), Cell(red(30, CELL), ["words"])]
    areas = boxes_of_red(contact_sheet(["a", "b"], [row]))
    assert [area[2:] for area in areas] == [(CELL, 50), (30, CELL)]
    assert len({area[1] for area in areas}) == 1


def test_words_are_packed_into_lines_and_never_leave_the_cell() -> None:
    words = [
        "scale 1.83",
        "hmirror",
        "shift 0.12, -0.51",
        "a" * 90,
        "end",
        "b" * 15 + " " + "c" * 15,
    ]
    lines = module._wrap(words)
    assert lines[0] == "scale  1.83  ·  hmirror"
    assert lines[1] == "shift  0.12,  -0.51"
    assert lines[2].startswith("aaaa")
    assert lines[2].endswith("…")
    assert lines[3:] == ["end", "b" * 15, "c" * 15]
    assert all(module._font().getlength(line) <= CELL for line in lines)


def test_text_makes_room_for_itself() -> None:
    one = contact_sheet(["a"], [[Cell(red(), ["x"])]])
    four = contact_sheet(["a"], [[Cell(red(), [f"word number {n}, long" for n in range(4)])]])
    assert four.width == one.width
    assert four.height == one.height + 3 * module._LINE
    below = np.asarray(four)[-module._MARGIN :]
    assert (below == PAPER).all()


@pytest.mark.parametrize(
    ("size", "factor"),
    [((2 * CELL, CELL), 0.5), ((CELL, 7), 1.0), ((60, 32), 2.0), ((32, 32), 4.0), ((100, 1), 1.0)],
)
def test_small_pictures_grow_by_whole_numbers(size: tuple[int, int], factor: float) -> None:
    assert fit(*size) == factor
