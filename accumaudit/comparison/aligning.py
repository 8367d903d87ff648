"""Puts the attempts of two runs beside each other: by update, by the tokens seen, or by micro-step."""

from __future__ import annotations

from typing import Final

import duckdb

from accumaudit.comparison.fields import FIELDS, Field
from accumaudit.comparison.model import By

SIDES: Final = ("a", "b")

# A row an attempt, with the number of the update that it is, or (skipped, in a ledger) that it was to be. A
# foreign log counts skipped steps too. The record's numbers are kept where they grow; else they are counted.
_ATTEMPTS: Final = """
CREATE OR REPLACE TEMP TABLE attempts_{side} AS
WITH own AS (
    SELECT launch, optimizer, attempt_id,
           bool_or(learning_rate_nonfinite) AS odd_rate,
           bool_or(loss_nonfinite OR (window_sums_nonfinite AND window_sums.loss IS NULL)) AS odd_loss,
           bool_or(reported_loss_nonfinite) AS odd_report,
           min(reported_loss) < max(reported_loss) AS reports_differ,
           bool_or(grad_norm_before_clip_nonfinite) AS odd_before,
           bool_or(grad_norm_after_clip_nonfinite) AS odd_after,
           any_value(learning_rates) FILTER (rank = lowest) AS learning_rates,
           any_value(weight_decays) FILTER (rank = lowest) AS weight_decays,
           any_value(param_digest) FILTER (rank = lowest) AS param_digest,
           {data}
    FROM updates
    JOIN (SELECT launch, min(rank) AS lowest FROM runs WHERE run_id = $run GROUP BY launch) USING (launch)
    WHERE run_id = $run GROUP BY launch, optimizer, attempt_id
),
joined AS (
    SELECT w.*, own.* EXCLUDE (launch, optimizer, attempt_id),
           if(ledger, w.optimizer_update_id, w.attempt_id) AS id,
           (ledger AND applied IS FALSE)::BIGINT AS vain, len(ranks_missing) = 0 AS all_wrote
    FROM windows w
    LEFT JOIN own USING (launch, optimizer, attempt_id)
    CROSS JOIN (SELECT any_value(format) = 'ledger' AS ledger FROM runs WHERE run_id = $run)
    WHERE w.run_id = $run
),
counted AS (
    SELECT *, sum(1 - vain) OVER (in_time ROWS UNBOUNDED PRECEDING) + vain AS ordinal,
           max(if(vain = 0, id, NULL)) OVER (in_time ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
               AS last_id
    FROM joined WINDOW in_time AS (PARTITION BY optimizer ORDER BY launch, attempt_id)
),
numbered AS (
    SELECT *, bool_and(coalesce(id + vain > last_id, id IS NOT NULL)) OVER (PARTITION BY optimizer) AS grows
    FROM counted
)
SELECT optimizer, launch, attempt_id, vain = 0 AS main, grows,
       if(grows, id + vain, ordinal)::BIGINT AS number,
       applied IS FALSE AS skipped, applied IS NULL AS unknown, cumulative_train_tokens, micro_step_id,
       microbatches * token_ranks AS all_microbatches,
       NOT (ends_with(weight_dtype, '32') OR ends_with(weight_dtype, '64')) AS coarse,
       if(has_data AND complete, data_set, NULL) AS data_digest,
       if(has_data AND complete, data_order, NULL) AS data_order, complete,
       coalesce(samples, reported_samples) AS samples,
       coalesce(valid_tokens, global_valid_tokens_in_update, reported_tokens) AS valid_tokens, microbatches,
       if(odd_rate, 'NaN', learning_rate_max) AS learning_rate,
       if(all_wrote, learning_rate_min, NULL) AS learning_rate_min, learning_rates, weight_decays,
       total_weight, distortion_min, distortion_max, equivalent_batch,
       coalesce(grad_scale_max, if(loss_scale_max <> 1, loss_scale_max, NULL)) AS grad_scale,
       if(odd_loss, 'NaN', loss) AS loss, if(odd_report, 'NaN', reported_loss) AS reported_loss,
       reports_differ,
       if(odd_before, 'NaN', grad_norm_before_max) AS grad_norm_before,
       if(all_wrote, grad_norm_before_min, NULL) AS grad_norm_before_min,
       if(odd_after, 'NaN', grad_norm_max) AS grad_norm,
       if(all_wrote, grad_norm_min, NULL) AS grad_norm_min, param_digest
FROM numbered
"""

