/*
code = "ACC602"
name = "skip-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that reduce together"
needs = ["optimizer_step_skipped", "wrapper"]
explains = ["ACC603", "ACC605", "ACC607", "ACC609"]
summary = "some ranks applied an update that others skipped"
why = '''
Replicas stay equal because all of them take the same step. Where a rank skips an attempt that the others
apply, its parameters, its moments and its count of steps are one update behind. Its loss scale goes another
way, and the reduction of later gradients does not bring it back.

The usual cause is a decision that each rank takes by itself: it looks for an overflow in its own gradients,
before they are reduced, or in its own loss.
'''
example = '''
Two ranks unscale first and reduce by hand afterwards. In attempt 7 rank 1 alone overflows: its scaler skips
and halves the scale from 65536 to 32768. Rank 0 steps with what arrived. From there on rank 0 has made 7
updates and rank 1 has made 6. With Adam at a rate of 0.001 each of their parameters is about 0.001 apart.
'''
fix = '''
Take the decision once for all ranks, from something that all of them hold.

Hand-written loop: Reduce the gradients first and unscale them afterwards, so that an infinity reaches every
  rank; or all_reduce the flag. The same goes for a check of the loss or of the norm.
DDP: Unscale after the last backward, which reduces the gradients.
FSDP: Use ShardedGradScaler under FSDP1, which agrees over the shards.
Trainer: Leave the skipping to it.
Accelerate: Leave the skipping to it.
Lightning: Decide on the reduced norm in on_before_optimizer_step.
DeepSpeed: The engine agrees over its ranks. A check of your own must do so too.
'''
not_a_fault_when = '''
Ranks that do not reduce together (independent runs in one folder) are out of scope, and ranks whose layout
is unknown are not judged. Where parameters are averaged instead of gradients (local SGD), each rank may
skip by itself until the next average: not judged.

A rank whose record does not say whether it stepped is not counted, and an attempt that only one rank tells
of is not judged.
'''
references = [
    "pytorch/pytorch#115710",
    "speechbrain/speechbrain#1936",
]
*/
WITH launches AS (
    SELECT run_id, launch, optimizer, reduces_together AS synchronised, averages_parameters AS averaged
    FROM windows
    GROUP BY ALL
),
split AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           list(u.rank ORDER BY u.rank) FILTER (u.applied) AS stepped,
           list(u.rank ORDER BY u.rank) FILTER (NOT u.applied) AS skipped,
           arg_min(u.skip_evidence, u.rank) FILTER (NOT u.applied) AS evidence
    FROM updates AS u
    SEMI JOIN (FROM windows WHERE applied_ranks > 0 AND skipped_ranks > 0) AS w
        ON w.run_id = u.run_id
        AND w.launch = u.launch
        AND w.optimizer = u.optimizer
        AND w.attempt_id = u.attempt_id
    GROUP BY ALL
),
told AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           applied_ranks,
           skipped_ranks,
           synchronised,
           averaged,
           CASE
               WHEN applied_ranks > 0 AND skipped_ranks > 0 THEN TRUE
               WHEN applied_ranks = ranks OR skipped_ranks = ranks THEN FALSE
           END AS differs
    FROM windows
    JOIN launches USING (run_id, launch, optimizer)
    WHERE ranks > 1
      AND synchronised IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN synchronised AND NOT averaged THEN differs END AS fault,
       skipped_ranks::DOUBLE AS observed,
       0.0 AS expected,
       format(
           '{} {} skipped this attempt{}, {} {} applied it: from here on they are an update apart',
           CASE WHEN len(skipped) = 1 THEN 'rank' ELSE 'ranks' END,
           CASE
               WHEN len(skipped) <= 4 THEN array_to_string(skipped, ', ')
               ELSE array_to_string(skipped[:3], ', ') || format(' and {} more', len(skipped) - 3)
           END,
           coalesce(' (' || evidence || ')', ''),
           CASE WHEN len(stepped) = 1 THEN 'rank' ELSE 'ranks' END,
           CASE
               WHEN len(stepped) <= 4 THEN array_to_string(stepped, ', ')
               ELSE array_to_string(stepped[:3], ', ') || format(' and {} more', len(stepped) - 3)
           END
       ) AS message
FROM told
LEFT JOIN split USING (run_id, launch, optimizer, attempt_id)
