/*
code = "ACC109"
name = "non-finite-micro-batch-applied"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no update was applied"
needs = ["loss", "loss_weight", "valid_tokens"]
explains = ["ACC803"]
summary = "a micro-step with a loss that is not finite went into an update"
why = '''
One NaN or infinity in one micro-step spoils the gradients of the whole window, because adding to NaN gives
NaN. A check that looks at the last micro-step alone, or at a loss that is logged later, lets the step go
on. Parameters and optimizer state are then lost, on every rank.

Cleaning the gradients element by element before the step does not help: the other micro-steps' gradients
are cleaned away with them.
'''
example = '''
A window of 4 micro-steps has losses of 2.3, NaN, 2.2 and 2.1. The loop tests torch.isfinite(loss) beside
the step and sees 2.1. The sum of the four gradients is NaN, and so are every parameter after the step and
every loss from then on.
'''
fix = '''
Look at every micro-step. Where one is not finite, skip the whole window on all ranks.

Hand-written loop: Keep finite &= torch.isfinite(loss.detach()) over the window and test it before the step,
  or clip with error_if_nonfinite=True. Then clear the gradients and go on. With fp16 a GradScaler tests the
  gradients themselves.
DDP: all_reduce the flag first, so that all ranks skip together.
FSDP: As for DDP.
Trainer: logging_nan_inf_filter cleans what is logged and not what is trained. Raise in compute_loss.
Accelerate: Gather the flag, then skip the step and clear the gradients.
Lightning: Return None from training_step on all ranks. detect_anomaly helps to find the cause.
DeepSpeed: Use check_grad_overflow with bf16; fp16 skips by itself.
'''
not_a_fault_when = '''
The window was skipped, by whatever means, or the bad micro-step was cleared away before the others came. A
micro-step without a valid token has no loss: the mean over nothing may be NaN. One whose loss was
multiplied by 0 passes where the gradient at the step was finite.

It is a warning where a loss is infinite and the gradient at the step was measured to be finite: a label
whose logit is masked, a sum that overflows in half precision, gradients that were cleaned.
'''
references = ["speechbrain/speechbrain#1936", "mflux-community/mflux#447"]
*/
WITH ranks AS (
    SELECT *,
           -- A value that is not finite is NULL in its list, and a flag says so.
           CASE
               WHEN loss_nonfinite
               THEN list_transform(list_zip(valid_tokens, loss), lambda x: x[1] > 0 AND x[2] IS NULL)
           END AS bad_losses,
           CASE
               WHEN loss_weight_nonfinite
               THEN list_transform(loss_weight, lambda a: a IS NULL)
           END AS bad_weights,
           grad_norm_after_clip IS NOT NULL AND probe_nonfinite IS NOT TRUE AS finite_gradient,
           CASE
               WHEN window_sums IS NOT NULL
               THEN window_sums.loss_weight IS NOT NULL
                    AND (window_sums.loss IS NOT NULL OR window_sums.valid_tokens = 0)
               WHEN list_count(loss) = len(loss) THEN window_loss_weight IS NOT NULL
               ELSE window_loss_weight IS NOT NULL
                    AND len(list_filter(
                            list_zip(valid_tokens, loss), lambda x: x[1] IS DISTINCT FROM 0 AND x[2] IS NULL
                        )) = 0
           END AS known
    FROM updates
    WHERE tokens_rank IS NOT FALSE
      AND applied IS NOT FALSE
      AND (microbatches > 0) IS NOT FALSE
),
judged AS (
    SELECT *,
           coalesce(list_position(bad_losses, TRUE), list_position(bad_weights, TRUE)) AS bad_step,
           CASE
               WHEN loss_weight_nonfinite THEN applied
               -- Multiplied by 0: where the gradient at the step is finite nothing of it is left.
               WHEN list_contains(bad_losses, TRUE)
               THEN CASE
                   WHEN (loss_weight[bad_step] = 0 AND finite_gradient) IS TRUE THEN FALSE
                   ELSE applied
               END
               WHEN known THEN FALSE
           END AS fault
    FROM ranks
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       fault,
       CASE WHEN finite_gradient THEN 'warning' ELSE 'error' END AS severity,
       grad_norm_after_clip AS observed,
       NULL::DOUBLE AS expected,
       CASE
           WHEN fault
           THEN format(
               'the {} of micro-step {} of {} on rank {} is not finite, and the update was applied {}',
               CASE
                   WHEN loss_weight_nonfinite AND loss_nonfinite THEN 'loss and its gradient'
                   WHEN loss_weight_nonfinite THEN 'gradient at the loss'
                   ELSE 'loss'
               END,
               bad_step,
               microbatches,
               rank,
               CASE
                   WHEN finite_gradient
                   THEN format('with a finite gradient norm of {:.3g}', grad_norm_after_clip)
                   WHEN grad_norm_after_clip_nonfinite OR probe_nonfinite
                   THEN 'with gradients that are not finite either'
                   ELSE 'with gradients of which nothing is known'
               END
           )
       END AS message
FROM judged
