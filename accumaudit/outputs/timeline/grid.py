"""A table of cells that fits the width of a terminal by leaving out its least important columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from accumaudit.outputs.page import Piece

GAP: Final = 2
"""Spaces between columns."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one place of the table."""

    text: str
    style: str = ""


@dataclass(slots=True, kw_only=True)
class Column:
    """One column, with its cells from the top."""

    head: str
    cells: Sequence[Cell]
    rank: int
    """The highest is left out first; 0 never."""
    left: bool = False
    least: int | None = None
    """Characters to which the cells may be shortened, before any column is left out."""
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(map(len, (self.head, *(cell.text for cell in self.cells))))

    def padded(self, text: str) -> str:
        """The text in the column's width."""
        text = shortened(text, self.width)
        return text.ljust(self.width) if self.left else text.rjust(self.width)


class Grid:
    """The columns that fit; `left_out` names the others."""

    def __init__(self, columns: Sequence[Column], width: int | None) -> None:
        self.columns = [replace(column) for column in columns]
        self.left_out: list[str] = []
        while width is not None and self._shorten(width) and len(self.columns) > 1:
            last = max(self.columns, key=lambda column: column.rank)
            if not last.rank:
                break
            self.columns.remove(last)
            self.left_out.append(last.head)

    def head(self) -> list[Piece]:
        """The line above the rows."""
        return self._line([(column.padded(column.head), "bold") for column in self.columns])

    def row(self, place: int) -> list[Piece]:
        """One row."""
        cells = [(column, column.cells[place]) for column in self.columns]
        return self._line([(column.padded(cell.text), cell.style) for column, cell in cells])

    def _line(self, pieces: Sequence[Piece]) -> list[Piece]:
        return [part for piece in pieces for part in ((" " * GAP, ""), piece)][1:]

    def _shorten(self, width: int) -> bool:
        """Shorten what may be shortened; true where the columns are too wide all the same."""
        for column in self.columns:
            over = sum(one.width + GAP for one in self.columns) - GAP - width
            if over > 0 and column.least is not None:
                column.width = max(column.width - over, column.least, len(column.head))
        return sum(column.width + GAP for column in self.columns) - GAP > width


def shortened(text: str, room: int) -> str:
    """Both ends of a text that is too long, with two dots between."""
    if len(text) <= room:
        return text
    tail = max((room - 2) // 2, 0)
    return f"{text[: max(room - 2 - tail, 0)]}..{text[len(text) - tail :]}"[:room]
