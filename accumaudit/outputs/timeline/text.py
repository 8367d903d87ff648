"""Timelines as tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import BROKEN, FAILED, AuditReport
from accumaudit.outputs.page import COLOURS, Page
from accumaudit.outputs.text import size
from accumaudit.outputs.timeline.cells import attempt_columns
from accumaudit.outputs.timeline.details import render_details
from accumaudit.outputs.timeline.grid import Grid
from accumaudit.outputs.timeline.heads import section_head
from accumaudit.outputs.timeline.model import Attempt, Section, Timeline
from accumaudit.outputs.timeline.rows import rows
from accumaudit.outputs.words import footer, plural, printable, updates

if TYPE_CHECKING:
    from rich.console import Console

    from accumaudit.engine.findings import RunReport

DIM: Final = "dim"

FOLDED: Final = 4
"""Optimizers of a launch that are all shown; of more those without a fault are counted."""

FIRST: Final = 2
"""Optimizers that are shown all the same."""

LEGEND: Final = "T: what the update weighs, d: what its tokens count; 1 is right. -: not recorded."


def render(timelines: Sequence[Timeline], report: AuditReport, console: Console, around: int | None) -> None:
    """Write the timelines; around an update, with what each rank wrote."""
    page = Page(console)
    for timeline in timelines:
        if timeline.sections or around is None:
            _render_run(timeline, page, around)
    if around is None:
        _suggest(timelines, page)
    page.line((footer(report), "bold" if report.worst() else "bold green"))


def _render_run(timeline: Timeline, page: Page, around: int | None) -> None:
    page.line((printable(f"{timeline.run.run_id}: {_size(timeline.run)}"), "bold"))
    attempts = [attempt for section in timeline.sections for attempt in section.attempts]
    grid = Grid(attempt_columns(attempts), page.width)
    if attempts:
        page.line()
        page.line(*grid.head())
    places = {id(attempt): place for place, attempt in enumerate(attempts)}
    for part in _folded(timeline.sections) if around is None else timeline.sections:
        if isinstance(part, Section):
            head = section_head(part, is_foreign=timeline.run.is_foreign)
            page.wrapped(printable(head), head="-- ", body=DIM)
            _render_section(part, grid, places, page)
        else:
            page.wrapped(part, head="-- ", body=DIM)
    if attempts:
        page.wrapped(LEGEND, head="   ", body=DIM)
    if grid.left_out:
        what = f"left out at {page.width} columns: {', '.join(reversed(grid.left_out))}"
        page.wrapped(f"{what}; a wider terminal has them", head="   ", body=DIM)
    page.line()
    if around is None:
        _render_findings(timeline, page)
        return
    for attempt in attempts:
        render_details(attempt, page)


def _folded(sections: Sequence[Section]) -> Iterator[Section | str]:
    """Of many optimizers (one a layer, for example) the first ones and those with a fault."""
    for launch, group in groupby(sections, key=lambda section: section.launch):
        own = list(group)
        left = [one for one in own[FIRST:] if len(own) > FOLDED and not one.faulty]
        yield from (one for one in own if not any(one is other for other in left))
        if left:
            attempts = plural(sum(one.total for one in left), "attempt")
            yield f"launch {launch}, {plural(len(left), 'more optimizer')} without a fault: {attempts}"


def _render_section(section: Section, grid: Grid, places: dict[int, int], page: Page) -> None:
    for row in rows(section):
        if isinstance(row, Attempt):
            page.line(*grid.row(places[id(row)]))
        else:
            page.line((f"   {printable(row.text)}", DIM))


def _size(run: RunReport) -> str:
    if run.is_foreign:
        return size(run)
    parts = [plural(run.updates, "update")]
    if run.skipped:
        parts.append(f"{plural(run.skipped, 'attempt')} skipped")
    world = run.world_size or len(run.ranks)
    parts.append(plural(world, "rank") if len(run.ranks) >= world else f"{len(run.ranks)} of {world} ranks")
    return ", ".join([*parts, *([run.runtime] if run.runtime else [])])


def _render_findings(timeline: Timeline, page: Page) -> None:
    """One paragraph for each finding, so that the codes in the table can be read."""
    for verdict in timeline.run.with_status(FAILED):
        if verdict.finding is None:
            continue
        head = f"{verdict.code} {verdict.name}"
        page.line((f"{verdict.severity} ", COLOURS[verdict.severity]), (head, "bold"))
        page.wrapped(
            printable(f"{updates(verdict.finding, timeline.run)}: {verdict.finding.message}"), head="  "
        )
    for verdict in timeline.run.with_status(BROKEN):
        page.line(("broken rule ", COLOURS["broken"]), (f"{verdict.code} {verdict.name}", "bold"))
        page.wrapped(printable(verdict.reason or ""), head="  ")
    for remark in timeline.run.remarks:
        page.wrapped(printable(remark), head="remark ", style="bold")
    if any(map(timeline.run.with_status, (FAILED, BROKEN))) or timeline.run.remarks:
        page.line()


def _suggest(timelines: Sequence[Timeline], page: Page) -> None:
    """How to see more of the first fault."""
    for timeline in timelines:
        if timeline.run.is_foreign:
            continue  # it has no micro-steps
        for verdict in timeline.run.with_status(FAILED):
            if verdict.finding and verdict.finding.first_update is not None:
                path, update = timeline.run.path, verdict.finding.first_update
                page.line(
                    (printable(f"`accumaudit show {path} --around {update}` shows its micro-steps."), DIM)
                )
                return
