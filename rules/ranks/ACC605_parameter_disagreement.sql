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
Two replicas stand at 1.00. The gradients are 5 and 3, the rate is 0.1.

    reduced       both go to 1 - 0.1 * 4 = 0.60
    not reduced   they go to 0.50 and 0.70

The digests, 16 hex digits over the bits of all parameters, agree in the first case and have nothing in
common in the second.
'''
fix = '''
Find what differs between the ranks, and broadcast the parameters before going on.

Hand-written loop: Reduce all gradients, step on all ranks or on none, and load the same checkpoint on all.
DDP: Build it after loading, so that it broadcasts rank 0's parameters. Change none by hand afterwards on
  one rank only.
FSDP: The same for the replicas of a hybrid mesh.
Trainer: Let it load the checkpoint.
Accelerate: Load with load_state on every rank.
Lightning: Let it load the checkpoint, with ckpt_path.
DeepSpeed: Load with load_checkpoint on every rank.
'''
not_a_fault_when = '''
Shards, tensor parallel parts and pipeline stages are not compared with each other, and parameters whose
place in the layout is unknown are not judged. Replicas that agree again at a later update were loaded anew
or averaged inside a step: a note.

Local SGD lets replicas differ by right until the next average. Where the probe shows that parameters are
written between the steps and no gradients are reduced, replicas are compared right after an average. They
are not where only some ranks were averaged with each other, and without a wrapper not before they agreed
once.

Where the record shows no reduction at all, only ranks that were equal at two digests or more, after updates
that changed them, are compared, and the finding is a warning. Independent runs are out of scope.

Devices of different kinds may round the optimizer's arithmetic differently. Their replicas differ in the
last bits, and this rule cannot tell how much.
'''
references = [
    "modelscope/FunASR#3472",
    "jingyaogong/minimind#853",
]
*/
WITH launches AS (
    SELECT run_id, launch, optimizer, reduces_together AS synchronised, averages_parameters AS averaged
    FROM windows
    GROUP BY ALL
),
-- After a step replicas are equal; where parameters are averaged, they are right after that.
digests AS (
    SELECT u.*,
           l.averaged,
           CASE WHEN l.averaged THEN u.param_digest_before ELSE u.param_digest END AS digest
    FROM updates AS u
    JOIN launches AS l USING (run_id, launch, optimizer)
    WHERE CASE WHEN l.averaged THEN u.param_digest_before ELSE u.param_digest END IS NOT NULL
),
first_ones AS (
    SELECT *,
           first_value(rank) OVER replicas AS first_rank,
           first_value(digest) OVER replicas AS first_digest,
           count(*) OVER equals AS equals
    FROM digests
    WINDOW replicas AS (PARTITION BY run_id, launch, optimizer, attempt_id, parameter_part ORDER BY rank),
           equals AS (PARTITION BY run_id, launch, optimizer, attempt_id, parameter_part, digest)
),
parts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           parameter_part,
           averaged,
           count(*) AS replicas,
           count(DISTINCT digest) AS digests,
           min(first_rank) AS first_rank,
           list(rank ORDER BY rank) FILTER (digest <> first_digest) AS others,
           min(equals) AS smallest_group,
           bool_and(wrapper = 'none') AS unwrapped,
           bool_and(probe_parameter_changed IS NOT FALSE) AS changed,
           -- Sharded parameters without coordinates are no replicas of each other, and neither are ranks
           -- whose optimizers step different parameters.
           bool_and(
               shard_rank IS NOT NULL OR (wrapper NOT IN ('fsdp1', 'fsdp2', 'deepspeed-zero3')) IS TRUE
           )
               AND bool_and(parameter_part IS NOT NULL)
               AND (
                   min(probe_parameter) IS NOT DISTINCT FROM max(probe_parameter)
                   -- Replicas may part the gradients, and each look at a parameter of its own part.
                   OR (bool_or(grad_norm_after_scope = 'shard') AND bool_and(shard_size = 1))
               ) AS comparable
    FROM first_ones
    GROUP BY ALL
    HAVING count(*) > 1
       AND (NOT averaged OR bool_or(probe_parameter_moved))
),
agreements AS (
    SELECT run_id, launch, optimizer, attempt_id, max(digests) = 1 AS all_agree
    FROM parts
    GROUP BY ALL
),
last_ones AS (
    SELECT run_id, launch, optimizer, max(attempt_id) FILTER (all_agree) AS last_agreement
    FROM agreements
    GROUP BY ALL
),
histories AS (
    SELECT *,
           -- Independent runs may begin equal; those that stay so over updates are replicas of each other.
           min(attempt_id) OVER earlier < max(attempt_id) OVER earlier
               AND bool_and(all_agree AND changed) OVER earlier AS were_equal
    FROM parts
    JOIN agreements USING (run_id, launch, optimizer, attempt_id)
    JOIN last_ones USING (run_id, launch, optimizer)
    WINDOW earlier AS (
            PARTITION BY run_id, launch, optimizer
            ORDER BY attempt_id
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
),
judged AS (
    SELECT h.*,
           l.synchronised,
           CASE
               WHEN NOT comparable THEN NULL
               WHEN digests = 1 THEN FALSE
               -- Averages over a part of the ranks, or something else that writes parameters.
               WHEN h.averaged AND (smallest_group > 1 OR (unwrapped AND last_agreement IS NULL)) THEN NULL
               ELSE TRUE
           END AS fault
    FROM histories AS h
    JOIN launches AS l USING (run_id, launch, optimizer)
    WHERE l.synchronised IS NOT FALSE
       OR h.averaged
       OR were_equal
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       digests::DOUBLE AS observed,
       1.0 AS expected,
       CASE
           WHEN fault
           THEN format(
               '{} replicas hold {} different sets of parameters{}: rank {} and {} {} differ{}{}',
               replicas,
               digests,
               CASE WHEN averaged THEN ' right after these were written between two steps' ELSE '' END,
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
                   ELSE ', and no digests before these agreed'
               END,
               CASE
                   WHEN synchronised OR averaged THEN ''
                   ELSE '; the record shows no reduction, and independent runs look the same'
               END
           )
       END AS message,
       CASE
           WHEN last_agreement > attempt_id THEN 'note'
           WHEN synchronised OR averaged THEN 'error'
           ELSE 'warning'
       END AS severity
FROM judged
