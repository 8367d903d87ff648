"""The last state that was saved before a moment."""

from __future__ import annotations

from typing import Final

import duckdb

from accumaudit.engine.findings import RunReport
from accumaudit.postmortem.model import Checkpoint, Moment

# What a later launch did again is no part of the run: neither are the states that were saved in between.
_BEFORE: Final = """
SELECT m.launch, m.attempt_id, coalesce(m.optimizer, 0), coalesce(m.name, ''),
       if($foreign, m.attempt_id, w.optimizer_update_id)
FROM marks m
LEFT JOIN windows w ON w.run_id = m.run_id AND w.launch = m.launch AND w.attempt_id = m.attempt_id
                   AND w.optimizer = coalesce(m.optimizer, 0)
WHERE m.run_id = $run AND m.kind = 'checkpoint' AND m.attempt_id IS NOT NULL
  AND (m.launch < $launch OR (m.launch = $launch AND m.attempt_id < $attempt))
  AND NOT EXISTS (
      FROM superseded s WHERE s.run_id = m.run_id AND s.launch = m.launch AND s.attempt_id = m.attempt_id)
ORDER BY m.launch DESC, m.attempt_id DESC, m.rank, m.place DESC LIMIT 1
"""


def last_before(connection: duckdb.DuckDBPyConnection, run: RunReport, moment: Moment) -> Checkpoint | None:
    """The last checkpoint whose state holds nothing of the attempt at this moment, nor of those after it."""
    rows = connection.execute(
        _BEFORE,
        {
            "run": run.run_id,
            "foreign": run.is_foreign,
            "launch": moment.launch,
            "attempt": moment.attempt_id,
        },
    ).fetchall()
    for launch, attempt_id, optimizer, name, number in rows:
        place = Moment(launch=launch, attempt_id=attempt_id, optimizer=optimizer, number=number)
        return Checkpoint(name=name, moment=place)
    return None