_DATA: Final = """
           bool_and(len(data_digest) > 0 AND len(list_filter(data_digest, lambda x: x IS NULL)) = 0)
               FILTER (tokens_rank) IS TRUE
               AND count(*) FILTER (tokens_rank AND data_digest IS NULL) = 0 AS has_data,
           sum(list_sum(list_transform(data_digest, lambda x: hash(x)::HUGEINT))) FILTER (tokens_rank)
               AS data_set,
           hash(flatten(list(data_digest ORDER BY rank) FILTER (tokens_rank))) AS data_order
"""
"""The micro-batches of an attempt as a set, which adds up over attempts, and in their order."""

_ANY_DIGEST: Final = "SELECT 1 FROM updates WHERE run_id = $1 AND data_digest IS NOT NULL LIMIT 1"
_NO_DATA: Final = "false AS has_data, NULL::HUGEINT AS data_set, NULL::UBIGINT AS data_order"

# A row an update, with the attempts that were skipped before it: how many is unknown where attempts have no
# record. What was skipped after the last update belongs to none.
_TRANSACTIONS: Final = """
CREATE OR REPLACE TEMP TABLE transactions_{side} AS
WITH grouped AS (
    SELECT optimizer, number, any_value(grows) AS grows, count(*) FILTER (NOT skipped) AS updates,
           if(bool_or(unknown), NULL, count(*) FILTER (skipped)) AS skips, count(*) AS attempts,
           max(launch) AS launch, arg_max(attempt_id, (launch, attempt_id)) AS attempt_id,
           if(count(valid_tokens) = count(*), sum(valid_tokens), NULL) AS tokens_seen,
           if(count(microbatches) = count(*), sum(microbatches), NULL) AS micro_steps,
           max(cumulative_train_tokens) AS reported_so_far, max(micro_step_id) AS micro_step_id,
           any_value(coarse) FILTER (main) AS coarse,
           any_value(all_microbatches) FILTER (main) AS all_microbatches,
           {values}
    FROM attempts_{side} GROUP BY optimizer, number HAVING bool_or(main)
),
counted AS (
    SELECT *,
           bool_and(tokens_seen IS NOT NULL AND (NOT grows OR number = place_in_order)) OVER so_far AS whole,
           sum(tokens_seen) OVER so_far AS tokens_so_far,
           bool_and(coalesce(micro_step_id > micro_step_before, micro_step_id IS NOT NULL)) OVER own
               AS steps_grow,
           bool_and(coalesce(reported_so_far > reported_before, reported_so_far IS NOT NULL)) OVER own
               AS tokens_grow,
           sum(micro_steps) OVER so_far AS steps_so_far
    FROM (
        SELECT * REPLACE (
                   if(launch = lag(launch) OVER own AND attempt_id - lag(attempt_id) OVER own <> attempts,
                      NULL, skips) AS skips),
               row_number() OVER own AS place_in_order, lag(micro_step_id) OVER own AS micro_step_before,
               lag(reported_so_far) OVER own AS reported_before
        FROM grouped WINDOW own AS (PARTITION BY optimizer ORDER BY number)
    )
    WINDOW so_far AS (PARTITION BY optimizer ORDER BY number ROWS UNBOUNDED PRECEDING),
           own AS (PARTITION BY optimizer)
)
SELECT * EXCLUDE (whole, tokens_so_far, steps_grow, tokens_grow, steps_so_far, micro_steps, place_in_order,
                  micro_step_before, reported_before, reported_so_far, micro_step_id, attempts),
       CASE WHEN bool_and(whole) OVER own OR NOT tokens_grow THEN if(whole, tokens_so_far, NULL)
            ELSE reported_so_far END AS tokens_end,
       CASE WHEN steps_grow THEN micro_step_id
            WHEN NOT grows OR number = place_in_order THEN steps_so_far END AS step_end
FROM counted WINDOW own AS (PARTITION BY optimizer)
"""

ENDS: Final = {"update": "number", "tokens": "tokens_end", "micro-step": "step_end"}

