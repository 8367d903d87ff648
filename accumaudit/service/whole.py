"""What is known of runs whose whole record has been read: the snapshot of a `check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from accumaudit.service.points import last_of_ranks, points
from accumaudit.service.snapshot import (
    BROKEN_OFF,
    FINISHED,
    SILENT,
    OptimizerView,
    Point,
    RunView,
    Snapshot,
    findings_of,
    newest_attempt,
)

if TYPE_CHECKING:
    from accumaudit.engine.findings import AuditReport, RunReport
    from accumaudit.ledger.reader import Ledger

_RUNS: Final = """
SELECT run_id, max(launch), min(started_at), arg_max(wrapper, launch), arg_max(optimizers, launch)
FROM runs GROUP BY run_id
"""
_CLOSES: Final = """
SELECT run_id, bool_and(finished) FROM (
    SELECT run_id, finished FROM marks
    WHERE kind = 'close' QUALIFY launch = max(launch) OVER (PARTITION BY run_id))
GROUP BY run_id
"""
_COUNTS: Final = """
SELECT run_id, optimizer, sum(microbatches)::BIGINT, coalesce(sum(window_valid_tokens) FILTER (applied), 0),
       count(DISTINCT {'launch': launch, 'attempt': attempt_id})
           FILTER (grad_norm_before_clip_nonfinite OR grad_norm_after_clip_nonfinite),
       count(DISTINCT {'launch': launch, 'attempt': attempt_id})
           FILTER (applied IS FALSE AND skip_evidence IS NOT NULL)
FROM updates GROUP BY run_id, optimizer
"""


def snapshot_of(ledger: Ledger, report: AuditReport, now: float) -> Snapshot:
    """The runs of a ledger, with the whole history of their optimizers."""
    connection = ledger.connection
    histories, ranks = points(connection), last_of_ranks(connection)
    described = {run_id: rest for run_id, *rest in connection.execute(_RUNS).fetchall()}
    closes = dict(connection.execute(_CLOSES).fetchall())
    counts = {(run_id, index): rest for run_id, index, *rest in connection.execute(_COUNTS).fetchall()}
    views = []
    for run in report.runs:
        launches, started_at, wrapper, optimizers = described.get(run.run_id, (0, None, None, None))
        history = histories[run.run_id]
        times = [one.time for one in history if one.time is not None]
        views.append(
            RunView(
                report=run,
                state=_state(closes.get(run.run_id)),
                launches=launches,
                started_at=started_at,
                last_record_time=max(times, default=None),
                wrapper=wrapper,
                findings=findings_of(run, now),
                optimizers=tuple(_optimizers(run, history, optimizers or [], counts)),
                ranks=tuple(ranks[run.run_id]),
                judged_through=newest_attempt((one.launch, one.attempt_id) for one in history),
            )
        )
    return Snapshot(time=now, runs=tuple(views))


def _state(finished: bool | None) -> str:
    if finished is None:
        return SILENT
    return FINISHED if finished else BROKEN_OFF


def _optimizers(
    run: RunReport,
    history: Sequence[Point],
    described: Sequence[dict[str, Any]],
    counts: dict[tuple[str, int], list[Any]],
) -> list[OptimizerView]:
    names = {one["index"]: one["name"] or one["class"] or "" for one in described}
    views = []
    for index in sorted({point.optimizer for point in history}):
        own = tuple(point for point in history if point.optimizer == index)
        skipped = sum(point.applied is False for point in own)
        microbatches, valid_tokens, nonfinite, overflows = counts.get((run.run_id, index), [0, 0.0, 0, 0])
        views.append(
            OptimizerView(
                index=index,
                name=names.get(index) or f"optimizer {index}",
                attempts=len(own),
                updates=len(own) - skipped,
                skipped={"overflow": overflows, "unknown": skipped - min(skipped, overflows)},
                microbatches=microbatches or 0,
                valid_tokens=valid_tokens,
                nonfinite_grad_norms=nonfinite,
                last=own[-1],
                history=own,
            )
        )
    return views
