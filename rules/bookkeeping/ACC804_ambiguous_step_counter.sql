/*
code = "ACC804"
name = "ambiguous-step-counter"
severity = "note"
since = "0.1.0"
scope = "run"
scope_is_empty = "the loop reported its step counter fewer than three times"
needs = ["reported_global_step", "optimizer_update_id"]
summary = "the loop's step counter counts something else than updates"
why = '''
"Step 1,000" may be a thousand updates, micro-steps, attempts or steps of several optimizers. Nothing is
wrong with any of them. But schedules, checkpoint names, logs and plans meet under one word, and a number
taken from one and used as another is off by the accumulation count, the number of optimizers or the skips.
'''
example = '''
Two optimizers in one loop: the counter says 2, 4, 6 after three rounds, in which each optimizer has made 1,
2, 3 updates. A limit of 10,000 steps ends this run after 5,000 updates. With 8 micro-steps an update, a
counter of micro-steps ends it after 10,000 / 8 = 1,250.
'''
fix = '''
Decide what the counter counts, and write it beside the number.

Hand-written loop: Add one where the optimizer stepped, and only if the step was not skipped.
DDP: The same.
FSDP: The same.
Trainer: global_step also advances on a skipped attempt.
Accelerate: Count where sync_gradients is true and the step was not skipped.
Lightning: global_step counts the steps of all optimizers.
DeepSpeed: global_steps counts attempts: subtract skipped_steps.
'''
not_a_fault_when = '''
A counter that stays a fixed number away from the updates counts updates: it was continued from another run,
or reported before it was raised. What cannot be told apart in the record, such as attempts and updates
where nothing was skipped, is taken for updates. A counter that fits none of the readings is not judged.
'''
references = [
    "Lightning-AI/pytorch-lightning#17958",
    "Lightning-AI/pytorch-lightning#831",
    "Lightning-AI/pytorch-lightning#2242",
    "Lightning-AI/pytorch-lightning#6359",
]
*/
WITH optimizers AS (
    SELECT run_id, launch, count(DISTINCT optimizer) AS optimizers
    FROM updates
    GROUP BY ALL
),
reports AS (
    SELECT *
    FROM updates
    WHERE reported_global_step IS NOT NULL
    QUALIFY rank = min(rank) OVER (PARTITION BY run_id, launch, optimizer)
),
fits AS (
    SELECT run_id,
           launch,
           optimizer,
           max(optimizers) AS optimizers,
           count(*) - count(optimizer_update_id) AS unknown,
           max(reported_global_step) - min(reported_global_step) AS advanced,
           max(optimizer_update_id) - min(optimizer_update_id) AS updates,
           max(reported_global_step - optimizer_update_id)
               = min(reported_global_step - optimizer_update_id) AS as_updates,
           max(reported_global_step - optimizer_update_id + applied::BIGINT)
               = min(reported_global_step - optimizer_update_id + applied::BIGINT)
               AND count(applied) = count(*) AS as_updates_before,
           max(reported_global_step - micro_step_id) = min(reported_global_step - micro_step_id)
               AND count(micro_step_id) = count(*) AS as_micro_steps,
           max(reported_global_step - attempt_id) = min(reported_global_step - attempt_id) AS as_attempts,
           max(reported_global_step - optimizer_update_id * optimizers)
               = min(reported_global_step - optimizer_update_id * optimizers) AS as_optimizer_steps
    FROM reports
    JOIN optimizers USING (run_id, launch)
    GROUP BY ALL
    HAVING count(*) >= 3
),
readings AS (
    SELECT *,
           list_filter(
               [
                   CASE WHEN as_micro_steps THEN 'micro-steps' END,
                   CASE WHEN as_attempts THEN 'attempts, skipped ones included' END,
                   CASE
                       WHEN as_optimizer_steps AND optimizers > 1
                       THEN format('steps of all {} optimizers', optimizers)
                   END
               ],
               lambda reading: reading IS NOT NULL
           ) AS names
    FROM fits
)
SELECT run_id,
       launch,
       optimizer,
       NULL AS attempt_id,
       NULL AS rank,
       CASE
           WHEN unknown > 0 THEN NULL
           WHEN as_updates OR as_updates_before THEN FALSE
           WHEN len(names) > 0 THEN TRUE
       END AS fault,
       advanced::DOUBLE AS observed,
       updates::DOUBLE AS expected,
       format(
           'the reported step advanced by {} over {} updates: it counts {}',
           advanced,
           updates,
           array_to_string(names, ' or ')
       ) AS message
FROM readings
