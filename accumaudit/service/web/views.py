"""What the pages say, in words: made of a snapshot, with nothing in it that a template must decide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from accumaudit.engine.findings import NOT_CHECKED, PASSED, Finding, RunReport, Verdict
from accumaudit.outputs.advice import fixes, framework, own_fix
from accumaudit.outputs.text import size
from accumaudit.outputs.words import number, plural, printable, ranks, spans, updates
from accumaudit.service.web.names import quoted

if TYPE_CHECKING:
    from accumaudit.service.snapshot import FindingView, Intake, OptimizerView, Point, RankView, RunView

UNKNOWN: Final = "\N{EN DASH}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A time of day, for people and for programs."""

    text: str
    iso: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run among all."""

    name: str
    address: str
    state: str
    severity: str
    """The highest among its findings; "none"."""
    found: str
    judged: str
    last: Moment | None
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One finding."""

    code: str
    name: str
    severity: str
    what: str
    seen: str
    measured: str | None
    where: str
    first: str | None
    """The file and the line of the first faulty record."""
    advice: str
    own_fix: tuple[str, str] | None
    """What to do in this run's framework."""
    fixes: tuple[tuple[str, str], ...]
    """In each."""
    since: Moment | None
    withdrawn: bool


def moment(seconds: float | None) -> Moment | None:
    """Seconds since the epoch as a time of day in UTC; nothing where it is none."""
    try:
        then = datetime.fromtimestamp(math.nan if seconds is None else seconds, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return Moment(text=f"{then:%Y-%m-%d %H:%M:%S} UTC", iso=f"{then:%Y-%m-%dT%H:%M:%SZ}")


def value(measured: float | None) -> str:
    """A number, short; a dash where it is not known."""
    return UNKNOWN if measured is None else short(measured)


def short(measured: float) -> str:
    """A number as it is read off a plot."""
    return f"{measured:,.0f}" if 1e4 <= abs(measured) < 1e9 else f"{measured:.4g}"


def row(run: RunView) -> Row:
    """A run among all."""
    worst = next((one.verdict.severity for one in run.active), "none")
    return Row(
        name=shown(run.run_id),
        address=f"/runs/{quoted(run.run_id)}",
        state=run.state,
        severity=worst,
        found=found(run),
        judged=", ".join(one.code for one in run.active[:6]) + ", …" * (len(run.active) > 6),
        last=moment(run.last_record_time),
        size=printable(size(run.report)),
    )


def shown(run_id: str) -> str:
    """A run's name for people, never empty."""
    return printable(run_id) or "(no name)"


def found(run: RunView) -> str:
    """`2 faults, 1 note`."""
    notes = sum(one.verdict.severity == "note" for one in run.active)
    faults = len(run.active) - notes
    parts = [plural(faults, "fault")] * (faults > 0) + [plural(notes, "note")] * (notes > 0)
    return ", ".join(parts) or ("no fault" if run.report.with_status(PASSED) else "not judged yet")


def card(one: FindingView, view: RunView) -> Card:
    """A finding with what to do."""
    run, verdict, finding = view.report, one.verdict, one.verdict.finding
    assert finding is not None
    first = finding.examples[0] if finding.examples else None
    return Card(
        code=printable(verdict.code),
        name=printable(verdict.name),
        severity=verdict.severity,
        what=printable(verdict.summary),
        seen=printable(finding.message),
        measured=_measured(finding),
        where=printable(_where(finding, run)),
        first=printable(f"{first.file}:{first.line}") if first and first.file else None,
        advice=printable(verdict.advice),
        own_fix=own_fix(verdict, framework(run, view.wrapper)),
        fixes=fixes(verdict),
        since=moment(one.first_seen),
        withdrawn=one.withdrawn,
    )


def _measured(finding: Finding) -> str | None:
    if finding.observed is None or finding.expected is None:
        return None
    return f"{number(finding.observed)}, expected {number(finding.expected)}"


def _where(finding: Finding, run: RunReport) -> str:
    parts = [updates(finding, run)]
    if not run.is_foreign:
        parts.append(ranks(finding, run))
    parts.append(plural(finding.count, "attempt"))
    return ", ".join(parts)


def unchecked(run: RunReport) -> list[tuple[str, list[Verdict]]]:
    """The reasons for what could not be judged, and the rules of each."""
    reasons: dict[str, list[Verdict]] = {}
    for verdict in run.with_status(NOT_CHECKED):
        reasons.setdefault(printable(verdict.reason or ""), []).append(verdict)
    return list(reasons.items())


def facts(run: RunView) -> list[tuple[str, str | Moment]]:
    """What the run is, each with a label."""
    report = run.report
    rows: list[tuple[str, str | Moment | None]] = [
        ("Size", printable(size(report))),
        ("Started", moment(run.started_at)),
        ("Last record", moment(run.last_record_time)),
        ("Launches", str(run.launches) if run.launches > 1 else None),
        ("Wrapper", printable(run.wrapper) if run.wrapper and run.wrapper != "none" else None),
        ("Judged through", None if run.judged_through is None else f"attempt {run.judged_through:,}"),
        ("Not waited for", f"rank {spans(run.late_ranks)}" if run.late_ranks else None),
    ]
    return [(label, text) for label, text in rows if text is not None]


def title(optimizer: OptimizerView) -> str:
    """What an optimizer's part of the page is called."""
    own = f"Optimizer {optimizer.index}"
    return own if optimizer.name.lower() in ("", own.lower()) else f"{own}: {printable(optimizer.name)}"


def attempt_cells(point: Point) -> list[str]:
    """One attempt as a row of the table."""
    outcome = {True: "applied", False: "skipped", None: "unknown"}[point.applied]
    number_of_update = UNKNOWN if point.update_id is None else f"{point.update_id:,}"
    steps = UNKNOWN if point.microbatches is None else f"{point.microbatches:,}"
    return [
        f"{point.attempt_id:,}",
        number_of_update,
        outcome,
        steps,
        *(
            value(one)
            for one in (
                point.valid_tokens,
                point.loss,
                point.learning_rate,
                point.grad_norm_before,
                point.grad_norm_after,
                point.total_weight,
            )
        ),
    ]


ATTEMPT_HEADS: Final = (
    *("Attempt", "Update", "Outcome", "Micro-steps", "Valid tokens", "Loss", "Rate"),
    *("Norm before clipping", "Norm at the step", "Total weight"),
)


def rank_cells(rank: RankView) -> list[str]:
    """The last record of one rank as a row of the table."""
    when = moment(rank.time)
    return [
        str(rank.rank),
        str(rank.optimizer),
        f"{rank.attempt_id:,}",
        when.text if when else UNKNOWN,
        *(value(one) for one in (rank.loss, rank.grad_norm_after, rank.valid_tokens, rank.window_seconds)),
    ]


RANK_HEADS: Final = (
    *("Rank", "Optimizer", "Attempt", "Written", "Loss", "Norm at the step", "Valid tokens"),
    "Seconds in the window",
)


def intake(seen: Intake) -> list[tuple[str, str]]:
    """What the service has read."""
    rows = [
        ("Records read", f"{seen.records:,}"),
        ("Bytes read", f"{seen.bytes:,}"),
        ("Files followed", f"{seen.files_followed:,}"),
        ("Files at rest", f"{seen.files_at_rest:,}"),
        ("Judgements", f"{seen.judgements:,}"),
    ]
    oddities = [
        ("Lines that are no record", seen.malformed_records),
        ("Bytes written and not yet read", seen.behind_bytes),
        ("Files that could not be read", seen.read_errors),
        ("Times that the state could not be saved", seen.state_write_errors),
        ("Judgements that failed", seen.failed_judgements),
        ("Errors in the service itself", seen.internal_errors),
        ("Runs beyond the limit", seen.runs_left_out),
    ]
    return rows + [(label, f"{count:,}") for label, count in oddities if count]


def order(runs: Sequence[RunView]) -> list[RunView]:
    """Those that wrote last first."""
    return sorted(runs, key=lambda run: -(run.last_record_time or 0.0))
