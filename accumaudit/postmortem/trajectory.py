"""What the loss of a run did, told without judging it."""

from __future__ import annotations

from typing import Any, Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.postmortem.model import LossFacts, Moment

_LOSSES: Final = """
WITH losses AS (
    SELECT launch, optimizer, attempt_id, if($foreign, attempt_id, optimizer_update_id) AS number,
           if(count(loss) OVER () > 0, loss, reported_loss) AS loss
    FROM windows WHERE run_id = $run AND applied IS NOT FALSE
),
chosen AS (
    SELECT * FROM losses
    WHERE loss IS NOT NULL AND optimizer = (SELECT min(optimizer) FROM losses WHERE loss IS NOT NULL)
),
steps AS (
    SELECT *, {'launch': launch, 'attempt': attempt_id} AS place,
           {'launch': launch, 'attempt_id': attempt_id, 'optimizer': optimizer, 'number': number} AS moment,
           loss - lag(loss) OVER in_time AS rise, lag(moment) OVER in_time AS before
    FROM chosen WINDOW in_time AS (ORDER BY launch, attempt_id)
)
SELECT count(*) AS records, arg_min(loss, place) AS first, min(loss) AS lowest,
       arg_min(moment, {'loss': loss, 'place': place}) AS lowest_at,
       arg_max(loss, place) AS last, arg_max(moment, place) AS last_at,
       max(rise) AS steepest, arg_min(moment, {'fall': -rise, 'place': place}) AS steepest_at,
       arg_min(before, {'fall': -rise, 'place': place}) AS steepest_after
FROM steps
"""
_MOMENTS: Final = ("lowest_at", "last_at", "steepest_at", "steepest_after")
_NOT_FINITE: Final = """
SELECT count(DISTINCT {'launch': launch, 'attempt': attempt_id})
FROM updates
WHERE run_id = $1 AND applied IS NOT FALSE AND (reported_loss_nonfinite OR loss_nonfinite)
"""


def loss_facts(connection: duckdb.DuckDBPyConnection, run: RunReport) -> LossFacts | None:
    """The loss at the beginning, at its lowest and at the end; None where no record has a finite one."""
    cursor = connection.execute(_LOSSES, {"run": run.run_id, "foreign": run.is_foreign})
    names = [column[0] for column in cursor.description]
    fields: dict[str, Any] = dict(zip(names, cursor.fetchall()[0], strict=True))
    if not fields["records"]:
        return None
    ((not_finite,),) = connection.execute(_NOT_FINITE, [run.run_id]).fetchall()
    moments = {name: value and Moment(**value) for name, value in fields.items() if name in _MOMENTS}
    if fields["steepest"] is None or fields["steepest"] <= 0:
        fields["steepest"] = moments["steepest_at"] = moments["steepest_after"] = None
    return LossFacts(**{**fields, **moments}, not_finite=not_finite)
