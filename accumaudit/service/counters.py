"""What the records of one run add up to: counters over its attempts, and the last record of each rank."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final

from accumaudit.service.snapshot import (
    BROKEN_OFF,
    FINISHED,
    RUNNING,
    SILENT,
    SKIP_REASONS,
    OptimizerView,
    Point,
    RankView,
)

HISTORY: Final = 600
"""Attempts of an optimizer that are kept for plots."""

SILENCE: Final = 600.0
"""Seconds without a record, beside ten windows' time, after which a run that was not closed is silent."""

LONGEST_WAIT: Final = 24 * 3600.0
"""Seconds that ten windows' time may be, whatever the record says."""

LAUNCHES: Final = 1_000
"""Launches of a run that are told apart; later ones are not counted."""

RANKS: Final = 100_000
"""Ranks of a run that are told apart."""

WIDEST: Final = 2**53
"""No integer of the record is beyond it."""

Record = Mapping[str, Any]


def number(value: object) -> float | None:
    """A finite number, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def integer(value: object) -> int | None:
    """An integer that a record may hold, or nothing."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > WIDEST:
        return None
    return value


def nonfinite(value: object) -> bool:
    """Whether a field holds a number that is not finite, as the ledger spells it."""
    return value in ("NaN", "Infinity", "-Infinity")


@dataclass(slots=True)
class _Launch:
    """How far one optimizer has come in one launch, on the rank that is furthest."""

    attempt_id: int = 0
    update_id: int | None = None
    nonfinite_through: int = 0


