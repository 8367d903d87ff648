/*
code = "ACC311"
name = "rate-outside-bounds"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no bounds of the rate were declared"
needs = ["learning_rate", "peak_learning_rate", "min_learning_rate"]
summary = "an update ran at a rate outside the bounds that were declared"
why = '''
The loop says between which rates it trains, and the optimizer steps at another. The groups of a loaded
optimizer brought their old rate, a scheduler multiplies a rate that was scaled already, the number of ranks
was multiplied in twice, or a decay runs past its floor. What the configuration and its log say is not what
happens.
'''
example = '''
A second stage is declared with a peak of 3e-5 and a floor of 2e-5. The checkpoint's optimizer state is
loaded after the new scheduler was made, and its groups hold the old peak: the first update of the stage
runs at 3e-4, ten times the declared peak.
'''
fix = '''
Set the rates after everything is loaded, and let one place alone decide them. Where the rates are right and
the declaration is not, declare what is meant.

Hand-written loop: Load the optimizer's state first, then set each group's lr (and initial_lr) and build the
  scheduler.
DDP: The same on every rank. Scale by the number of ranks once, or not at all.
FSDP: As for DDP.
Trainer: The checkpoint's scheduler state wins over new arguments: resume without it for a new stage.
Accelerate: load_state brings the old groups back: set the rates after it.
Lightning: Set the groups' lr after the restore, in a callback.
DeepSpeed: Use load_lr_scheduler_states=False for a new schedule. A scheduler of the configuration has
  bounds of its own.
'''
not_a_fault_when = '''
The floor holds after the warm-up. Up to the declared warmup_updates lower rates pass. Where none are
declared, they are not judged until the rate has once been at the floor or above.

With several parameter groups an update is outside only if all groups are, those at a rate of 0 left out.
Bounds hold from the attempt after their declaration on. Rates may be off by 0.1 %. A skipped attempt used
no rate. With several optimizers it is not known whose bounds were declared: not judged.
'''
references = ["NVIDIA/Megatron-LM#963", "NVIDIA/Megatron-LM#1138", "deepspeedai/DeepSpeed#7303"]

[params]
tolerance = 0.001  # by how much a rate may lie outside the bounds
*/
WITH declarations AS (
    SELECT run_id,
           launch,
           coalesce(attempt_id, 0) AS since,
           place,
           TRY_CAST(name ->> '$.peak_learning_rate' AS DOUBLE) AS peak,
           TRY_CAST(name ->> '$.min_learning_rate' AS DOUBLE) AS lowest,
           TRY_CAST(name ->> '$.warmup_updates' AS BIGINT) AS warmup
    FROM (SELECT * FROM marks WHERE kind = 'declare' AND json_valid(name))
),
stages AS (
    SELECT run_id,
           launch,
           since,
           last_value(peak IGNORE NULLS) OVER in_order AS peak,
           last_value(lowest IGNORE NULLS) OVER in_order AS lowest,
           last_value(warmup IGNORE NULLS) OVER in_order AS warmup
    FROM declarations
    WINDOW in_order AS (PARTITION BY run_id, launch ORDER BY since, place)
    QUALIFY row_number() OVER (PARTITION BY run_id, launch, since ORDER BY place DESC) = 1
),
setups AS (
    -- What the run line says; it has been overwritten where something was declared later.
    SELECT r.run_id,
           r.launch,
           CASE WHEN max(s.peak) IS NULL THEN max(r.peak_learning_rate) END AS peak,
           CASE WHEN max(s.lowest) IS NULL THEN max(r.min_learning_rate) END AS lowest,
           CASE WHEN max(s.warmup) IS NULL THEN max(r.warmup_updates) END AS warmup,
           max(len(r.optimizers)) > 1 AS several_optimizers
    FROM runs AS r
    LEFT JOIN stages AS s USING (run_id, launch)
    WHERE r.peak_learning_rate IS NOT NULL
       OR r.min_learning_rate IS NOT NULL
    GROUP BY ALL
),
bounded AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.optimizer_update_id,
           u.rank,
           u.applied,
           b.several_optimizers,
           coalesce(s.peak, b.peak) AS peak,
           coalesce(s.lowest, b.lowest) AS lowest,
           coalesce(s.warmup, b.warmup) AS warmup,
           coalesce(list_min(list_filter(u.learning_rates, lambda rate: rate > 0)), u.learning_rate)
               AS low_rate,
           coalesce(list_max(u.learning_rates), u.learning_rate) AS high_rate
    FROM updates AS u
    JOIN setups AS b USING (run_id, launch)
    ASOF LEFT JOIN stages AS s
        ON s.run_id = u.run_id AND s.launch = u.launch AND s.since < u.attempt_id
    WHERE u.applied IS NOT FALSE
),
judged AS (
    SELECT *,
           low_rate > peak * (1 + $tolerance) AS above,
           high_rate < lowest * (1 - $tolerance) AS below,
           CASE
               WHEN warmup IS NOT NULL THEN optimizer_update_id > warmup
               WHEN bool_or(high_rate >= lowest * (1 - $tolerance)) OVER earlier THEN TRUE
           END AS warm,
           CASE
               WHEN several_optimizers OR applied IS NULL THEN NULL
               WHEN above THEN TRUE
               WHEN below AND warm IS NOT FALSE THEN warm
               WHEN low_rate IS NOT NULL AND (peak IS NOT NULL OR lowest IS NOT NULL) THEN FALSE
           END AS fault
    FROM bounded
    WINDOW earlier AS (
        PARTITION BY run_id, launch, optimizer, rank
        ORDER BY attempt_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    )
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       fault,
       CASE WHEN above THEN low_rate ELSE high_rate END AS observed,
       CASE WHEN above THEN peak ELSE lowest END AS expected,
       CASE
           WHEN fault AND above
           THEN format(
               'the update ran at {:.6g}, {:.4g} times the declared peak of {:.6g}',
               low_rate,
               low_rate / peak,
               peak
           )
           WHEN fault
           THEN format('the update ran at {:.6g}, below the declared minimum of {:.6g}', high_rate, lowest)
       END AS message
FROM judged
