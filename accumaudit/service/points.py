"""Reads attempts and ranks out of the tables of a ledger."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import duckdb

from accumaudit.service.snapshot import Point, RankView

_POINTS: Final = """
WITH announced AS (
    SELECT run_id, launch, optimizer, attempt_id + 1 AS attempt_id,
           any_value(scheduler_rate) AS scheduled_rate
    FROM updates WHERE scheduler_rate IS NOT NULL
    GROUP BY ALL HAVING min(scheduler_rate) = max(scheduler_rate)
)
SELECT run_id, launch, optimizer, attempt_id, optimizer_update_id, time, applied, microbatches,
       accumulation_steps, valid_tokens,
       sum(if(applied IS FALSE, 0, valid_tokens)) OVER so_far,
       coalesce(loss, reported_loss), learning_rate_max, scheduled_rate, grad_norm_before_max, grad_norm_max,
       coalesce(grad_scale_max, CASE WHEN loss_scale_max <> 1 THEN loss_scale_max END), total_weight,
       distortion_min, distortion_max, equivalent_batch, ranks
FROM windows LEFT JOIN announced USING (run_id, launch, optimizer, attempt_id)
WINDOW so_far AS (PARTITION BY run_id, optimizer ORDER BY launch, attempt_id ROWS UNBOUNDED PRECEDING)
ORDER BY run_id, optimizer, launch, attempt_id
"""
_RANKS: Final = """
SELECT run_id, rank, optimizer, attempt_id, optimizer_update_id, time, learning_rate, window_loss,
       grad_norm_before_clip, grad_norm_after_clip, grad_scale, window_valid_tokens, window_seconds
FROM updates
QUALIFY row_number() OVER (PARTITION BY run_id, optimizer, rank ORDER BY launch DESC, attempt_id DESC) = 1
ORDER BY run_id, rank, optimizer
"""
_POINT_FIELDS: Final = (
    *("launch", "optimizer", "attempt_id", "update_id", "time", "applied", "microbatches"),
    *("accumulation_steps", "valid_tokens", "tokens_so_far", "loss", "learning_rate", "scheduled_rate"),
    *("grad_norm_before", "grad_norm_after", "grad_scale", "total_weight", "distortion_min"),
    *("distortion_max", "equivalent_batch", "ranks"),
)
_RANK_FIELDS: Final = (
    *("rank", "optimizer", "attempt_id", "update_id", "time", "learning_rate", "loss", "grad_norm_before"),
    *("grad_norm_after", "grad_scale", "valid_tokens", "window_seconds"),
)


def points(connection: duckdb.DuckDBPyConnection) -> dict[str, list[Point]]:
    """The attempts of each run, by optimizer and in their order."""
    found: dict[str, list[Point]] = defaultdict(list)
    for run_id, *values in connection.execute(_POINTS).fetchall():
        found[run_id].append(Point(**dict(zip(_POINT_FIELDS, values, strict=True))))
    return found


def last_of_ranks(connection: duckdb.DuckDBPyConnection) -> dict[str, list[RankView]]:
    """The last record of each rank of each run."""
    found: dict[str, list[RankView]] = defaultdict(list)
    for run_id, *values in connection.execute(_RANKS).fetchall():
        found[run_id].append(RankView(**dict(zip(_RANK_FIELDS, values, strict=True))))
    return found
