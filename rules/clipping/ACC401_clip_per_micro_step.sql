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
so far, then the next micro-step is added, and the sum is clipped again. Early micro-steps are shortened
several times, the last one once, so tokens weigh by their place in the window.

The direction of the update changes, not only its length. The logged norms are those of partial gradients.
'''
example = '''
Two micro-steps with gradients (2, 0) and (0, 2), and a limit of 1.

    clipped after each   (1, 0), then (1, 2), clipped to (0.447, 0.894)
    clipped once         (2, 2), clipped to (0.707, 0.707)

The norms are 2.236 and 2.828 before the last clip. The second micro-step counts twice as much as the first.
'''
fix = '''
Clip once per update, after the last backward and before the step.

Hand-written loop: Move clip_grad_norm_ under the condition that guards optimizer.step(), after
  scaler.unscale_ if there is a scaler.
DDP: The same, after the last backward, which reduces the gradients.
FSDP: The same: model.clip_grad_norm_ under FSDP1, clip_grad_norm_ over all parameters under FSDP2.
Trainer: Set max_grad_norm and clip nowhere else.
Accelerate: Put clip_grad_norm_ under if accelerator.sync_gradients.
Lightning: Set gradient_clip_val. In manual optimization clip before opt.step().
DeepSpeed: Set gradient_clipping in its configuration.
'''
not_a_fault_when = '''
A clip with an infinite limit only logs the norm. Gradients that are cleared after the clip, as between the
two sides of a GAN or in a second pass, are not clipped twice.

Where none of the early calls reached its limit nothing was shortened: a warning, because they will reach it
when gradients grow.

Clipping single samples on purpose (differential privacy) is usually done before they are added up. If it is
done on the gathered gradient, ignore the rule there.
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
