/*
code = "ACC607"
name = "scale-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that reduce together under a gradient scaler"
needs = ["grad_scale", "wrapper"]
explains = ["ACC604", "ACC605"]
summary = "ranks that reduce together scaled their losses by different factors"
why = '''
What is reduced are scaled gradients. Where one rank's loss scale is twice another's, its tokens count twice
in the sum. Each rank then divides the sum by its own scale: the replicas take different steps, and none of
them is the average.

A scaler belongs to each process. The scales stay equal only as long as all ranks start at the same one and
see the same overflows.
'''
example = '''
Scales of 65536 on rank 0 and 131072 on rank 1, true gradients of 1 and 3. The reduced, scaled average is
(65536 * 1 + 131072 * 3) / 2 = 229376. Divided by its own scale, rank 0 steps with 3.5 and rank 1 with 1.75.
The average is 2.
'''
fix = '''
Let all ranks start at one scale and see the same overflows.

Hand-written loop: Use the same init_scale on every rank, load the scaler's state on every rank, and reduce
  the gradients before they are unscaled.
DDP: Load the scaler's state on all ranks.
FSDP: Use ShardedGradScaler under FSDP1.
Trainer: Resume on every rank from the same checkpoint.
Accelerate: Resume with load_state on every rank.
Lightning: Resume on every rank from the same checkpoint.
DeepSpeed: Load with load_checkpoint on every rank.
'''
not_a_fault_when = '''
Where the loop itself reduces gradients that are unscaled already, a scale of its own for each rank cancels:
no fault here. A skip on one rank alone is ACC602.

Ranks that do not reduce together are out of scope. Where the layout is unknown, or parameters are averaged
instead of gradients (local SGD), nothing is judged. Pipeline stages are not compared with each other.
Scales that agree to one part in a million are equal. A loss scale made by hand is no scaler's and is not
recorded.
'''
references = [
    "pytorch/pytorch#115710",
]

[params]
tolerance = 1e-6  # by how much the scales must differ, as a share of the larger one
*/
WITH launches AS (
    SELECT run_id, launch, optimizer, reduces_together AS synchronised, averages_parameters AS averaged
    FROM windows
    GROUP BY ALL
    HAVING count(grad_scale_max) > 0
),
scales AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           coalesce(pipeline_rank, 0) AS stage,
           count(grad_scale) AS known,
           min(grad_scale) AS lowest,
           max(grad_scale) AS highest
    FROM updates
    SEMI JOIN launches USING (run_id, launch, optimizer)
    GROUP BY ALL
    HAVING count(*) > 1
),
apart AS (
    SELECT *, highest - lowest > $tolerance * greatest(abs(highest), abs(lowest)) AS differs
    FROM scales
),
extremes AS (
    SELECT a.run_id,
           a.launch,
           a.optimizer,
           a.attempt_id,
           a.stage,
           min(u.rank) FILTER (u.grad_scale = a.lowest) AS low_rank,
           min(u.rank) FILTER (u.grad_scale = a.highest) AS high_rank,
           bool_and(u.wrapper = 'none' AND regexp_matches(u.word, 'U[^bB]*A[^bB]*[OX]')) AS unscaled_first
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
       CASE
           WHEN synchronised AND NOT averaged AND known > 1
           THEN CASE WHEN differs THEN NOT unscaled_first ELSE FALSE END
       END AS fault,
       highest AS observed,
       lowest AS expected,
       CASE
           WHEN differs
           THEN format(
               'the loss scale was {:.12g} on rank {} and {:.12g} on rank {}: '
               'in what they reduce, tokens of the one count {:.6g} times as much as those of the other',
               highest,
               high_rank,
               lowest,
               low_rank,
               highest / nullif(lowest, 0)
           )
       END AS message
FROM apart
JOIN launches USING (run_id, launch, optimizer)
LEFT JOIN extremes USING (run_id, launch, optimizer, attempt_id, stage)
WHERE synchronised IS NOT FALSE
