"""What a notebook shows of a ledger, a table and a post-mortem: HTML that needs no script and no style sheet.

Colours are the notebook's own, so that light and dark themes both fit; all text that comes from a record is
escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import FAILED, NOT_CHECKED, PASSED, STATUSES, AuditReport, RunReport, Verdict
from accumaudit.outputs.postmortem.views import OUTCOMES
from accumaudit.outputs.words import footer, number, plural, printable, ranks, spans, updates
from accumaudit.postmortem.roles import role

if TYPE_CHECKING:
    from accumaudit.comparison.model import Comparison, Difference, Spread
    from accumaudit.postmortem.model import PostMortem, Suspect

RUNS: Final = 20
"""Runs of a ledger that are shown."""
FINDINGS: Final = 10
"""Findings of a run that are shown, the worst first."""
SUSPECTS: Final = 5
TEXT: Final = 100
"""Characters of a value, and of the name of a type."""
ITEMS: Final = 4
"""Entries of a list that are shown."""
DIGITS: Final = 10
"""Of a number: seconds since the epoch stay whole."""

_BADGES: Final = {"error": "#b3261e", "warning": "#855300", "note": "#0b57a4"}
"""Dark enough for white letters, and no darker: they stand out on black too."""
_LINE: Final = "1px solid rgba(128, 128, 128, .4)"
_CELL: Final = "text-align: left; vertical-align: top; padding: .25em .75em .25em 0"
_FAINT: Final = "opacity: .75"


def ledger(run_ids: Sequence[str], report: AuditReport | None, *, closed: bool) -> str:
    """The runs of a ledger with what the rules found; names alone where they cannot be judged any more."""
    head = plural(len(run_ids), "run") + (", closed" if closed else "")
    parts = [_paragraph(_bold("accumaudit ledger"), _text(f": {head}"))]
    if report is None:
        parts.append(_paragraph(_text(", ".join(run_ids[:RUNS]) + (", ..." if len(run_ids) > RUNS else ""))))
        return _block(parts)
    heads = ("run", "log of", "ranks", "updates", "skipped", "found", "first wrong")
    parts.append(_table(heads, (_run_row(run) for run in report.runs[:RUNS])))
    if len(report.runs) > RUNS:
        parts.append(_paragraph(_text(f"{plural(len(report.runs) - RUNS, 'further run')} not shown.")))
    for run in report.runs[:RUNS]:
        parts += _findings(run, named=len(report.runs) > 1)
    parts.append(_paragraph(_text(footer(report)), style=_FAINT))
    return _block(parts)


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]], count: int) -> str:
    """The first rows of a table, below the names of its columns and their types."""
    shown = f", the first {len(rows)} shown" if count > len(rows) else ""
    size = f"{plural(count, 'row')} of {plural(len(columns), 'column')}{shown}"
    heads = (
        f'{_bold(name)}<br><span style="{_FAINT}">{_unbroken(_cut(kind))}</span>' for name, kind in columns
    )
    lines = ([_unbroken(_value(value)) for value in row] for row in rows)
    return _block([_rows(heads, lines), _paragraph(_text(size), style=_FAINT)])


def post_mortem(told: PostMortem) -> str:
    """The verdict, the strongest suspects with what to do, and from where to resume."""
    _, outcome = OUTCOMES[told.outcome]
    parts = [_paragraph(_bold(f"Post-mortem of {told.run.run_id}: {outcome}"))]
    parts += [_paragraph(_text(sentence)) for sentence in told.verdict]
    suspects = (*told.suspects, *told.symptoms)
    if suspects:
        heads = ("", "rule", "where", "ranks", "what is seen", "what to do")
        parts.append(_table(heads, (_suspect_row(one, told.run) for one in suspects[:SUSPECTS])))
    if len(suspects) > SUSPECTS:
        parts.append(_paragraph(_text(f"{plural(len(suspects) - SUSPECTS, 'further finding')} not shown.")))
    parts.append(_paragraph(_text(told.advice)))
    unchecked = sum(len(group.verdicts) for group in told.unchecked)
    if unchecked:
        parts.append(_paragraph(_text(f"{plural(unchecked, 'rule')} could not be checked."), style=_FAINT))
    return _block(parts)


def comparison(compared: Comparison) -> str:
    """What came out, the fields that differ, and the values of each over both runs."""
    names = [side.name for side in compared.sides]
    parts = [_paragraph(_bold(" against ".join(names)))]
    parts += [_paragraph(_text(sentence)) for sentence in (*compared.verdict, compared.data)]
    parts.append(_paragraph(_text(f"Aligned by {compared.by}: {compared.why}."), style=_FAINT))
    differ = () if compared.first is None else (compared.first, *compared.beside, *compared.later)
    if differ:
        parts.append(_table(("first at", "field", *names), map(_difference_row, differ[:FINDINGS])))
    if len(differ) > FINDINGS:
        parts.append(_paragraph(_text(f"{plural(len(differ) - FINDINGS, 'further field')} not shown.")))
    if compared.summary:
        spreads = ([_text(row.label), *map(_spread, row.sides)] for row in compared.summary)
        parts.append(_table(("over the run", *names), spreads))
    return _block(parts)


def _difference_row(one: Difference) -> list[str]:
    return [_text(one.where), _text(one.label), *(_text(_value(value)) for value in one.values)]


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return _text("not known")
    low, mean, high = (number(value) for value in (spread.lowest, spread.mean, spread.highest))
    return _text(low if low == high else f"{mean} ({low} to {high})")


def _run_row(run: RunReport) -> list[str]:
    counts = {status: len(run.with_status(status)) for status in STATUSES}
    found: dict[str, int] = {}
    for verdict in run.with_status(FAILED):
        found[verdict.severity] = found.get(verdict.severity, 0) + 1
    badges = " ".join(_badge(severity, plural(count, severity)) for severity, count in found.items())
    first = _first_wrong(run)
    return [
        _bold(run.run_id),
        _text(" / ".join(filter(None, (run.title, run.runtime)))),
        _text(_ranks(run)),
        _text(f"{run.updates:,}"),
        _text(f"{run.skipped:,}"),
        badges or _text(f"nothing ({counts[PASSED]} rules passed, {counts[NOT_CHECKED]} not checked)"),
        _text(f"{_where(first, run)} ({first.code})" if first else ""),
    ]


def _ranks(run: RunReport) -> str:
    wrote = spans(run.ranks)
    if run.world_size is None or run.world_size == len(run.ranks):
        return wrote
    return f"{wrote} of {run.world_size}"


def _first_wrong(run: RunReport) -> Verdict | None:
    """The error or warning about the training itself with the earliest attempt, a cause before a symptom."""
    dated = []
    for verdict in run.with_status(FAILED):
        if verdict.severity == "note" or role(verdict.code) not in ("cause", "symptom"):
            continue
        assert verdict.finding is not None
        first = verdict.finding.examples[0]
        if first.attempt_id is not None:
            is_symptom = role(verdict.code) == "symptom"
            dated.append(((first.launch or 1, first.attempt_id, is_symptom), verdict))
    return min(dated, key=lambda one: one[0])[1] if dated else None


def _where(verdict: Verdict, run: RunReport) -> str:
    """The update at which a finding begins."""
    assert verdict.finding is not None
    if verdict.finding.first_update is None:
        return updates(verdict.finding, run)
    return f"{'step' if run.is_foreign else 'update'} {verdict.finding.first_update}"


def _findings(run: RunReport, *, named: bool) -> Iterator[str]:
    failed = run.with_status(FAILED)
    if failed:
        heads = ("", "rule", "where", "ranks", "what is seen")
        if named:
            yield _paragraph(_bold(run.run_id))
        yield _table(heads, (_finding_row(verdict, run) for verdict in failed[:FINDINGS]))
    if len(failed) > FINDINGS:
        yield _paragraph(_text(f"{plural(len(failed) - FINDINGS, 'further finding')} not shown."))
    for verdict in run.with_status("broken"):
        yield _paragraph(_text(f"{verdict.code} {verdict.name} is broken: {verdict.reason}"))
    remarks = [*run.holes]
    if run.unreadable:
        remarks.append(f"{plural(len(run.unreadable), 'line')} left out that cannot be read")
    if remarks:
        yield _paragraph(_text(f"{run.run_id}: {'; '.join(remarks)}."), style=_FAINT)


def _finding_row(verdict: Verdict, run: RunReport) -> list[str]:
    finding = verdict.finding
    assert finding is not None
    return [
        _badge(verdict.severity, verdict.severity),
        _unbroken(f"{verdict.code} {verdict.name}"),
        _text(updates(finding, run)),
        _text(ranks(finding, run)),
        _text(finding.message),
    ]


def _suspect_row(suspect: Suspect, run: RunReport) -> list[str]:
    verdict = suspect.verdict
    fix = f"{suspect.own_fix[0]}: {suspect.own_fix[1]}" if suspect.own_fix else verdict.advice
    return [*_finding_row(verdict, run), _text(fix)]


def _value(value: object) -> str:
    """A value of a cell, short."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, list | tuple):
        more = ", ..." if len(value) > ITEMS else ""
        return _cut(f"[{', '.join(map(_value, value[:ITEMS]))}{more}]")
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else text[: TEXT - 3] + "..."


def _text(text: str) -> str:
    return html.escape(printable(text))


def _bold(text: str) -> str:
    return f"<strong>{_text(text)}</strong>"


def _unbroken(text: str) -> str:
    return f'<span style="white-space: nowrap">{_text(text)}</span>'


def _badge(severity: str, text: str) -> str:
    style = f"background: {_BADGES[severity]}; color: #fff; padding: 0 .5em; border-radius: .6em"
    return f'<span style="{style}">{_unbroken(text)}</span>'


def _paragraph(*content: str, style: str = "") -> str:
    return f'<p style="margin: .4em 0; {style}">{"".join(content)}</p>'


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    return _rows(map(_bold, heads), rows)


def _rows(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col" style="{_CELL}; border-bottom: {_LINE}">{one}</th>' for one in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div style="overflow-x: auto">{table}</div>'


def _block(parts: Iterable[str]) -> str:
    return f"<div>{''.join(parts)}</div>"
