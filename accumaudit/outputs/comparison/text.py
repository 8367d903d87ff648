"""A comparison for a person at a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.comparison.tables import Table, aligned, not_compared, side, tables
from accumaudit.outputs.page import WIDEST
from accumaudit.outputs.words import printable

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison

CELL: Final = 60
"""Characters of a cell that are shown."""


def rendered(comparison: Comparison) -> str:
    """The whole text."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    for one in comparison.sides:
        yield from _wrapped(f"{one.name}: {side(one)}")
    yield from _wrapped(aligned(comparison))
    for remark in comparison.remarks:
        yield from _wrapped(f"Note: {remark}.")
    yield ""
    for sentence in (*comparison.verdict, comparison.data):
        yield from _wrapped(sentence)
    for table in tables(comparison):
        yield ""
        yield table.title
        yield from _table(table)
    missing = not_compared(comparison)
    if missing:
        yield ""
        yield "Not compared"
        for line in missing:
            yield from _wrapped(line, indent="  ")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        printable(text),
        WIDEST,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _table(table: Table) -> Iterator[str]:
    cells = [[_cell(text) for text in row] for row in (table.heads, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()


def _cell(text: str) -> str:
    shown = printable(text)
    return shown if len(shown) <= CELL else f"{shown[: CELL - 4]} ..."
