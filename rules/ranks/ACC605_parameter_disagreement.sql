/*
code = "ACC605"
name = "parameter-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no two replicas wrote a digest of their parameters at the same update"
needs = ["param_digest"]
summary = "replicas of the model hold different parameters"
why = '''
Replicas that start equal and apply equal steps stay equal to the last bit. Once they differ, the average of
their gradients belongs to no model: each replica is moved by gradients that were taken elsewhere.
Checkpoints are usually written by rank 0, so the work of the others is lost or only felt as noise. Whatever
caused it lies at or before the first update at which the digests differ.
'''
example = '''
Two replicas at 1.00, gradients of 5 and 3, a rate of 0.1. Reduced, both go to 1 - 0.1 * 4 = 0.60. Not
reduced, they go to 0.50 and 0.70. The digests, 16 hex digits over the bits of all parameters, agree in the
first case and have nothing in common in the second.
'''
fix = '''
Find what differs between the ranks, and broadcast the parameters before going on.

Hand-written loop: reduce all gradients, step all ranks or none, and load the same checkpoint on all. DDP:
build it after loading, so that it broadcasts rank 0's parameters, and change none by hand afterwards on one
rank only. FSDP: the same for the replicas of a hybrid mesh. Trainer, Accelerate, Lightning: let them load
the checkpoint. DeepSpeed: load with load_checkpoint on every rank.
'''
not_a_fault_when = '''
Shards, tensor parallel parts and pipeline stages are not compared with each other, and sharded parameters
whose coordinates are unknown are not judged. Replicas that agree again at a later update were averaged or
loaded anew (local SGD does so on purpose): a note. Where the record shows no reduction at all, independent
runs in one folder look the same: a warning. Devices of different kinds may round the optimizer's arithmetic
differently: their replicas differ in the last bits, and this rule cannot tell how much.
'''
references = [
    "modelscope/FunASR#3472",
    "jingyaogong/minimind#853",
]
*/
WITH launches AS (
    SELECT run_id,
           launch,
           bool_or(wrapper <> 'none' OR contains(word, 'A')) AS synchronised
    FROM updates
    GROUP BY ALL
),
digests AS (
    SELECT *,
           first_value(rank) OVER replicas AS first_rank,
           first_value(param_digest) OVER replicas AS first_digest
    FROM updates
    WHERE param_digest IS NOT NULL
    WINDOW replicas AS (PARTITION BY run_id, launch, optimizer, attempt_id, parameter_part ORDER BY rank)
),
parts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           parameter_part,
           count(*) AS replicas,
           count(DISTINCT param_digest) AS digests,
           min(first_rank) AS first_rank,
           list(rank ORDER BY rank) FILTER (param_digest <> first_digest) AS others,
           -- Sharded parameters without coordinates are no replicas of each other.
           bool_and(
               shard_rank IS NOT NULL OR wrapper NOT IN ('fsdp1', 'fsdp2', 'deepspeed-zero3')
           ) AS comparable
    FROM digests
    GROUP BY ALL
    HAVING count(*) > 1
),
attempts AS (
    SELECT *,
           max(digests) OVER (PARTITION BY run_id, launch, optimizer, attempt_id) = 1 AS all_agree
    FROM parts
),
histories AS (
    SELECT *,
           max(attempt_id) FILTER (all_agree) OVER (PARTITION BY run_id, launch, optimizer) AS last_agreement
    FROM attempts
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN comparable IS NOT FALSE THEN digests > 1 END AS fault,
       digests::DOUBLE AS observed,
       1.0 AS expected,
       format(
           '{} replicas hold {} different sets of parameters: rank {} and {} {} differ{}',
           replicas,
           digests,
           first_rank,
           CASE WHEN len(others) = 1 THEN 'rank' ELSE 'ranks' END,
           CASE
               WHEN len(others) <= 4 THEN array_to_string(others, ', ')
               ELSE array_to_string(others[:3], ', ') || format(' and {} more', len(others) - 3)
           END,
           CASE
               WHEN last_agreement > attempt_id
               THEN format(', and all agree again after attempt {}', last_agreement)
               WHEN last_agreement IS NOT NULL
               THEN format(', after they agreed at attempt {}', last_agreement)
               WHEN synchronised IS NOT TRUE
               THEN '; the record shows no reduction, and independent runs look the same'
               ELSE ', and no digests before these agreed'
           END
       ) AS message,
       CASE
           WHEN last_agreement > attempt_id THEN 'note'
           WHEN synchronised IS NOT TRUE THEN 'warning'
           ELSE 'error'
       END AS severity
FROM histories
JOIN launches USING (run_id, launch)