@dataclass(slots=True)
class Optimizer:
    """What one optimizer has done."""

    name: str = ""
    attempts: int = 0
    updates: int = 0
    skipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SKIP_REASONS, 0))
    microbatches: int = 0
    valid_tokens: float = 0.0
    nonfinite_grad_norms: int = 0
    tokens_judged: float = 0.0
    """Valid tokens of the updates that were judged: the axis of tokens."""
    launches: dict[str, _Launch] = field(default_factory=dict)
    history: deque[Point] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def count(self, record: Record, launch_key: str, *, has_tokens: bool) -> None:
        """Add one rank's record of an attempt of a launch."""
        self.microbatches += max(integer(record.get("microbatches")) or 0, 0)
        if has_tokens and record.get("optimizer_step_skipped") is not True:
            self.valid_tokens += max(number(record.get("local_valid_tokens")) or 0.0, 0.0)
        launch = self._launch(launch_key)
        attempt_id, update_id = record["attempt_id"], integer(record.get("optimizer_update_id"))
        if attempt_id > launch.attempt_id:
            self._advance(launch, record, attempt_id - launch.attempt_id, update_id)
            launch.attempt_id = attempt_id
            launch.update_id = update_id if update_id is not None else launch.update_id
        norms = (record.get("grad_norm_before_clip"), record.get("grad_norm_after_clip"))
        if attempt_id > launch.nonfinite_through and any(map(nonfinite, norms)):
            launch.nonfinite_through = attempt_id
            self.nonfinite_grad_norms += 1

    def _launch(self, token: str) -> _Launch:
        if token not in self.launches and len(self.launches) >= LAUNCHES:
            self.launches.pop(next(iter(self.launches)))
        return self.launches.setdefault(token, _Launch())

    def _advance(self, launch: _Launch, record: Record, gap: int, update_id: int | None) -> None:
        """Count an attempt that no rank had written, and those before it that were not recorded."""
        applied = gap - (record.get("optimizer_step_skipped") is True)
        if update_id is not None and launch.update_id is not None:
            applied = min(max(update_id - launch.update_id, 0), gap)
        self.attempts += gap
        self.updates += applied
        overflows = min(int(record.get("skip_evidence") is not None), gap - applied)
        self.skipped["overflow"] += overflows
        self.skipped["unknown"] += gap - applied - overflows

    def reach(self, launch_key: str, attempt_id: int) -> None:
        """Count attempts of a launch that were not recorded, up to this one."""
        launch = self._launch(launch_key)
        gap = attempt_id - launch.attempt_id
        if launch.attempt_id and gap > 0:
            self.attempts += gap
            self.updates += gap
            launch.attempt_id = attempt_id

    def judged(self, point: Point) -> Point:
        """Keep an attempt that was judged; give it with the tokens of the whole run."""
        self._take_back(point)
        if point.applied is not False:
            self.tokens_judged += point.valid_tokens or 0.0
        kept = replace(point, tokens_so_far=self.tokens_judged)
        self.history.append(kept)
        return kept

    def _take_back(self, point: Point) -> None:
        """A resume does updates again: their tokens count once."""
        if not self.history or point.launch <= self.history[-1].launch or point.update_id is None:
            return
        done_before = point.update_id - (point.applied is not False)
        newest = max((one.update_id or 0 for one in self.history), default=0)
        if done_before < newest:
            kept = [one for one in self.history if one.update_id is not None and one.update_id <= done_before]
            self.tokens_judged = (kept[-1].tokens_so_far or 0.0) if kept else 0.0

    def view(self, index: int) -> OptimizerView:
        """What others see of it."""
        return OptimizerView(
            index=index,
            name=self.name or f"optimizer {index}",
            attempts=self.attempts,
            updates=self.updates,
            skipped=dict(self.skipped),
            microbatches=self.microbatches,
            valid_tokens=self.valid_tokens,
            nonfinite_grad_norms=self.nonfinite_grad_norms,
            last=self.history[-1] if self.history else None,
            history=tuple(self.history),
        )

    def saved(self) -> dict[str, Any]:
        """What another process of the service goes on from, as JSON."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            **plain,
            "launches": {token: asdict(launch) for token, launch in self.launches.items()},
            "history": list(map(_values, self.history)),
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Optimizer:
        """The one that was saved."""
        return cls(
            **{
                **saved,
                "launches": {token: _Launch(**launch) for token, launch in saved["launches"].items()},
                "history": deque((_point(values) for values in saved["history"]), maxlen=HISTORY),
            }
        )


_POINT_FIELDS: Final = tuple(one.name for one in fields(Point))

_values: Final = attrgetter(*_POINT_FIELDS)
"""Of a point, in the order of its fields: many are saved, and often."""


def _point(values: Sequence[Any]) -> Point:
    return Point(**dict(zip(_POINT_FIELDS, values, strict=True)))


def rank_view(record: Record, rank: int, optimizer: int) -> RankView:
    """What a record of an attempt tells of its rank."""
    return RankView(
        rank=rank,
        optimizer=optimizer,
        attempt_id=record["attempt_id"],
        update_id=integer(record.get("optimizer_update_id")),
        time=number(record.get("time")),
        learning_rate=number(record.get("learning_rate")),
        loss=_mean_loss(record),
        grad_norm_before=number(record.get("grad_norm_before_clip")),
        grad_norm_after=number(record.get("grad_norm_after_clip")),
        grad_scale=number(record.get("grad_scale")),
        valid_tokens=number(record.get("local_valid_tokens")),
        window_seconds=number(record.get("window_seconds")),
    )


def _mean_loss(record: Record) -> float | None:
    """The mean over the valid tokens of the window."""
    losses, tokens = record.get("loss"), record.get("valid_tokens")
    if not isinstance(losses, list) or not isinstance(tokens, list) or len(losses) != len(tokens):
        return None
    pairs = [(number(loss), number(count)) for loss, count in zip(losses, tokens, strict=True)]
    total = 0.0
    counted = 0.0
    for loss, count in pairs:
        if count is None or (loss is None and count):
            return None
        total += (loss or 0.0) * count
        counted += count
    return total / counted if counted else None


@dataclass(slots=True)
class Ranks:
    """Which ranks write, which have closed, and what each wrote last."""

    world_size: int | None = None
    expected: int | None = None
    """How many are to write."""
    launch: str | None = None
    """The newest launch."""
    launch_started_at: float = 0.0
    token_ranks: dict[int, bool] = field(default_factory=dict)
    """Whether a rank of the newest launch has tokens of its own."""
    closed: dict[int, bool] = field(default_factory=dict)
    """Ranks of the newest launch that have closed, and whether their loop ran to its end."""
    views: dict[tuple[int, int], RankView] = field(default_factory=dict)

    def begin(self, record: Record, launch: str, started_at: float) -> None:
        """Take in a run line of a launch; one of an older launch tells nothing new."""
        if launch != self.launch:
            if started_at < self.launch_started_at:
                return
            self.launch, self.launch_started_at = launch, started_at
            self.token_ranks.clear()
            self.closed.clear()
            self.views.clear()
        self.world_size = integer(record.get("world_size"))
        recorded = record.get("recorded_ranks")
        self.expected = len(recorded) if isinstance(recorded, list) else self.world_size
        pipeline_rank, stages = integer(record.get("pipeline_rank")), integer(record.get("pipeline_size"))
        is_last_stage = pipeline_rank is None or pipeline_rank + 1 == (stages or 1)
        if record["rank"] not in self.token_ranks and len(self.token_ranks) >= RANKS:
            return
        self.token_ranks[record["rank"]] = is_last_stage and not integer(record.get("tensor_rank"))

    def state(self, silent: bool) -> str:
        """Of the run, by its newest launch."""
        if self.closed and len(self.closed) >= (self.expected or 1):
            return FINISHED if all(self.closed.values()) else BROKEN_OFF
        if silent:
            return BROKEN_OFF if self.closed else SILENT
        return RUNNING