_COMMON: Final = """
CREATE OR REPLACE TEMP TABLE common AS
SELECT DISTINCT a.optimizer, a.{end} AS place FROM transactions_a a JOIN transactions_b b
ON a.optimizer = b.optimizer AND a.{end} = b.{end}
"""
_SPANS: Final = """
CREATE OR REPLACE TEMP TABLE spans_{side} AS
SELECT optimizer, place, min(number) AS first_number, max(number) AS last_number, max(launch) AS launch,
       arg_max(attempt_id, number) AS attempt_id, bool_or(coarse) AS coarse, {values}
FROM (
    SELECT t.*, c.place FROM transactions_{side} t
    {join} common c ON t.optimizer = c.optimizer AND t.{end} {within} c.place
) GROUP BY optimizer, place
"""

# Where the two never stand at the same count: the update of the one in which the end of the other's falls.
_CONTAINING: Final = """
CREATE OR REPLACE TEMP TABLE spans_{side} AS
SELECT t.optimizer, p.{end} AS place, t.number AS first_number, t.number AS last_number, t.launch,
       t.attempt_id, t.coarse, {values}
FROM transactions_a p ASOF JOIN transactions_{side} t ON p.optimizer = t.optimizer AND p.{end} <= t.{end}
WHERE p.{end} IS NOT NULL
"""

FEW: Final = 0.01
"""Share of the updates below which common places are chance."""


def gather(connection: duckdb.DuckDBPyConnection, run_ids: tuple[str, str]) -> None:
    """Make the tables attempts_a and transactions_a of the one run, and those of the other."""
    values = ", ".join(f"any_value({one.name}) FILTER (main) AS {one.name}" for one in _kept())
    for side, run_id in zip(SIDES, run_ids, strict=True):
        known = connection.execute(_ANY_DIGEST, [run_id]).fetchone()
        data = _NO_DATA if known is None else _DATA
        connection.execute(_ATTEMPTS.format(side=side, data=data), {"run": run_id})
        connection.execute(_TRANSACTIONS.format(side=side, values=values))


def align(connection: duckdb.DuckDBPyConnection, by: By) -> bool:
    """Make spans_a and spans_b: a row a place, which stands for one update of the run or for several.

    Returns:
        Whether both runs end an update at these places. Where not, a place is where an update of the first
        run ends, and the values of the second are those of the update in which it lies.
    """
    end = ENDS[by]
    connection.execute(_COMMON.format(end=end))
    values = ", ".join(_spanned(one) for one in FIELDS)
    meet = by == "update" or _meet(connection)
    for side in SIDES:
        if meet:
            join, within = ("JOIN", "=") if by == "update" else ("ASOF JOIN", "<=")
            connection.execute(_SPANS.format(side=side, end=end, values=values, join=join, within=within))
        else:
            states = ", ".join(f"{_state(one)} AS {one.name}" for one in FIELDS)
            connection.execute(_CONTAINING.format(side=side, end=end, values=states))
    return meet


def _meet(connection: duckdb.DuckDBPyConnection) -> bool:
    row = connection.execute(
        "SELECT (SELECT count(*) FROM common), "
        "least((SELECT count(*) FROM transactions_a), (SELECT count(*) FROM transactions_b))"
    ).fetchone()
    assert row is not None
    places, updates = row
    return bool(places >= min(2, updates) and places >= FEW * updates)


def _kept() -> list[Field]:
    """The fields that stand in the attempts; the others are counted."""
    return [one for one in FIELDS if one.name not in ("updates", "skips")]


def _spanned(one: Field) -> str:
    name = one.name
    if one.over == "sum":
        return f"if(count({name}) = count(*), sum({name}), NULL) AS {name}"
    if one.over == "last":
        return f"arg_max({name}, number) AS {name}"
    if one.over == "each":
        return f"if(count(*) = 1, any_value({name}), NULL) AS {name}"
    weighed = f"if(count(tokens_seen) = count(*), sum({name} * tokens_seen) / sum(tokens_seen), avg({name}))"
    return f"if(count(*) = 1, any_value({name}), if(count({name}) = count(*), {weighed}, NULL)) AS {name}"


def _state(one: Field) -> str:
    """What holds anywhere inside an update."""
    return f"t.{one.name}" if one.over == "last" and one.counts else "NULL"
