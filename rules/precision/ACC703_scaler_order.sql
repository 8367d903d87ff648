/*
code = "ACC703"
name = "scaler-order"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no gradient scaler took part in a step"
needs = ["events"]
explains = ["ACC104"]
summary = "the calls of the gradient scaler are out of order, or one is missing"
why = '''
A gradient scaler is a sequence: scale the loss, go backward, unscale once, step, update once. Out of order
it fails in four ways.

An update before the step changes the scale by which the step divides, and forgets whether an overflow was
found. Gradients that are unscaled twice are divided by the scale squared. A plain optimizer.step() in a
scaled run takes gradients that are 65536 times too large. A loss that missed the scaler is divided by a
scale that it never had.

torch raises on the plainest of these and not on the rest.
'''
example = '''
Two optimizers share a backward under one scaler, and each step is followed by scaler.update(). After an
overflow the first update halves the scale from 65536 to 32768. The second optimizer then divides gradients
that carry 65536 by 32768: its update is twice as long.
'''
fix = '''
Keep the order, once per update: scaler.scale(loss).backward() for every micro-step,
scaler.unscale_(optimizer) where real gradients are needed, scaler.step(optimizer) for each optimizer,
scaler.update().

Hand-written loop: Make one scaler, before the loop, and call no optimizer.step() beside scaler.step().
DDP: The same.
FSDP: The same. FSDP1 needs ShardedGradScaler.
Trainer: It keeps the order: do not call the scaler.
Accelerate: Prepare every optimizer. With several, do backward and step for one after the other.
Lightning: It keeps the order: do not call the scaler.
DeepSpeed: The engine scales. With fp16 it divides by a scale that has just grown, and without ZeRO by one
  that no loss was multiplied by: use bf16, or a fixed scale under ZeRO.
'''
not_a_fault_when = '''
The last window of a launch may lack its update, because the loop ended there. Where two optimizers take
turns, the update may fall into the next record of the first: it counts. A window that was unscaled, found
too large and cleared has an update without a step.

Gradients that the loop itself divides by the scale need no scaler's step. Where no update of a scaler was
ever seen (a scaler of an unknown kind), a missing one means nothing. A loss whose scale is not the one that
was divided by is a fault only where the launch or the total weight shows that the record sees loss scales.

Steps that run a closure are not judged.
'''
references = [
    "huggingface/accelerate#439",
    "Azure/MS-AMP#45",
    "Haian-Jin/LVSM#19",
    "huggingface/transformers#37474",
]

[params]
tolerance = 0.01  # by how much the scale of the loss and the divisor of the gradients may differ
*/
WITH words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           regexp_matches(kept, '[bB].*G.*[bBOX]') AS updated_early,
           regexp_matches(kept, 'U.*U') AS unscaled_twice,
           contains(kept, 'U') AS unscaled,
           contains(kept, 'M') AS changed,
           regexp_matches(kept, '[UG]') AS by_scaler,
           NOT regexp_matches(word, '[OX].*G') AS without_update,
           -- Of the step before: another optimizer's window lay between.
           regexp_matches(word, '^[^OX]*G') AS updated_first
    FROM (
        SELECT DISTINCT word
        FROM updates
    )
),
scaled AS (
    SELECT *,
           coalesce(list_min(loss_scale), window_sums.loss_scale_min) AS lowest,
           coalesce(list_max(loss_scale), window_sums.loss_scale_max) AS highest,
           -- By which the gradients were really divided; NULL where something else has changed them.
           CASE
               WHEN changed THEN CASE WHEN abs(grad_rescale * grad_scale - 1) <= $tolerance THEN grad_scale END
               WHEN probe_unscale > 0 THEN 1 / probe_unscale
               WHEN NOT unscaled THEN grad_scale
           END AS divisor,
           grad_scale IS NULL AND NOT by_scaler AS without_scaler
    FROM updates
    LEFT JOIN words USING (word)
    WHERE (
        grad_scale IS NOT NULL
        OR contains(word, 'U')
        OR contains(word, 'G')
        OR coalesce(list_max(loss_scale), window_sums.loss_scale_max) <> 1
    ) IS NOT FALSE
),
launches AS (
    SELECT run_id,
           launch,
           bool_or(contains(word, 'G')) AS updates_seen,
           bool_or(highest <> 1) AS scales_seen
    FROM scaled
    GROUP BY ALL
),
compared AS (
    SELECT scaled.*,
           scales_seen,
           windows.total_weight,
           abs(windows.total_weight - 1) <= windows.tolerance AS weight_is_right,
           -- An update after the step may fall into the next record.
           CASE WHEN scaled.without_update AND updates_seen THEN NOT following.updated_first END AS update_missing,
           scaled.lowest = scaled.highest AND abs(scaled.divisor / scaled.highest - 1) > $tolerance AS other_scale
    FROM scaled
    LEFT JOIN launches USING (run_id, launch)
    LEFT JOIN (
        FROM scaled SEMI JOIN (FROM scaled WHERE without_update) USING (run_id, launch, optimizer)
    ) AS following
        ON scaled.without_update
       AND following.run_id = scaled.run_id
       AND following.launch = scaled.launch
       AND following.optimizer = scaled.optimizer
       AND following.rank = scaled.rank
       AND following.attempt_id = scaled.attempt_id + 1
    LEFT JOIN windows
        ON (scaled.without_scaler OR abs(scaled.divisor / scaled.highest - 1) > $tolerance)
       AND windows.run_id = scaled.run_id
       AND windows.launch = scaled.launch
       AND windows.optimizer = scaled.optimizer
       AND windows.attempt_id = scaled.attempt_id
),
judged AS (
    SELECT *,
           CASE
               WHEN kept IS NULL OR closure THEN NULL
               WHEN updated_early THEN 'early'
               WHEN unscaled_twice AND (highest IS DISTINCT FROM 1) THEN 'twice'
               WHEN without_scaler AND applied AND lowest <> 1
               THEN CASE
                   WHEN weight_is_right THEN 'none'
                   WHEN NOT changed THEN 'plain'
               END
               -- A total of the same ratio says that the record missed the scale, not the loop.
               WHEN other_scale AND applied
               THEN CASE
                   WHEN changed AND weight_is_right IS NOT FALSE THEN 'none'
                   WHEN abs(total_weight * highest / divisor - 1) > $tolerance THEN 'other'
                   WHEN total_weight IS NULL AND scales_seen THEN 'other'
               END
               WHEN update_missing THEN 'missing'
               WHEN without_scaler OR NOT without_update OR NOT update_missing THEN 'none'
           END AS problem
    FROM compared
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       problem <> 'none' AS fault,
       CASE WHEN problem = 'other' THEN divisor END AS observed,
       CASE WHEN problem = 'other' THEN highest END AS expected,
       CASE problem
           WHEN 'early' THEN 'the scaler was updated before the step'
           WHEN 'twice' THEN 'the gradients were unscaled twice'
           WHEN 'plain'
           THEN format(
               'the loss was scaled by {:.6g}, and the step took gradients that nothing unscaled',
               highest
           )
           WHEN 'other'
           THEN format(
               'the loss was scaled by {:.6g}, and the gradients were divided by {:.6g}',
               highest,
               divisor
           )
           WHEN 'missing' THEN 'no update of the scaler followed this step, as it does others'
       END AS message
FROM judged
