"""The last state that was saved before a moment."""

from __future__ import annotations

from typing import Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.postmortem.model import Checkpoint, Moment

# What a later launch did again is no part of the run: neither are the states that were saved in between. Nor
# does a record show what attempts did that have none: a state that was saved among some just before the fault
# may hold it already.
_BEFORE: Final = """
WITH kept AS (
    SELECT launch, optimizer, attempt_id, if($several, micro_step_id, attempt_id) AS step
    FROM windows
    WHERE run_id = $run AND (launch < $launch OR (optimizer = $optimizer AND attempt_id < $attempt))
    UNION ALL SELECT $launch, $optimizer, 0, 0
),
sound AS (
    SELECT launch, max(step) AS last_step,
           launch = $launch AND max(attempt_id) = $attempt - 1 AS reaches_fault
    FROM kept WHERE launch <= $launch GROUP BY launch
),
saved AS (
    SELECT launch, attempt_id, coalesce(optimizer, 0) AS optimizer, coalesce(name, '') AS name, rank, place,
           if($several, micro_step_id, attempt_id) AS step
    FROM marks WHERE run_id = $run AND kind = 'checkpoint' AND attempt_id > 0
)
SELECT s.launch, s.attempt_id, s.optimizer, s.name, if($foreign, s.attempt_id, w.optimizer_update_id)
FROM saved s JOIN sound ON sound.launch = s.launch
     AND (s.step <= sound.last_step OR (reaches_fault AND s.step < $step))
LEFT JOIN windows w ON w.run_id = $run AND w.launch = s.launch AND w.attempt_id = s.attempt_id
                   AND w.optimizer = s.optimizer
ORDER BY s.launch DESC, s.step DESC, s.rank, s.place DESC LIMIT 1
"""


def last_before(connection: duckdb.DuckDBPyConnection, run: RunReport, moment: Moment) -> Checkpoint | None:
    """The last checkpoint whose state surely holds nothing of the attempt at this moment or of later ones."""
    asked = {
        "run": run.run_id,
        "foreign": run.is_foreign,
        "several": moment.micro_step is not None,
        "launch": moment.launch,
        "optimizer": moment.optimizer,
        "attempt": moment.attempt_id,
        "step": moment.attempt_id if moment.micro_step is None else moment.micro_step,
    }
    for launch, attempt_id, optimizer, name, number in connection.execute(_BEFORE, asked).fetchall():
        place = Moment(launch=launch, attempt_id=attempt_id, optimizer=optimizer, number=number)
        return Checkpoint(name=name, moment=place)
    return None
