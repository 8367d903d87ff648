"""The report as Markdown: for the summary of a pipeline's step, a comment, or a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from accumaudit.outputs.results import Result, broken, ignored, results
from accumaudit.outputs.text import size
from accumaudit.outputs.words import footer, printable

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport
    from accumaudit.outputs.results import Options

ROWS: Final = 1_000
"""Findings that are shown, the worst first."""


def rendered(report: AuditReport, options: Options) -> str:
    """The whole report."""
    return "\n".join(_lines(report, options, ROWS))


def cut(report: AuditReport, options: Options, room: int) -> str:
    """As much of the report as fits into so many bytes: the findings that are least are left out."""
    rows = ROWS
    while True:
        text = "\n".join([*_lines(report, options, rows), ""])
        if len(text.encode()) <= room or rows == 0:
            return text if len(text.encode()) <= room else ""
        rows //= 2


def _lines(report: AuditReport, options: Options, rows: int) -> Iterator[str]:
    yield "## accumaudit"
    yield ""
    yield escaped(footer(report))
    found = results(report, options)
    if found:
        yield ""
        yield from _table(("severity", "rule", "run", "where", "seen"), map(_row, found[:rows]))
    if len(found) > rows:
        yield ""
        yield f"{len(found) - rows:,} further findings are not shown."
    for one in found[:rows]:
        yield ""
        yield from _details(one)
    left_out = list(ignored(report, options))
    if left_out:
        yield ""
        yield from _table(("ignored", "where", "reason"), map(_ignored_row, left_out[:rows]))
    for code, reason in broken(report).items():
        yield ""
        yield f"**{escaped(code)} is broken**: {escaped(reason)}"
    yield ""
    yield from (f"- {escaped(run.run_id)}: {escaped(size(run))}" for run in report.runs[:ROWS])


def _row(one: Result) -> tuple[str, ...]:
    place = escaped(f"{one.place.path}:{one.place.line}")
    return one.severity, escaped(one.title), escaped(one.run.run_id), place, escaped(one.seen)


def _ignored_row(one: Result) -> tuple[str, ...]:
    return escaped(one.title), escaped(one.where), escaped(one.reason or "")


def _details(one: Result) -> Iterator[str]:
    yield f"<details><summary>{escaped(one.title)}: {escaped(one.verdict.summary)}</summary>"
    yield ""
    yield escaped(f"In {one.where}: {one.seen}.")
    yield ""
    yield escaped(one.verdict.advice)
    yield ""
    yield "</details>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = list(heads)
    for cells in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text that shows as it is: no mark of Markdown, no HTML, no name that is notified, no issue.

    Hosts read names and numbers behind the escapes; a space of no width keeps them apart.
    """
    shown = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    marked = re.sub(r"([\\`*_\[\]|~])", r"\\\1", shown)
    return re.sub(r"@|#(?=[0-9])", r"\g<0>&#8203;", marked)
