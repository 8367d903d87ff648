/*
code = "ACC803"
name = "non-finite-update"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no attempt was applied"
needs = ["grad_norm_after_clip or probe_nonfinite or grad_norm_before_clip", "optimizer_step_skipped"]
summary = "an update was applied with a gradient that is not finite"
why = '''
One NaN or infinity in a gradient that is applied stays in the optimizer's moments and in the parameter for
good. Adam's averages remain NaN, and the next forward spreads it over all outputs.

Clipping does not save it: a norm that is not finite makes the clip's factor 0 or NaN. With accumulation one
bad micro-step is enough to lose the window.
'''
example = '''
A window of 4 micro-steps has losses of 2.1, 2.0, NaN and 2.2. The sum of the gradients is NaN, its norm is
NaN, the factor of a clip at 1.0 is NaN, and every parameter that is stepped with it becomes NaN. Skipping
would have cost one update. Going on costs everything since the last checkpoint.
'''
fix = '''
Look at the norm before the step, and do not step where it is not finite.

Hand-written loop: Keep norm = clip_grad_norm_(...) and step only if torch.isfinite(norm), else clear the
  gradients, on every rank alike. In fp16 use a GradScaler, which skips such attempts.
DDP: Decide on the reduced norm, so that all ranks skip together.
FSDP: As for DDP, on the norm of the whole gradient.
Trainer: fp16 skips by itself, bf16 does not: raise in compute_loss where a loss is not finite.
Accelerate: fp16 skips by itself, bf16 does not: test what clip_grad_norm_ returns.
Lightning: detect_anomaly finds the cause. A check of your own goes into on_before_optimizer_step.
DeepSpeed: fp16 skips by itself. bf16 has check_grad_overflow.
'''
not_a_fault_when = '''
Skipped attempts are out of scope: a scaler that settles skips a few.

What counts is the gradient just before the step. Where the norm that a clip returned was infinite, and the
norm measured at the step is finite, the loop has cleaned the gradients in between. An optimizer that leaves
out such elements by itself looks the same as the fault.
'''
references = [
    "speechbrain/speechbrain#1936",
    "mflux-community/mflux#447",
]
*/
WITH gradients AS (
    SELECT *,
           coalesce(probe_nonfinite, FALSE) OR coalesce(grad_norm_after_clip_nonfinite, FALSE) AS bad_at_step,
           grad_norm_after_clip IS NOT NULL AS fine_at_step,
           coalesce(grad_norm_before_clip_nonfinite, FALSE) AS bad_before,
           grad_norm_before_clip IS NOT NULL OR probe_nonfinite IS NOT NULL AS known_otherwise
    FROM updates
    WHERE applied IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN applied IS NULL THEN NULL
           WHEN bad_at_step THEN TRUE
           WHEN fine_at_step THEN FALSE
           WHEN bad_before THEN TRUE
           WHEN known_otherwise THEN FALSE
       END AS fault,
       NULL::DOUBLE AS observed,
       NULL::DOUBLE AS expected,
       format(
           'applied although {} not finite{}',
           CASE
               WHEN grad_norm_after_clip_nonfinite THEN 'the norm of the gradient at the step was'
               WHEN bad_at_step
               THEN format('the gradient of {} at the step was', coalesce(probe_parameter, 'the probe'))
               WHEN run_id IN (SELECT run_id FROM runs WHERE format <> 'ledger')
               THEN 'the norm of the gradient in the log is'
               ELSE 'the norm that the last clip returned was'
           END,
           CASE
               WHEN probe_nonfinite IS FALSE AND bad_at_step
               THEN format(' (that of {} was)', coalesce(probe_parameter, 'the probe'))
               ELSE ''
           END
       ) AS message
FROM gradients
