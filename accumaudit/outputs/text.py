"""The report for a person at a terminal, readable without any manual."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator
from io import StringIO
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import (
    BROKEN,
    FAILED,
    NOT_CHECKED,
    PASSED,
    AuditReport,
    Example,
    Finding,
    Ignored,
    RunReport,
    Verdict,
)
from accumaudit.outputs.words import absent_ranks, footer, number, plural, printable, ranks, updates

if TYPE_CHECKING:
    from rich.console import Console

    from accumaudit.outputs.results import Options

COLOURS: Final = {
    "error": "bold red",
    "warning": "bold yellow",
    "note": "bold cyan",
    "broken": "bold magenta",
}

WIDEST: Final = 110
IN_FULL: Final = 3
"""Runs up to which each is told with all reasons."""

LABEL: Final = 15
"""Columns of the labels at the left, indent included."""


def rendered(report: AuditReport, _options: Options) -> str:
    """The report without colours, for a file."""
    from rich.console import Console

    page = StringIO()
    render(report, Console(file=page, force_terminal=False))
    return page.getvalue().rstrip("\n")


def render(report: AuditReport, console: Console) -> None:
    """Write the report to the console."""
    page = _Page(console)
    for run in report.runs:
        _render_run(run, page, brief=len(report.runs) > IN_FULL)
    if any(run.with_status(FAILED) for run in report.runs):
        code = next(run.with_status(FAILED)[0].code for run in report.runs if run.with_status(FAILED))
        page.line(f"`accumaudit explain {code}` says why it matters and when it is no fault.", style="dim")
    page.line(footer(report), style="bold" if report.worst() else "bold green")


class _Page:
    """Lines of text, wrapped at words alone, so that a path is never cut."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, WIDEST) if console.is_terminal else WIDEST

    def line(self, text: str = "", *, style: str = "", head: str = "") -> None:
        """Write a line as it is; the style is for the head where there is one."""
        from rich.text import Text

        encoding = self._console.encoding
        known = f"{head}{text}".encode(encoding, "backslashreplace").decode(encoding)
        styled = Text(known)
        styled.stylize(style, 0, len(head) or len(known))
        self._console.print(styled, soft_wrap=True, highlight=False)

    def labelled(self, label: str, text: str) -> None:
        """Write a text beside its label, on as many lines as it needs."""
        head = f"  {label:<{LABEL - 2}}"
        room = max(self._width - LABEL, 30)
        rows = textwrap.wrap(printable(text), room, break_long_words=False, break_on_hyphens=False)
        for row in rows:
            self.line(row, style="dim", head=head)
            head = " " * LABEL


def _render_run(run: RunReport, page: _Page, *, brief: bool) -> None:
    page.line(printable(f"{run.run_id}: {size(run)}"), style="bold")
    for remark in run.remarks:
        page.labelled("remark", remark)
    for verdict in run.with_status(FAILED):
        page.line()
        _render_fault(verdict, run, page)
    for verdict in run.with_status(BROKEN):
        page.line()
        page.line(f" {verdict.code} {verdict.name}", style=COLOURS["broken"], head="broken rule")
        page.labelled("reason", verdict.reason or "")
    page.line()
    for verdict in run.verdicts:
        for one in verdict.ignored:
            page.labelled("ignored", _left_out(verdict, one, run))
    if not run.with_status(FAILED) and run.with_status(PASSED):
        page.labelled("found", "no fault in what could be checked")
    _render_passed(run, page)
    if brief:
        _count_unchecked(run, page)
    else:
        _render_unchecked(run, page)
    page.line()


def size(run: RunReport) -> str:
    """How much of the run was read."""
    if run.is_foreign:
        if not run.recorded:
            return f"{run.title}, no updates"
        steps = f", {plural(run.skipped, 'step')} skipped" if run.skipped else ""
        return f"{run.title}, {plural(run.recorded, 'record')} of {plural(run.attempts, 'step')}{steps}"
    parts = [plural(run.updates, "update")]
    if run.skipped:
        parts.append(f"{plural(run.skipped, 'attempt')} skipped")
    parts.append(_ranks_read(run))
    if run.runtime:
        parts.append(run.runtime)
    return ", ".join(parts)


def _ranks_read(run: RunReport) -> str:
    world = run.world_size or len(run.ranks)
    if len(run.ranks) >= world:
        return plural(len(run.ranks), "rank")
    absent = absent_ranks(run)
    if not absent:
        return f"{plural(len(run.ranks), 'rank')} of {world}"
    return f"{plural(len(run.ranks), 'rank')} of {world} (no record of rank {absent})"


def _render_fault(verdict: Verdict, run: RunReport, page: _Page) -> None:
    finding = verdict.finding
    if finding is None:
        return
    page.line(f" {verdict.code} {verdict.name}", style=COLOURS[verdict.severity], head=verdict.severity)
    page.labelled("what", verdict.summary)
    page.labelled("seen", finding.message)
    if finding.observed is not None and finding.expected is not None:
        page.labelled("measured", f"{number(finding.observed)}, expected {number(finding.expected)}")
    page.labelled("where", ", ".join(_where(finding, run)))
    first = finding.examples[0]
    if first.file:
        page.labelled("first", _place(first))
    page.labelled("fix", verdict.advice)


def _left_out(verdict: Verdict, one: Ignored, run: RunReport) -> str:
    where = updates(one.finding, run)
    return f"{one.severity} {verdict.code} {verdict.name} in {where}: {one.reason} ({one.source})"


def _where(finding: Finding, run: RunReport) -> Iterator[str]:
    yield updates(finding, run)
    if not run.is_foreign:  # whose rank a log is of, it seldom tells
        yield ranks(finding, run)
    if finding.count <= run.recorded:  # attempts that a later launch did again are counted once
        yield f"{finding.count:,} of {_attempts(run)}"


def _attempts(run: RunReport) -> str:
    """What was judged of the attempts."""
    if run.is_foreign:
        return plural(run.recorded, "record")
    return plural(run.recorded, "attempt" if run.recorded == run.attempts else "recorded attempt")


def _place(example: Example) -> str:
    return f"{example.file}:{example.line}" if example.line else str(example.file)


def _render_passed(run: RunReport, page: _Page) -> None:
    """What was judged and found right."""
    passed = [verdict.name for verdict in run.verdicts if verdict.status == PASSED]
    if passed:
        judged = f"{plural(len(passed), 'rule')}, over {_attempts(run)}"
        page.labelled("passed", f"{judged}: {', '.join(passed)}")
    elif not run.with_status(FAILED):
        page.labelled("passed", "no rule: nothing in this run could be judged")


def _count_unchecked(run: RunReport, page: _Page) -> None:
    """How many rules could not judge: with many runs, the reasons of each would hide what was found."""
    unchecked = run.with_status(NOT_CHECKED)
    if unchecked:
        page.labelled("not checked", f"{plural(len(unchecked), 'rule')}; ask for this run alone to see why")


def _render_unchecked(run: RunReport, page: _Page) -> None:
    """What could not be judged, with the reasons."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for verdict in run.verdicts:
        if verdict.status == NOT_CHECKED:
            reasons[verdict.reason or ""].append(verdict.name)
    label = "not checked"
    for reason, names in reasons.items():
        which = ", ".join(names) if len(names) < len(run.verdicts) else "every rule"
        page.labelled(label, f"{which}: {reason}")
        label = ""
