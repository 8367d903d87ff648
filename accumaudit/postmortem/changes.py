"""What changed in a run without being a fault: a rate that rose, other accumulation, more or fewer ranks."""

from __future__ import annotations

from typing import Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.outputs.words import number
from accumaudit.postmortem.model import Change, Moment
from accumaudit.postmortem.suspects import has_several_optimizers

RISE: Final = 1.5
"""A rate that rises by this factor from one record to the next is told; a warm-up rises as its updates do."""

FIRST_TOLD: Final = 10
"""Attempts of a run before which a rate may rise as it likes."""

MOST: Final = 20
"""Changes that are told: the first ones."""

# A warm-up doubles the rate where few updates are done, or where records lie far apart.
_CHANGES: Final = """
WITH ordered AS (
    SELECT launch, optimizer, attempt_id, if($foreign, attempt_id, optimizer_update_id) AS number,
           coalesce(number, attempt_id) AS done, learning_rate_max AS rate, accumulation_steps,
           accumulation_inferred, world_size, if($several, micro_step_id, NULL) AS micro_step
    FROM windows WHERE run_id = $run AND applied IS NOT FALSE
),
paired AS (
    SELECT *, lag(rate) OVER in_order AS rate_before, lag(done) OVER in_order AS done_before,
           lag(accumulation_steps) OVER in_order AS steps_before,
           lag(accumulation_inferred) OVER in_order AS inferred_before,
           lag(world_size) OVER in_order AS world_before
    FROM ordered WINDOW in_order AS (PARTITION BY optimizer ORDER BY launch, attempt_id)
),
told AS (
    SELECT *, rate_before > 0 AND done > $first AND done_before > 0
               AND rate > rate_before * $rise * greatest(done / done_before, 1) AS rose,
           accumulation_steps <> steps_before AND NOT accumulation_inferred AND NOT inferred_before AS parted,
           world_size <> world_before AS moved
    FROM paired
)
SELECT launch, optimizer, attempt_id, number, micro_step,
       if(rose, [rate_before, rate], NULL), if(parted, [steps_before, accumulation_steps], NULL),
       if(moved, [world_before, world_size], NULL)
FROM told WHERE rose OR parted OR moved
ORDER BY launch, coalesce(micro_step, attempt_id), optimizer LIMIT $most
"""


def changes(connection: duckdb.DuckDBPyConnection, run: RunReport) -> tuple[Change, ...]:
    """The first changes of a run, in their order."""
    values = {
        "run": run.run_id,
        "foreign": run.is_foreign,
        "several": has_several_optimizers(connection, run),
        "rise": RISE,
        "first": FIRST_TOLD,
        "most": MOST,
    }
    found = []
    for launch, optimizer, attempt_id, done, micro_step, rates, steps, ranks in connection.execute(
        _CHANGES, values
    ).fetchall():
        moment = Moment(
            launch=launch, attempt_id=attempt_id, optimizer=optimizer, number=done, micro_step=micro_step
        )
        texts = [_rates(*rates)] if rates else []
        texts += [f"the micro-steps to an update changed from {steps[0]:,} to {steps[1]:,}"] if steps else []
        texts += [f"the number of ranks changed from {ranks[0]:,} to {ranks[1]:,}"] if ranks else []
        found += [Change(moment=moment, text=text) for text in texts]
    return tuple(found)


def _rates(before: float, rate: float) -> str:
    return (
        f"the learning rate rose from {number(before)} to {number(rate)}, {rate / before:.3g} times as much"
    )
