"""Timelines as tables for a person at a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import BROKEN, FAILED, AuditReport
from accumaudit.outputs.page import COLOURS, Page
from accumaudit.outputs.text import size
from accumaudit.outputs.timeline.cells import attempt_columns
from accumaudit.outputs.timeline.details import render_details
from accumaudit.outputs.timeline.grid import Grid
from accumaudit.outputs.timeline.marks import mark_text
from accumaudit.outputs.timeline.model import Section, Timeline
from accumaudit.outputs.words import footer, plural, printable, updates

if TYPE_CHECKING:
    from rich.console import Console

    from accumaudit.engine.findings import RunReport

DIM: Final = "dim"

NEVER: Final = 2**63
"""An attempt that no mark lies after."""

FOLDED: Final = 4
"""Optimizers of a launch that are all shown; of more those without a fault are counted."""

EARLIEST: Final = 10**8
"""Seconds since 1970 below which a time is none: launches of logs that tell none are numbered."""

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
            head = _head(part, is_foreign=timeline.run.is_foreign)
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
    marks = list(section.marks)

    def render_marks(before: int) -> None:
        while marks and marks[0].attempt_id < before:
            page.line((f"   - {printable(mark_text(marks.pop(0), section))}", DIM))

    last = seen = faulty = 0
    for attempt in section.attempts:
        render_marks(last + 1)
        _render_gap(attempt.place - 1 - seen, attempt.faulty_so_far - bool(attempt.codes) - faulty, page)
        render_marks(attempt.attempt_id)
        page.line(*grid.row(places[id(attempt)]))
        last, seen, faulty = attempt.attempt_id, attempt.place, attempt.faulty_so_far
    render_marks(last + 1)
    _render_gap(section.total - seen, section.faulty - faulty, page)
    render_marks(NEVER)


def _render_gap(count: int, faulty: int, page: Page) -> None:
    if count:
        which = f", {'all' if faulty == count else f'{faulty:,} of them'} with a fault" if faulty else ""
        page.line((f"   ... {count:,} more{which}", DIM))


def _size(run: RunReport) -> str:
    if run.is_foreign:
        return size(run)
    parts = [plural(run.updates, "update")]
    if run.skipped:
        parts.append(f"{plural(run.skipped, 'attempt')} skipped")
    world = run.world_size or len(run.ranks)
    parts.append(plural(world, "rank") if len(run.ranks) >= world else f"{len(run.ranks)} of {world} ranks")
    return ", ".join([*parts, *([run.runtime] if run.runtime else [])])


def _head(section: Section, *, is_foreign: bool) -> str:
    """What a section is about, and what was declared for it."""
    parts = []
    if section.launches > 1 or section.started_at is not None:
        parts.append(f"launch {section.launch}" + _started(section.started_at))
    if section.resumed_from_update is not None:
        parts.append(f"resumed from update {section.resumed_from_update}")
    name = section.optimizer_class or "an optimizer"
    if section.optimizer_name not in (None, "", f"optimizer {section.optimizer}"):
        name += f" ({section.optimizer_name})"
    if section.optimizers > 1:
        name = f"optimizer {section.optimizer}, {name}"
    if is_foreign:  # what a log does not tell may have been there
        parts += [_accumulation(section)] if section.accumulation_steps else []
    else:
        parts += [name, section.scheduler_class or "no scheduler", _accumulation(section)]
    if section.max_grad_norm is not None:
        parts.append(f"norm limit {section.max_grad_norm:g}")
    if section.recorded_every:
        parts.append(f"every {section.recorded_every}th attempt is recorded")
    return ", ".join(parts)


def _started(at: float | None) -> str:
    if at is None or at < EARLIEST:
        return ""
    try:
        moment = datetime.fromtimestamp(at, tz=timezone.utc)
    except (OverflowError, OSError, ValueError):
        return ""
    return f" of {moment:%Y-%m-%d %H:%M:%S} UTC"


def _accumulation(section: Section) -> str:
    if section.accumulation_steps is not None:
        return f"accumulation {section.accumulation_steps}"
    inferred = {one.accumulation_steps for one in section.attempts if one.accumulation_inferred}
    if len(inferred) == 1:
        return f"accumulation {inferred.pop()} (inferred)"
    return "accumulation not declared"


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
