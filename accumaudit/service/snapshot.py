"""What is known of all runs at one moment: never changed, so that every output reads it without a lock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from accumaudit.engine.findings import FAILED, AuditReport, RunReport, Verdict

RUNNING: Final = "running"
SILENT: Final = "silent"
BROKEN_OFF: Final = "broken off"
FINISHED: Final = "finished"

STATES: Final = (RUNNING, SILENT, BROKEN_OFF, FINISHED)
"""A run is silent where nothing has been written for long and no close mark says why."""

SKIP_REASONS: Final = ("overflow", "unknown")
"""Why an attempt left the parameters as they were: a scale overflowed, or the record does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One attempt of one optimizer over all ranks, as `windows` has it; None where it is not known."""

    launch: int
    optimizer: int
    attempt_id: int
    update_id: int | None
    time: float | None
    """Seconds since the epoch."""
    applied: bool | None
    microbatches: int | None
    accumulation_steps: int | None
    valid_tokens: float | None
    """N, over all ranks."""
    tokens_so_far: float | None
    """Valid tokens of the run's updates up to and with this one."""
    loss: float | None
    learning_rate: float | None
    scheduled_rate: float | None
    """The rate that the scheduler announced for this attempt after the one before."""
    grad_norm_before: float | None
    grad_norm_after: float | None
    grad_scale: float | None
    total_weight: float | None
    """T; right is 1."""
    distortion_min: float | None
    distortion_max: float | None
    equivalent_batch: float | None
    ranks: int = 1
    """How many wrote a record of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """The last record of one rank and optimizer."""

    rank: int
    optimizer: int
    attempt_id: int
    update_id: int | None
    time: float | None
    learning_rate: float | None
    loss: float | None
    grad_norm_before: float | None
    grad_norm_after: float | None
    grad_scale: float | None
    valid_tokens: float | None
    window_seconds: float | None

    @property
    def fields(self) -> dict[str, float | None]:
        """What ranks may be compared by."""
        return {name: getattr(self, name) for name in RANK_FIELDS}


RANK_FIELDS: Final = (
    "learning_rate",
    "loss",
    "grad_norm_before",
    "grad_norm_after",
    "grad_scale",
    "valid_tokens",
    "window_seconds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerView:
    """What one optimizer of a run has done, counted over attempts (not over ranks)."""

    index: int
    name: str
    """As the record names it, or its class."""
    attempts: int
    updates: int
    skipped: dict[str, int]
    """By SKIP_REASONS."""
    microbatches: int
    """Over ranks."""
    valid_tokens: float
    """Over ranks; what is unknown counts as none."""
    nonfinite_grad_norms: int
    last: Point | None
    """The newest attempt that all ranks have written."""
    history: tuple[Point, ...] = ()
    """The newest attempts in their order, a bounded number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """What one rule found in one run: told once, and kept up to date."""

    verdict: Verdict
    """Its finding is not None."""
    first_seen: float
    """Seconds since the epoch; when the service saw it, not when it happened."""
    last_seen: float
    most: int = 0
    """The most attempts that it has ever had: a total that never goes down, over restarts too."""
    withdrawn: bool = False
    """A judgement over the whole record does not have it any more."""

    @property
    def code(self) -> str:
        """The rule's."""
        return self.verdict.code

    @property
    def count(self) -> int:
        """Attempts that it has now."""
        return self.verdict.finding.count if self.verdict.finding else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run."""

    report: RunReport
    """Verdicts as `check` gives them, over what was judged so far."""
    state: str
    launches: int
    started_at: float | None
    last_record_time: float | None
    """Of the newest record, by the clock of who wrote it."""
    wrapper: str | None = None
    findings: tuple[FindingView, ...] = ()
    """The highest severity first; those withdrawn last."""
    optimizers: tuple[OptimizerView, ...] = ()
    ranks: tuple[RankView, ...] = ()
    late_ranks: tuple[int, ...] = ()
    """Those that the others are not waited with for any more."""
    judged_through: int | None = None
    """The attempt up to which rules of scope transaction and pair were run."""
    version: int = 0
    """Grows with every change."""

    @property
    def run_id(self) -> str:
        """Its name: anything that a folder may be called."""
        return self.report.run_id

    @property
    def active(self) -> tuple[FindingView, ...]:
        """The findings that stand."""
        return tuple(one for one in self.findings if not one.withdrawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """What the service has read so far, and how well it keeps up."""

    bytes: int = 0
    records: int = 0
    malformed_records: int = 0
    files_followed: int = 0
    files_at_rest: int = 0
    read_errors: int = 0
    state_write_errors: int = 0
    judgements: int = 0
    judgement_seconds: float = 0.0
    """CPU time of the rules."""
    failed_judgements: int = 0
    internal_errors: int = 0
    """Errors in the service itself that should not be."""
    runs_left_out: int = 0
    """Runs beyond the limit, which nothing is known of."""
    lag_buckets: dict[float, int] = field(default_factory=dict)
    """Records by the seconds between their own time and their reading, cumulative up to each bound."""
    lag_sum: float = 0.0
    lag_count: int = 0
    behind_bytes: int = 0
    """Written and not yet read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All runs, by name."""

    time: float
    runs: tuple[RunView, ...] = ()
    intake: Intake = field(default_factory=Intake)
    ready: bool = True
    """Everything that was there at the start has been read."""
    troubles: tuple[str, ...] = ()
    """What is wrong with the service itself, in sentences: the folder is gone, the disk is full."""

    def run(self, run_id: str) -> RunView | None:
        """The run of this name."""
        return next((one for one in self.runs if one.run_id == run_id), None)

    def audit(self) -> AuditReport:
        """The runs as `check` reports them."""
        return AuditReport(runs=tuple(one.report for one in self.runs))


def newest_attempt(attempts: Iterable[tuple[int, int]]) -> int | None:
    """The last of the newest launch, of attempts with the launches that count them."""
    return max(attempts, default=(0, None))[1]


def findings_of(report: RunReport, seen: float) -> tuple[FindingView, ...]:
    """The findings of a report that has just been made."""
    return tuple(
        FindingView(verdict=verdict, first_seen=seen, last_seen=seen)
        for verdict in report.with_status(FAILED)
    )
