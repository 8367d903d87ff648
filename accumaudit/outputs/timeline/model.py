"""What a timeline holds; None is everywhere what the record does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accumaudit.engine.findings import RunReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One row that a rule found faulty and that no other finding explains."""

    code: str
    name: str
    severity: str
    rank: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One micro-step of one rank."""

    micro_step: int
    n: float | None
    loss_weight: float | None
    w: float | None
    distortion: float | None
    """w times the tokens of the update: 1 where each token counts as it should."""
    weight_uniform: bool | None
    loss: float | None
    loss_scale: float | None
    samples: int | None
    input_positions: int | None
    attended_positions: int | None
    masked_positions: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDetail:
    """What one rank wrote of an attempt."""

    rank: int
    file: str | None
    line: int | None
    events: str | None
    applied: bool | None
    microbatches: int | None
    discarded_microbatches: int | None
    learning_rate: float | None
    grad_norm_before_clip: float | None
    grad_norm_after_clip: float | None
    grad_norm_after_scope: str | None
    norm_nonfinite: bool
    grad_scale: float | None
    grad_rescale: float | None
    skip_evidence: str | None
    window_sums: dict[str, Any] | None
    micro_steps: tuple[MicroStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of one optimizer, over all ranks."""

    launch: int
    optimizer: int
    attempt_id: int
    optimizer_update_id: int | None
    applied: bool | None
    """None too where some ranks applied and others skipped."""
    applied_ranks: int
    skipped_ranks: int
    microbatches: int | None
    microbatches_min: int | None
    discarded_microbatches: int | None
    accumulation_steps: int | None
    accumulation_inferred: bool
    valid_tokens: float | None
    total_weight: float | None
    weight_cause: str | None
    tolerance: float
    distortion_min: float | None
    distortion_max: float | None
    loss: float | None
    loss_nonfinite: bool
    learning_rate_min: float | None
    learning_rate_max: float | None
    grad_norm_before_clip: float | None
    grad_norm_after_clip: float | None
    norm_nonfinite: bool
    grad_scale_min: float | None
    grad_scale_max: float | None
    events: str | None
    """The word of the lowest rank, as it was written."""
    codes: tuple[str, ...]
    """Of the rules that found a fault here, the highest severity first."""
    severity: str | None
    """The highest of theirs."""
    place: int
    """From 1, among the attempts of this launch and optimizer."""
    faulty_so_far: int
    """Attempts with a fault up to here, this one included."""
    faults: tuple[Fault, ...] = ()
    """In detail, where that is asked for, like the next."""
    ranks: tuple[RankDetail, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One mark, of all the ranks that wrote it."""

    launch: int
    optimizer: int | None
    attempt_id: int
    """Attempts before it."""
    kind: str
    name: str | None
    epoch: int | None
    reason: str | None
    finished: bool | None
    leftover_microbatches: int | None
    lost_records: int | None
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The attempts of one optimizer in one launch: those that are shown, and the marks among them."""

    launch: int
    launches: int
    started_at: float | None
    ranks: tuple[int, ...]
    """Those that wrote."""
    resumed_from_update: int | None
    optimizer: int
    optimizers: int
    optimizer_class: str | None
    optimizer_name: str | None
    scheduler_class: str | None
    accumulation_steps: int | None
    max_grad_norm: float | None
    recorded_every: int | None
    total: int
    """Attempts, shown or not."""
    faulty: int
    """Those with a fault."""
    attempts: tuple[Attempt, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run."""

    run: RunReport
    sections: tuple[Section, ...]
    first_update: int | None
    last_update: int | None
