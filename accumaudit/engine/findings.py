"""What an audit says; every output reads these and nothing else of the engine."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Final

from accumaudit.engine.rule import SEVERITIES

FAILED: Final = "failed"
PASSED: Final = "passed"
NOT_CHECKED: Final = "not_checked"
BROKEN: Final = "broken"
STATUSES: Final = (FAILED, PASSED, NOT_CHECKED, BROKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One faulty row and the record where it can be seen."""

    launch: int | None
    optimizer: int | None
    attempt_id: int | None
    optimizer_update_id: int | None
    rank: int | None
    """None where the fault is about all ranks; file and line are then of the lowest one."""
    file: str | None
    line: int | None
    message: str
    observed: float | None
    expected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """All faulty rows of one rule in one run."""

    count: int
    """Attempts with a fault."""
    first_update: int | None
    last_update: int | None
    ranks: tuple[int, ...]
    """The ranks with a fault; all of the run where the fault is about all."""
    message: str
    """Of the first row with the highest severity, as are observed and expected."""
    observed: float | None
    expected: float | None
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Faulty rows that somebody asked to leave out of the report."""

    reason: str
    """Why, in the words of who asked."""
    source: str
    """Where it was asked: the name of a file, or of an option."""
    severity: str
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one rule says of one run."""

    code: str
    name: str
    severity: str
    """The rule's, or the highest of the finding's rows."""
    status: str
    judged: int
    """Rows that the rule could judge and that no other finding explains."""
    reason: str | None
    """Why it was not checked, or how the rule broke."""
    finding: Finding | None
    summary: str
    fix: str
    ignored: tuple[Ignored, ...] = ()
    """What was left out of the finding, or of a rule that would have failed."""

    @property
    def advice(self) -> str:
        """The first paragraph of the fix, in one line."""
        return " ".join(self.fix.partition("\n\n")[0].split())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLine:
    """A line that was left out."""

    file: str
    line: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWithoutLog:
    """A text beside the runs that holds no record of a training."""

    file: str
    why: str
    """What it looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run and the verdict of each rule."""

    run_id: str
    path: str
    format: str
    """ledger, or the kind of a foreign log."""
    title: str
    """What messages call it."""
    runtime: str | None
    ranks: tuple[int, ...]
    """Those that wrote."""
    world_size: int | None
    updates: int
    """Attempts that were not skipped, over all launches and optimizers."""
    attempts: int
    recorded: int
    """Attempts with a record: fewer where only every so many were to be written."""
    recorded_ranks: tuple[int, ...] | None
    """The ranks that were to write, where not all were."""
    skipped: int
    verdicts: tuple[Verdict, ...]
    unreadable: tuple[UnreadableLine, ...]
    remarks: tuple[str, ...]
    """What the recording tells of itself: what was not to be written, and its holes."""
    holes: tuple[str, ...]
    """The remarks that nobody asked for: records that were lost, hooks that failed, what no hook sees."""

    @property
    def is_foreign(self) -> bool:
        """Whether another program wrote the log: its records are told by its own count of steps."""
        return self.format != "ledger"

    def with_status(self, status: str) -> list[Verdict]:
        """The verdicts of one status; the failed ones with the highest severity first."""
        chosen = [verdict for verdict in self.verdicts if verdict.status == status]
        return sorted(chosen, key=lambda verdict: SEVERITIES.index(verdict.severity))


def fingerprint(run_id: str, code: str, finding: Finding) -> str:
    """The same for the same finding in a later audit: no place in a file, no wording, no count."""
    return hashlib.sha256(f"{code}\0{run_id}\0{finding.first_update}".encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The runs that were read."""

    runs: tuple[RunReport, ...]
    no_logs: tuple[FileWithoutLog, ...] = ()
    unused: tuple[str, ...] = ()
    """What was to be ignored in these runs and is not there, in sentences."""

    def summary(self) -> dict[str, int]:
        """The number of verdicts of each status."""
        counts = Counter(verdict.status for run in self.runs for verdict in run.verdicts)
        return {status: counts[status] for status in STATUSES}

    def worst(self) -> str | None:
        """The highest severity among the findings."""
        found = {verdict.severity for run in self.runs for verdict in run.with_status(FAILED)}
        return next((severity for severity in SEVERITIES if severity in found), None)
