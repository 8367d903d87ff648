/*
code = "ACC603"
name = "rate-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that reduce together"
needs = ["learning_rate", "wrapper"]
explains = ["ACC605"]
summary = "ranks that reduce together stepped at different learning rates"
why = '''
Replicas stay equal because they apply the same step to the same parameters. With different rates they apply
different steps, and the reduction of later gradients does not bring them together again.

Causes are a scheduler that only rank 0 steps, a plateau scheduler that is fed each rank's own validation
loss, or a schedule that depends on the rank's own data.
'''
example = '''
A plateau scheduler with a patience of 1 on two ranks. Rank 0's validation loss goes 0.50, 0.49, 0.48 and
rank 1's goes 0.50, 0.51, 0.52: rank 1 drops its rate from 0.01 to 0.001, and rank 0 does not. With a
reduced gradient of 0.5 and SGD their next steps are 0.005 and 0.0005. After one update their parameters
differ by 0.0045.
'''
fix = '''
Derive the rate from something that is equal on all ranks.

Hand-written loop: Step the scheduler on every rank, under the same condition.
DDP: all_reduce a validation metric before it reaches ReduceLROnPlateau.
FSDP: As for DDP.
Trainer: It gathers metrics. Callbacks that set the rate must run on every rank.
Accelerate: Use gather_for_metrics before the scheduler's step.
Lightning: Log the monitored metric with sync_dist=True.
DeepSpeed: Let the engine step the scheduler, on every rank.
'''
not_a_fault_when = '''
Only ranks of the same pipeline stage in a launch that reduces gradients are compared, because stages may
have other parameter groups first. Ranks whose layout is unknown are not judged. A sweep of independent runs
in one folder is out of scope. Rates that agree to one part in a million are equal.
'''
references = [
    "huggingface/accelerate#3797",
]

[params]
tolerance = 1e-6  # by how much the rates must differ, as a share of the larger one
*/
WITH launches AS (
    SELECT run_id,
           launch,
           -- Where the layout is unknown, so is which ranks belong together.
           CASE
               WHEN bool_and(token_ranks IS NOT NULL) THEN bool_or(wrapper <> 'none' OR contains(word, 'A'))
           END AS synchronised
    FROM updates
    GROUP BY ALL
),
rates AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           coalesce(pipeline_rank, 0) AS stage,
           count(learning_rate) AS known,
           min(learning_rate) AS lowest,
           max(learning_rate) AS highest
    FROM updates
    GROUP BY ALL
    HAVING count(*) > 1
),
apart AS (
    SELECT *, highest - lowest > $tolerance * greatest(abs(highest), abs(lowest)) AS differs
    FROM rates
),
extremes AS (
    SELECT a.run_id,
           a.launch,
           a.optimizer,
           a.attempt_id,
           a.stage,
           min(u.rank) FILTER (u.learning_rate = a.lowest) AS low_rank,
           min(u.rank) FILTER (u.learning_rate = a.highest) AS high_rank
    FROM updates AS u
    JOIN apart AS a
        ON a.run_id = u.run_id
        AND a.launch = u.launch
        AND a.optimizer = u.optimizer
        AND a.attempt_id = u.attempt_id
        AND a.stage = coalesce(u.pipeline_rank, 0)
    WHERE a.differs
    GROUP BY ALL
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN synchronised AND known > 1 THEN differs END AS fault,
       highest AS observed,
       lowest AS expected,
       CASE
           WHEN differs
           THEN format(
               'rank {} stepped at {:.6g} and rank {} at {:.6g}{}',
               high_rank,
               highest,
               low_rank,
               lowest,
               CASE WHEN lowest > 0 THEN format(', {:.3g} times as much', highest / lowest) ELSE '' END
           )
       END AS message
FROM apart
JOIN launches USING (run_id, launch)
LEFT JOIN extremes USING (run_id, launch, optimizer, attempt_id, stage)
WHERE synchronised IS NOT FALSE
