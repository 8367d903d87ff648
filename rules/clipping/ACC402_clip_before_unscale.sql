/*
code = "ACC402"
name = "clip-before-unscale"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no scaled gradient was clipped by a finite limit"
needs = ["events"]
explains = ["ACC406"]
summary = "gradients were clipped while they still carried the loss scale"
why = '''
A loss scale makes every gradient larger by the same factor, 65536 to begin with, until the scaler or the
loop divides by it. A clip before that compares the scaled norm with a limit that was meant for the real
one.

Nearly every gradient is then far above the limit, and the update is shortened to limit / scale. Adam hides
it for a while; plain SGD stands still. Whenever the scale changes, so does the limit that is really in
force.
'''
example = '''
A scale of 65536, a true norm of 0.5 and a limit of 1: nothing should be clipped. The scaled norm is 32768,
so the gradient is multiplied by 1/32768. The optimizer sees a norm of 0.5/32768 = 0.0000153.
'''
fix = '''
Unscale, then clip, then step.

Hand-written loop: Call scaler.unscale_(optimizer) once, right before clip_grad_norm_; an optimizer that
  unscales inside its fused step needs it too. With a loss scale of your own, divide the gradients by it
  before the clip.
DDP: The same.
FSDP: The same. FSDP1 needs ShardedGradScaler.
Trainer: It unscales before it clips. A training_step of your own must not clip.
Accelerate: accelerator.clip_grad_norm_ unscales first. torch's function does not.
Lightning: Set gradient_clip_val. In manual optimization use self.clip_gradients.
DeepSpeed: Set gradient_clipping in its configuration. Under ZeRO with torch_autocast in fp16 the engine
  itself clips scaled gradients: use bf16 there.
'''
not_a_fault_when = '''
A limit that is given in scaled units (limit * scaler.get_scale()) is right. The rule sees that from the
declared max_grad_norm, or because the limits follow the scale. Where the scale never changes and the limit
is at least a hundredth of it, either may be meant: not judged. A scale of 1 changes nothing, and a clip
with an infinite limit only logs the norm.

A clip that did not reach its limit shortened nothing: a warning, because others will be shortened.

Gradients may be multiplied after the clip by something else than a loss scale, such as one over a token
count. That is a warning or a note: the limit may have been chosen for what was clipped.
'''
references = [
    "Lightning-AI/pytorch-lightning#9330",
    "rwth-i6/returnn#1590",
    "pytorch/examples#1196",
    "catalyst-team/catalyst#1319",
    "victorchall/EveryDream2trainer#175",
]

[params]
tolerance = 0.01  # by how much two factors or limits may differ and still count as equal
share = 0.01  # a real limit below this is taken for one that nobody meant
*/
WITH words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           contains(kept, 'C') AS clips_it,
           contains(kept, 'U') AS unscales_it,
           regexp_matches(kept, 'C.*U') AS unscales_after,
           regexp_matches(kept, 'M.*C') AS changes_before,
           regexp_matches(kept, 'C.*M') AS changes_after,
           unscales_it AND NOT unscales_after AND NOT changes_after AS in_order
    FROM (
        SELECT DISTINCT word
        FROM updates
        WHERE contains(word, 'C')
    )
),
called AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.rank,
           u.grad_scale,
           u.grad_rescale,
           u.probe_unscale,
           u.probe_clip_coefficient,
           u.grad_norm_after_clip,
           u.grad_norm_after_scope,
           u.grad_norm_before_scope,
           words.*,
           coalesce(u.grad_scale, list_last(u.loss_scale), u.window_sums.loss_scale_max) AS loss_scaled_by,
           r.max_grad_norm AS declared,
           words.in_order AND (abs(u.probe_unscale - 1) <= $tolerance) IS NOT TRUE AS plainly_right,
           -- An infinite limit is NULL: the norm was logged.
           CASE
               WHEN plainly_right IS NOT TRUE
               THEN list_filter(
                   u.clips,
                   lambda x: x."limit" IS NOT NULL AND (x.micro_step > u.discarded_microbatches) IS NOT FALSE
               )
           END AS calls
    FROM updates AS u
    LEFT JOIN words USING (word)
    LEFT JOIN runs AS r USING (run_id, launch, rank)
    WHERE u.applied IS NOT FALSE
      AND CASE
          WHEN u.word IS NOT NULL THEN words.word IS NOT NULL
          ELSE u.probe_clip_coefficient < 0.999 OR len(u.clips) > 0
      END IS NOT FALSE
      AND (
          coalesce(u.grad_scale, list_max(u.loss_scale), u.window_sums.loss_scale_max) <> 1
          OR words.unscales_it
          OR words.changes_after
      ) IS NOT FALSE
),
clipped AS (
    SELECT * EXCLUDE (first_call, last_call),
           coalesce(first_call."limit", declared) AS clip_limit,
           coalesce(first_call.coefficient, probe_clip_coefficient) AS coefficient,
           -- Whether the limit was reached, by the norm that the call returned or by what it did.
           CASE
               WHEN first_call.kind = 'norm' AND first_call.norm IS NOT NULL
               THEN first_call.norm > first_call."limit"
               WHEN (first_call.kind IS DISTINCT FROM 'value') THEN coefficient < 0.999
           END AS reached,
           -- The norm that the last call left, as it saw it, over the norm at the step without any scale.
           CASE
               WHEN (grad_norm_after_scope IS DISTINCT FROM 'global') THEN NULL
               WHEN last_call.kind = 'norm' AND last_call.complete AND last_call.norm IS NOT NULL
                   AND (grad_norm_before_scope IS DISTINCT FROM 'shard')
               THEN least(last_call.norm, last_call."limit")
               WHEN last_call.kind IS NULL AND coefficient < 0.999 THEN clip_limit
           END / nullif(grad_norm_after_clip, 0) AS times_too_large
    FROM (SELECT *, calls[1] AS first_call, calls[-1] AS last_call FROM called)
),
-- What the gradients were divided by after the clip: the scaler's scale, or a factor of the loop's own.
divided AS (
    SELECT *,
           abs(times_too_large / loss_scaled_by - 1) <= $tolerance AND loss_scaled_by >= 2 AS by_numbers,
           grad_rescale IS NULL OR abs(grad_rescale * loss_scaled_by - 1) <= $tolerance AS by_hand_perhaps,
           CASE
               WHEN kept IS NULL
               THEN CASE
                   WHEN by_numbers AND by_hand_perhaps AND grad_rescale IS NOT NULL THEN NULL
                   WHEN by_numbers THEN 'scaler'
                   WHEN abs(times_too_large - 1) <= $tolerance THEN 'nothing'
               END
               WHEN plainly_right OR NOT clips_it THEN 'nothing'
               WHEN unscales_after THEN 'scaler'
               -- Unscaled in the word, but not by the probe.
               WHEN by_numbers AND abs(probe_unscale - 1) <= $tolerance THEN 'scaler'
               WHEN NOT unscales_it AND grad_scale <> 1
               -- A fused step divides by itself.
               THEN CASE
                   WHEN changes_before AND by_hand_perhaps THEN NULL
                   WHEN abs(times_too_large - 1) <= $tolerance THEN 'nothing'
                   ELSE 'scaler'
               END
               WHEN changes_after
               -- One factor is known for all changes: an earlier one hides what the later one was, and a
               -- single parameter's is not the norm's.
               THEN CASE
                   WHEN changes_before OR abs(times_too_large * grad_rescale - 1) > $tolerance THEN NULL
                   WHEN grad_rescale > 0 THEN 'loop'
               END
               -- Nothing divides scaled gradients at all: that is another fault.
               WHEN NOT unscales_it AND NOT contains(kept, 'M') AND loss_scaled_by <> 1 THEN NULL
               ELSE 'nothing'
           END AS divided_by
    FROM clipped
),
factors AS (
    SELECT *,
           CASE divided_by
               WHEN 'scaler' THEN loss_scaled_by
               WHEN 'loop' THEN 1 / grad_rescale
               WHEN 'nothing' THEN 1
           END AS factor,
           clip_limit / factor AS real_limit
    FROM divided
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           divided_by,
           max(factor) > (1 + $tolerance) * min(factor) AS factor_varies,
           max(real_limit) <= (1 + $tolerance) * min(real_limit) AS limit_follows,
           max(clip_limit) <= (1 + $tolerance) * min(clip_limit) AS limit_stays
    FROM factors
    WHERE divided_by <> 'nothing'
    GROUP BY ALL
),
judged AS (
    SELECT f.*,
           CASE
               WHEN divided_by IS NULL THEN NULL
               WHEN divided_by = 'nothing' OR abs(factor - 1) <= $tolerance THEN FALSE
               WHEN real_limit IS NULL THEN TRUE
               WHEN abs(real_limit / declared - 1) <= $tolerance THEN FALSE
               WHEN abs(clip_limit / declared - 1) <= $tolerance THEN TRUE
               WHEN factor_varies AND limit_follows THEN FALSE
               WHEN factor_varies AND limit_stays THEN TRUE
               -- A limit that is taken from the norms themselves is in their units.
               WHEN real_limit < $share AND (limit_stays OR coefficient < $share) THEN TRUE
               WHEN NOT reached THEN FALSE
           END AS fault,
           -- A power of two that is no count of tokens is a loss scale of the loop's own.
           divided_by = 'scaler'
               OR (
                   factor >= 256
                   AND abs(log2(factor) - round(log2(factor))) < 1e-4
                   AND abs(factor / w.tokens - 1) > $tolerance
               ) AS by_scale,
           real_limit >= $share AND (abs(clip_limit / declared - 1) <= $tolerance) IS NOT TRUE AS own_limit
    FROM factors AS f
    LEFT JOIN launches USING (run_id, launch, optimizer, divided_by)
    LEFT JOIN (
        SELECT run_id,
               launch,
               optimizer,
               attempt_id,
               valid_tokens / gradient_divisor AS tokens
        FROM windows
    ) AS w
        ON f.divided_by = 'loop'
       AND w.run_id = f.run_id
       AND w.launch = f.launch
       AND w.optimizer = f.optimizer
       AND w.attempt_id = f.attempt_id
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       fault,
       CASE
           WHEN divided_by = 'loop' AND (NOT reached OR (by_scale IS NOT TRUE AND factor BETWEEN 0.1 AND 10))
           THEN 'note'
           WHEN NOT reached OR by_scale IS NOT TRUE OR own_limit THEN 'warning'
           ELSE 'error'
       END AS severity,
       real_limit AS observed,
       clip_limit AS expected,
       CASE
           WHEN fault
           THEN format(
               'a clip{} met gradients {}{}{}',
               coalesce(format(' at {:.3g}', clip_limit), ''),
               CASE divided_by
                   WHEN 'loop' THEN format('that the loop multiplied by {:.3g} afterwards', grad_rescale)
                   ELSE coalesce(format('that were {:.6g} times too large', factor), 'that were not unscaled yet')
               END,
               coalesce(format(': it worked as one at {:.3g}', real_limit), ''),
               CASE
                   WHEN NOT reached THEN ', and shortened nothing here'
                   WHEN coefficient < 0.999 THEN format(', and scaled them by {:.3g}', coefficient)
                   ELSE ''
               END
           )
       END AS message
FROM judged
