"""Which ranks stand out, and when: a strip of columns over the run for each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import duckdb

from accumaudit.engine.findings import FAILED, RunReport
from accumaudit.outputs.words import plural
from accumaudit.postmortem.model import HeatRow, HeatStrip, History
from accumaudit.postmortem.roles import role

COLUMNS: Final = 120
ROWS: Final = 64
COMPARED: Final = (20_000, 2_000_000)
"""Attempts that are compared rank by rank, and records: of more attempts that disagree, every so many are."""

SEVERE: Final = 1
"""Findings are counted down to this severity: notes name ranks that did nothing wrong."""

WORDS: Final = {
    "missing": "no record where others wrote one",
    "skip": "skipped or applied against the others",
    "rate": "another learning rate",
    "scale": "another gradient scale",
    "state": "another count of the optimizer's steps",
    "before": "another gradient norm before clipping",
    "after": "another gradient norm at the step",
    "digest": "other parameters",
    "probe": "another slice of the gradient",
}
"""What sets a rank apart, in the order in which it is told."""

_PLACED: Final = f"""
CREATE OR REPLACE TEMP TABLE heated AS
WITH numbered AS (
    SELECT *, if($by_number, if($foreign, attempt_id, optimizer_update_id),
                 row_number() OVER (PARTITION BY optimizer ORDER BY launch, attempt_id)) AS x,
           reduces_together IS NOT FALSE AND averages_parameters IS NOT TRUE AS alike
    FROM windows WHERE run_id = $run AND list_contains($optimizers, optimizer)
),
reach AS (
    SELECT min(x) AS low, greatest(1, (max(x) - min(x) + 1) / {COLUMNS}) AS width FROM numbered
)
SELECT launch, optimizer, attempt_id, ranks, ranks_missing, floor((x - low) / width)::BIGINT AS part,
       low, width,
       applied_ranks > 0 AND skipped_ranks > 0 AS skip,
       learning_rate_max - learning_rate_min > 1e-6 * greatest(abs(learning_rate_max), abs(learning_rate_min))
           AS rate,
       grad_scale_max - grad_scale_min > 1e-6 * grad_scale_max AS scale,
       alike AND grad_norm_before_max - grad_norm_before_min > 1e-4 * grad_norm_before_max AS before,
       alike AND grad_norm_max - grad_norm_min > 1e-4 * grad_norm_max AS "after",
       alike AND param_digests > 1 AS digest, alike AND probe_spread > 1e-4 AS probe
FROM numbered, reach
"""
# How many steps the optimizers of the ranks counted is in no table of windows.
_DISAGREE: Final = """
CREATE OR REPLACE TEMP TABLE disagreeing AS
WITH counted AS (
    SELECT launch, optimizer, attempt_id,
           min(optimizer_state_step) <> max(optimizer_state_step) AS state
    FROM updates WHERE run_id = $run GROUP BY ALL
)
SELECT h.*, state, row_number() OVER (ORDER BY launch, optimizer, attempt_id) AS ordinal
FROM heated h JOIN counted USING (launch, optimizer, attempt_id)
WHERE skip OR rate OR scale OR before OR "after" OR digest OR probe OR state
"""
# Ranks agree with the middle one of those that hold the same parameters; a value that more than half of them
# share is that one's.
_COMPARED: Final = """
WITH compared AS (
    SELECT u.*, d.part, d.skip, d.rate, d.scale, d.before, d."after", d.digest, d.probe, d.state
    FROM updates u JOIN (FROM disagreeing WHERE ordinal % $step = 0) d USING (launch, optimizer, attempt_id)
    WHERE u.run_id = $run
),
valued AS (
    SELECT launch, optimizer, attempt_id, rank, part, reason,
           if(reason IN ('before', 'after', 'digest', 'probe'),
              concat_ws('/', parameter_part, probe_parameter), '') AS peers,
           CASE reason
               WHEN 'skip' THEN applied::INT WHEN 'rate' THEN learning_rate WHEN 'scale' THEN grad_scale
               WHEN 'state' THEN optimizer_state_step
               WHEN 'before' THEN CASE WHEN grad_norm_before_scope = 'global' THEN grad_norm_before_clip END
               WHEN 'after' THEN CASE WHEN grad_norm_after_scope = 'global' THEN grad_norm_after_clip END
               WHEN 'digest' THEN CASE WHEN param_digest IS NOT NULL THEN hash(param_digest) END
               ELSE list_sum(list_transform(probe_gradient, lambda x, i: x * i))
           END::DOUBLE AS value,
           CASE WHEN reason IN ('before', 'after') THEN 1e-4 * abs(value)
                WHEN reason IN ('rate', 'scale') THEN 1e-6 * abs(value)
                WHEN reason = 'probe'
                THEN 1e-4 * list_sum(list_transform(probe_gradient, lambda x, i: abs(x) * i))
                ELSE 0 END AS slack
    FROM (
        SELECT *, unnest(list_filter([
            if(skip, 'skip', NULL), if(rate, 'rate', NULL), if(scale, 'scale', NULL),
            if(state, 'state', NULL),
            if(before AND parameter_part IS NOT NULL, 'before', NULL),
            if("after" AND parameter_part IS NOT NULL, 'after', NULL),
            if(digest AND parameter_part IS NOT NULL, 'digest', NULL),
            if(probe AND parameter_part IS NOT NULL, 'probe', NULL)
        ], lambda reason: reason IS NOT NULL)) AS reason FROM compared
    )
),
middles AS (
    SELECT *, quantile_disc(value, 0.5) OVER peers AS middle, max(slack) OVER peers AS most,
           count(*) OVER peers AS ranks
    FROM valued WHERE value IS NOT NULL
    WINDOW peers AS (PARTITION BY launch, optimizer, attempt_id, reason, peers)
),
sides AS (
    SELECT *, abs(value - middle) <= most AS agrees,
           count(*) FILTER (abs(value - middle) <= most)
               OVER (PARTITION BY launch, optimizer, attempt_id, reason, peers) AS agreeing
    FROM middles
)
SELECT launch, optimizer, attempt_id, rank, part, reason, 2 * agreeing <= ranks AS undecided, $step AS times
FROM sides WHERE agreeing < ranks AND (NOT agrees OR undecided)
"""
_MISSING: Final = """
SELECT launch, optimizer, attempt_id, unnest(ranks_missing) AS rank, part, 'missing' AS reason,
       false AS undecided, 1 AS times
