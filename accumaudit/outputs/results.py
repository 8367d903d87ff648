"""The findings of all runs as one list, each with a place: what formats for other programs are made of."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath

from accumaudit.engine.findings import BROKEN, FAILED, AuditReport, Finding, RunReport, Verdict, fingerprint
from accumaudit.engine.rule import SEVERITIES
from accumaudit.outputs.words import number, printable, ranks, updates


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, below the folder in which the audit runs."""

    path: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a format may be told."""

    fail_on: str = "error"
    """The lowest severity that gives exit status 1."""
    anchor: Place | None = None
    """Where findings are shown, in place of the line of the log: a line of the training script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The finding of one rule in one run."""

    run: RunReport
    verdict: Verdict
    finding: Finding
    severity: str
    place: Place
    """Where it is shown."""
    recorded: Place
    """The first faulty record."""
    reason: str | None = None
    """Why it is ignored; None: it is not."""

    @property
    def title(self) -> str:
        """`ACC101 fixed-divisor-tail`."""
        return f"{self.verdict.code} {self.verdict.name}"

    @property
    def where(self) -> str:
        """`run first, updates 4, 8 and 12, rank 0`."""
        parts = [f"run {self.run.run_id}", updates(self.finding, self.run)]
        if not self.run.is_foreign:
            parts.append(ranks(self.finding, self.run))
        return printable(", ".join(parts))

    @property
    def seen(self) -> str:
        """What was seen, with the measured value."""
        finding, text = self.finding, printable(self.finding.message)
        if finding.observed is None or finding.expected is None:
            return text
        return f"{text} (measured {number(finding.observed)}, expected {number(finding.expected)})"

    @property
    def message(self) -> str:
        """All of it in one paragraph."""
        text = f"{sentence(self.verdict.summary)} In {self.where}: {self.seen}. {self.verdict.advice}"
        return printable(text)  # somebody's own rule may say anything

    @property
    def fingerprint(self) -> str:
        """The same for the same finding in a later audit."""
        return fingerprint(self.run.run_id, self.verdict.code, self.finding)


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def results(report: AuditReport, options: Options) -> list[Result]:
    """What was found, the highest severity first."""
    found = [
        _result(run, verdict, verdict.finding, verdict.severity, options)
        for run in report.runs
        for verdict in run.verdicts
        if verdict.status == FAILED and verdict.finding is not None
    ]
    return sorted(found, key=lambda one: SEVERITIES.index(one.severity))


def ignored(report: AuditReport, options: Options) -> Iterator[Result]:
    """What was found and is ignored, each with its reason."""
    for run in report.runs:
        for verdict in run.verdicts:
            for one in verdict.ignored:
                why = printable(f"{one.reason} ({one.source})")
                yield _result(run, verdict, one.finding, one.severity, options, why)


def broken(report: AuditReport) -> dict[str, str]:
    """Why rules are broken, by code: the same in every run."""
    found = ((one.code, one.reason or "") for run in report.runs for one in run.with_status(BROKEN))
    return {code: printable(reason) for code, reason in found}


def at_or_above(severity: str, fail_on: str) -> bool:
    """Whether a finding of this severity fails the audit."""
    return fail_on != "never" and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on)


def _result(
    run: RunReport,
    verdict: Verdict,
    finding: Finding,
    severity: str,
    options: Options,
    reason: str | None = None,
) -> Result:
    first = finding.examples[0]
    file, line = (first.file, first.line) if first.file else (run.path, None)
    recorded = Place(relative(file), line or 1)
    return Result(
        run=run,
        verdict=verdict,
        finding=finding,
        severity=severity,
        place=options.anchor or recorded,
        recorded=recorded,
        reason=reason,
    )


def relative(file: str) -> str:
    """A path as services take it: below the folder in which the audit runs, with `/`.

    What lies elsewhere, in another folder of the machine or at a URL, is named from its root on: services
    refuse a report that names an absolute path.
    """
    here, path = Path.cwd(), PurePath(file)
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    text = re.sub(r"^[A-Za-z][A-Za-z0-9+.-]*:/+", "", path.as_posix())
    parts = [part for part in posixpath.normpath(text).split("/") if part not in ("", ".", "..")]
    return printable("/".join(parts)) or "log"
