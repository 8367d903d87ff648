/*
code = "ACC401"
name = "clip-per-micro-step"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no gradient was clipped by a finite limit"
needs = ["events"]
explains = ["ACC403"]
summary = "gradients were clipped before the window was complete"
why = '''
Clipping belongs to the whole gradient of the update. Inside the window it shortens what has been gathered
so far, then the next micro-step is added, and the sum is clipped again: early micro-steps are shortened
several times, the last one once, so tokens weigh by their place in the window. The direction of the update
changes, not only its length. The norms that are logged are those of partial gradients.
'''
example = '''
Gradients (2, 0) then (0, 2), limit 1. Clipped after each: (1, 0), then (1, 2) with a norm of 2.236, clipped
to (0.447, 0.894). Clipped once: (2, 2) with a norm of 2.828, clipped to (0.707, 0.707). The second
micro-step counts twice as much as the first.
'''
fix = '''
Clip once per update, after the last backward and before the step.

Hand-written loop: move clip_grad_norm_ under the condition that guards optimizer.step, after
  scaler.unscale_.
DDP: the same, after the reduced backward.
FSDP: the same, with model.clip_grad_norm_ or over all parameters.
Trainer: set max_grad_norm and clip nowhere else.
Accelerate: `if accelerator.sync_gradients:` around clip_grad_norm_.
Lightning: set gradient_clip_val; in manual optimization clip before opt.step().
DeepSpeed: set gradient_clipping in its configuration.
'''
not_a_fault_when = '''
Norms logged by a clip with an infinite limit are no clips. Gradients cleared after the clip, as between the
two sides of a GAN or in a second pass, are not clipped twice. Where none of the early calls reached its
limit nothing was shortened: a warning, because it will be when gradients grow. Clipping single samples on
purpose (differential privacy) is done elsewhere than on the gathered gradient; if it is done there, ignore
the rule.
'''
references = [
    "huggingface/transformers#1563",
    "huggingface/transformers#1580",
    "facebookresearch/lingua#59",
    "huggingface/accelerate#641",
]
*/
WITH calls AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           discarded_microbatches AS discarded,
           discarded_microbatches + microbatches AS last_micro_step,
           unnest(clips, recursive := TRUE)
    FROM updates
),
early AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           count(*) AS calls,
           bool_and(kind = 'norm' AND norm IS NOT NULL) AS known,
           min(least(1.0, "limit" / norm)) FILTER (WHERE kind = 'norm') AS smallest
    FROM calls
    WHERE micro_step > discarded
      AND micro_step < last_micro_step
      -- An infinite limit is NULL: the norm was logged.
      AND "limit" IS NOT NULL
    GROUP BY ALL
)
SELECT u.run_id,
       u.launch,
       u.optimizer,
       u.attempt_id,
       u.rank,
       regexp_matches(u.word, 'C[^Z]*[bB]') AS fault,
       CASE WHEN e.known AND e.smallest >= 1 THEN 'warning' ELSE 'error' END AS severity,
       e.smallest AS observed,
       1.0 AS expected,
       format(
           'gradients were clipped{} before the last of {} micro-steps{}',
           CASE WHEN e.calls > 1 THEN format(' {} times', e.calls) ELSE '' END,
           u.microbatches,
           CASE
               WHEN e.known AND e.smallest >= 1 THEN '; no early call reached its limit here'
               WHEN e.smallest < 1
               THEN format(
                   ': an early call scaled what was gathered by {:.3g}, later micro-steps came on top',
                   e.smallest
               )
               ELSE ''
           END
       ) AS message
FROM updates AS u
LEFT JOIN early AS e USING (run_id, launch, optimizer, attempt_id, rank)
WHERE (u.word LIKE '%C%') IS NOT FALSE
  AND u.applied IS NOT FALSE
