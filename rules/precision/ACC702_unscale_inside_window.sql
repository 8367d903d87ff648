/*
code = "ACC702"
name = "unscale-inside-window"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no scaler unscaled gradients before a step"
needs = ["events"]
summary = "gradients were unscaled before the window was complete"
why = '''
Unscaling divides what has been gathered so far by the loss scale. The next micro-step then adds a gradient
that still carries the scale. Unscaled again at the end, the early part is divided twice. Not unscaled
again, the late part is never divided. Either way the two parts differ by the whole scale, and one of them
is as good as gone.

torch refuses a second unscale_ without an update between, so the fault shows at the first step or never.
'''
example = '''
A window of two micro-steps with a scale of 65536, and a true gradient of 1 in both. Unscaled after the
first, the sum is 1 + 65536: the first micro-step counts 1/65536 = 0.0000153 of the second.
'''
fix = '''
Unscale once, after the last backward of the window.

Hand-written loop: Move scaler.unscale_(optimizer), and what needs real gradients (clip, logged norms),
  under the condition that guards scaler.step.
DDP: The same.
FSDP: The same.
Trainer: Set max_grad_norm and clip nowhere else.
Accelerate: clip_grad_norm_ unscales: call it only where accelerator.sync_gradients is true.
Lightning: Clip through gradient_clip_val.
DeepSpeed: Use the engine's own clipping.
'''
not_a_fault_when = '''
What was unscaled and then cleared, because its norm was too large or not finite, is not used: only what is
kept counts. A scale of 1 changes nothing. A skipped attempt applies nothing.

Where the last micro-step went backward without a scale the sum may be right: not judged. Steps that run a
closure are not judged either.
'''
references = [
    "huggingface/accelerate#641",
    "pytorch/pytorch#36601",
]
*/
WITH words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           regexp_matches(kept, 'U.*[bB]') AS unscaled_inside,
           -- What stands before the first unscale that a backward follows.
           regexp_extract(kept, '^([^U]*)U.*[bB]', 1) AS before,
           CASE
               WHEN regexp_matches(before, '[FfD]') THEN len(regexp_extract_all(before, '[FfD][^bB]*[bB]'))
               ELSE len(regexp_extract_all(before, '[bB]'))
           END AS steps_before
    FROM (
        SELECT DISTINCT word
        FROM updates
        WHERE contains(word, 'U')
    )
),
unscaled AS (
    SELECT *,
           coalesce(list_max(loss_scale), window_sums.loss_scale_max, grad_scale) AS scale
    FROM updates
    LEFT JOIN words USING (word)
    WHERE contains(word, 'U') IS NOT FALSE
      AND applied IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN closure OR word IS NULL THEN NULL
           WHEN NOT unscaled_inside OR scale = 1 THEN FALSE
           WHEN list_last(loss_scale) = 1 THEN NULL
           WHEN unscaled_inside THEN TRUE
       END AS fault,
       scale AS observed,
       1.0 AS expected,
       CASE
           WHEN unscaled_inside
           THEN format(
               'unscaled after {} of {} micro-steps: {}',
               steps_before,
               microbatches,
               coalesce(
                   format('later ones count {:.6g} times as much as earlier ones', scale),
                   'later ones carry the loss scale, earlier ones do not'
               )
           )
       END AS message
FROM unscaled
