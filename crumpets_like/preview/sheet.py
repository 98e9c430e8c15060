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
_SPACE = 4  # between a picture and its text
_SPACES = "  "  # one is as wide as a comma in this font

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
    lines = [[_wrap(cell.words) for cell in row] for row in rows]
    lefts = [_MARGIN]
    for _ in header[1:]:
        lefts.append(lefts[-1] + CELL + (_APART if len(lefts) == 1 else _GAP))
    tops = [_MARGIN + _LINE + _SPACE]
    for row, texts in zip(rows, lines, strict=True):
        tops.append(tops[-1] + max(map(_height, row, texts)) + _GAP)
    size = (lefts[-1] + CELL + _MARGIN, tops[-1] - _GAP + _MARGIN)
    sheet = Image.new("RGB", size, _PAPER)
    draw = ImageDraw.Draw(sheet)
    for left, word in zip(lefts, header, strict=True):
        draw.text((left, _MARGIN), word.replace(" ", _SPACES), _PALE, _font())
    for top, row, texts in zip(tops, rows, lines, strict=False):
        for left, cell, text in zip(lefts, row, texts, strict=True):
            sheet.paste(cell.picture, (left, top))
            below = top + cell.picture.height + _SPACE
            for number, line in enumerate(text):
                draw.text((left, below + _LINE * number), line, _INK, _font())
    return sheet


def _height(cell: Cell, text: Sequence[str]) -> int:
    return cell.picture.height + _SPACE + _LINE * len(text)


def _wrap(words: Sequence[str]) -> list[str]:
    """Lines as long as a cell is wide."""
    return _pack([word.replace(" ", _SPACES) for word in words], f"{_SPACES}·{_SPACES}")


def _pack(pieces: Sequence[str], between: str) -> list[str]:
    """Join pieces to lines; one that is too long is broken at its spaces, or cut."""
    lines: list[str] = []
    for piece in pieces:
        if lines and _fits(joined := f"{lines[-1]}{between}{piece}"):
            lines[-1] = joined
        elif _fits(piece):
            lines.append(piece)
        elif _SPACES in piece:
            lines += _pack(piece.split(_SPACES), _SPACES)
        else:
            length = next(n for n in range(len(piece), -1, -1) if _fits(piece[:n] + "…"))
            lines.append(piece[:length] + "…")
    return lines


def _fits(text: str) -> bool:
    return _font().getlength(text) <= CELL


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_TEXT)