FROM heated WHERE len(ranks_missing) BETWEEN 1 AND ranks
"""
# A rule that names most ranks tells of none in particular.
_NAMED: Final = f"""
SELECT f.launch, f.optimizer, f.attempt_id, f.rank, h.part, f.code AS reason, false AS undecided, 1 AS times
FROM (SELECT DISTINCT launch, optimizer, attempt_id, rank, code FROM reported
      WHERE run_id = $run AND rank IS NOT NULL AND severity <= {SEVERE} AND list_contains($codes, code)) f
JOIN heated h USING (launch, optimizer, attempt_id)
QUALIFY 2 * count(*) OVER (PARTITION BY f.launch, f.optimizer, f.attempt_id, f.code) <= h.ranks
"""
_APART: Final = f"CREATE OR REPLACE TEMP TABLE apart AS {_COMPARED} UNION ALL {_MISSING} UNION ALL {_NAMED}"
_SHARES: Final = """
WITH totals AS (SELECT part, count(*) AS attempts FROM heated GROUP BY part),
attempts AS (
    SELECT rank, part, max(times) AS times FROM apart GROUP BY rank, part, launch, optimizer, attempt_id
)
SELECT rank, part, least(1, sum(times) / any_value(t.attempts))
FROM attempts JOIN totals t USING (part) GROUP BY rank, part ORDER BY rank, part
"""
_WHY: Final = """
SELECT rank, reason, sum(times)::BIGINT, bool_and(undecided), max(times) > 1
FROM (SELECT DISTINCT rank, reason, launch, optimizer, attempt_id, times, undecided FROM apart)
GROUP BY rank, reason
"""
_REACH: Final = "SELECT any_value(low), any_value(width), max(part) FROM heated"


def heat_strip(
    connection: duckdb.DuckDBPyConnection, run: RunReport, histories: Sequence[History]
) -> HeatStrip | None:
    """The ranks of a run that stand out; None where one rank wrote."""
    if len(run.ranks) < 2 or not histories:
        return None
    axis = histories[0].axis
    optimizers = [one.optimizer for one in histories if one.axis == axis]
    try:
        return _strip(connection, run, axis, optimizers)
    finally:
        for table in ("heated", "disagreeing", "apart"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")


def _strip(
    connection: duckdb.DuckDBPyConnection, run: RunReport, axis: str, optimizers: Sequence[int]
) -> HeatStrip:
    of_run = {"run": run.run_id}
    connection.execute(
        _PLACED,
        {**of_run, "by_number": axis != "attempt", "foreign": run.is_foreign, "optimizers": optimizers},
    )
    connection.execute(_DISAGREE, of_run)
    ((disagreeing,),) = connection.execute("SELECT count(*) FROM disagreeing").fetchall()
    most = max(1, min(COMPARED[0], COMPARED[1] // len(run.ranks)))
    # What misleads readers names the rank that wrote it.
    codes = [one.code for one in run.with_status(FAILED) if role(one.code) in ("cause", "symptom")]
    connection.execute(_APART, {**of_run, "step": -(-disagreeing // most) or 1, "codes": codes})
    ((low, width, last),) = connection.execute(_REACH).fetchall()
    shares: dict[int, dict[int, float]] = defaultdict(dict)
    for rank, part, share in connection.execute(_SHARES).fetchall():
        shares[rank][part] = share
    why = _why(connection.execute(_WHY).fetchall())
    hottest = sorted(shares, key=lambda rank: (-sum(shares[rank].values()), rank))[:ROWS]
    return HeatStrip(
        starts=tuple(low + width * part for part in range(last + 1)),
        axis=axis,
        rows=tuple(
            HeatRow(
                rank=rank,
                shares=tuple(round(shares[rank].get(part, 0.0), 4) for part in range(last + 1)),
                why=why[rank],
            )
            for rank in hottest
        ),
        ranks=len(run.ranks),
        quiet=len(set(run.ranks) - set(shares)),
    )


def _why(rows: Iterable[tuple[int, str, int, bool, bool]]) -> dict[int, tuple[str, ...]]:
    """What sets each rank apart, in words; counts of what was not compared everywhere are rough."""
    reasons: dict[int, dict[str, str]] = defaultdict(dict)
    for rank, reason, count, undecided, rough in rows:
        said = WORDS.get(reason, f"named by {reason}")
        doubt = ", and no majority says which is right" if undecided else ""
        reasons[rank][reason] = f"{'about ' if rough else ''}{plural(count, 'attempt')}: {said}{doubt}"
    order = {reason: place for place, reason in enumerate(WORDS)}
    return {
        rank: tuple(own[reason] for reason in sorted(own, key=lambda one: (order.get(one, -1), one)))
        for rank, own in reasons.items()
    }
