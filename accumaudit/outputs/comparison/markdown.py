"""A comparison as Markdown, which reads as plain text too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from accumaudit.outputs.comparison.tables import Table, aligned, not_compared, side, tables
from accumaudit.outputs.markdown import escaped

if TYPE_CHECKING:
    from accumaudit.comparison import Comparison


def rendered(comparison: Comparison) -> str:
    """The whole text."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    a, b = comparison.sides
    yield f"## {escaped(a.name)} against {escaped(b.name)}"
    yield ""
    yield escaped(" ".join(comparison.verdict))
    yield ""
    yield escaped(comparison.data)
    yield ""
    for one in comparison.sides:
        yield f"- {escaped(f'{one.name}: {side(one)}')}"
    yield f"- {escaped(aligned(comparison))}"
    yield from (f"- {escaped(f'Note: {remark}.')}" for remark in comparison.remarks)
    for table in tables(comparison):
        yield ""
        yield f"### {escaped(table.title)}"
        yield ""
        yield from _table(table)
    missing = not_compared(comparison)
    if missing:
        yield ""
        yield "### Not compared"
        yield ""
        yield from (f"- {escaped(line)}" for line in missing)


def _table(table: Table) -> Iterator[str]:
    rows = [[escaped(text) for text in row] for row in (table.heads, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        yield f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
