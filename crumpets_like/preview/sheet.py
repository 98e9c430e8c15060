"""A contact sheet: rows of pictures with a few words under each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

__all__ = ["CELL", "Cell", "contact_sheet", "fit"]

CELL = 144
"""Largest width and height of a picture, in pixels."""

_GAP = 10  # between cells
_MARGIN = 16  # around the sheet
_APART = 26  # between the first column and the others
_TEXT = 11  # size of the letters
_LINE = 14  # height of a line of text

_PAPER = (255, 255, 255)
_INK = (55, 60, 70)
_PALE = (140, 146, 156)


class Cell(NamedTuple):
    """A picture of at most `CELL` pixels on each side, and what is said about it."""

    picture: Image.Image
    words: Sequence[str]


def fit(width: int, height: int) -> float:
    """Return the factor by which a picture is shown: small ones by whole numbers."""
    factor = CELL / max(width, height)
    return float(int(factor)) if factor >= 1 else factor


def contact_sheet(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Image.Image:
    """Put pictures together.

    Parameters
    ----------
    header : sequence of str
        A word above each column.
    rows : sequence of sequences of Cell
        As many in each row; the first column is set apart.

    Returns
    -------
    PIL.Image.Image
        RGB.
    """
    texts = [[_wrap(cell.words) for cell in row] for row in rows]
    widths = [max(row[column].picture.width for row in rows) for column in range(len(header))]
    widths = [max(width, CELL) for width in widths]
    heights = [
        max(cell.picture.height for cell in row) + 4 + _LINE * max(map(len, lines))
        for row, lines in zip(rows, texts, strict=True)
    ]
    lefts = [_MARGIN]
    for width in widths[:-1]:
        lefts.append(lefts[-1] + width + (_APART if len(lefts) == 1 else _GAP))
    top = _MARGIN + _LINE + 4
    size = (
        lefts[-1] + widths[-1] + _MARGIN,
        top + sum(heights) + _GAP * (len(rows) - 1) + _MARGIN,
    )
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    for left, word in zip(lefts, header, strict=True):
        draw.text((left, _MARGIN), word, _PALE, _font())
    for row, lines, height in zip(rows, texts, heights, strict=True):
        tallest = max(cell.picture.height for cell in row)
        for left, cell, text in zip(lefts, row, lines, strict=True):
            sheet.paste(cell.picture, (left, top + tallest - cell.picture.height))
            for number, line in enumerate(text):
                draw.text((left, top + tallest + 4 + _LINE * number), line, _INK, _font())
        top += height + _GAP
    return sheet


def _wrap(words: Sequence[str]) -> list[str]:
    """Lines as long as a cell is wide; a word too long for that is cut."""
    lines: list[str] = []
    for word in words:
        joined = f"{lines[-1]}, {word}" if lines else word
        if lines and _font().getlength(joined + ",") <= CELL:
            lines[-1] = joined
        else:
            lines.append(_cut(word))
    return lines


def _cut(word: str) -> str:
    if _font().getlength(word) <= CELL:
        return word
    while word and _font().getlength(word + "…") > CELL:
        word = word[:-1]
    return word + "…"


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT)
