"""Schedules of learning rates, and what logged rates tell of them: the tables `schedules` and `positions`."""

from __future__ import annotations

from typing import Final

import duckdb

__all__ = ["fill"]

PROOF: Final = 20
"""Different rates in the fall that must all be those of a schedule which was not declared."""

LOGGED: Final = 200_000
"""Rates of a foreign log's launch that are looked at; of more, every so many."""

OWN: Final = 2_000
"""The same for a ledger, of which the length of the schedule alone is wanted."""

ALL: Final = 1_000_000
"""Rates of all runs together."""

# Ranks that disagree have no one rate, and a rate that is the same throughout tells no position.
_RATES: Final = """
CREATE TEMP TABLE rates AS
WITH told AS (
    SELECT run_id, launch, optimizer, attempt_id, optimizer_update_id, learning_rate_max AS rate,
           coalesce(recorded_every, 1) AS apart, format <> 'ledger' AS logged
    FROM windows JOIN stored.sources USING (run_id)
    -- In a ledger the length of the schedule is asked for, once the run has come to its end.
    WHERE learning_rate_min = learning_rate_max AND applied IS NOT FALSE
      AND (logged OR (run_id, launch) IN (
          SELECT (run_id, max(launch)) FROM marks WHERE kind = 'close' AND finished GROUP BY run_id))
),
counted AS (
    SELECT run_id, launch, optimizer, count(*) AS rates, if(any_value(logged), $logged, $own) AS most,
           max(apart) * ceil(rates / most)::BIGINT AS every, max(attempt_id) AS last_attempt
    FROM told GROUP BY ALL
    HAVING if(any_value(logged), count(*) > 1, approx_count_distinct(rate) > $proof // 2)
),
chosen AS (
    FROM counted QUALIFY sum(least(rates, most)) OVER (ORDER BY run_id, launch, optimizer) <= $all
)
SELECT run_id, launch, optimizer, logged, attempt_id, optimizer_update_id, rate
FROM told JOIN chosen USING (run_id, launch, optimizer)
WHERE every <= apart OR (last_attempt - attempt_id) % every = 0
"""


def fill(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill both tables."""
    connection.execute(_RATES, {"logged": LOGGED, "own": OWN, "all": ALL, "proof": PROOF})
    if connection.execute("FROM rates LIMIT 1").fetchone():
        from accumaudit.schedules.tables import insert  # numpy is worth its import only where there are rates

        insert(connection)
    connection.execute("DROP TABLE rates")
