/*
code = "ACC706"
name = "scaled-and-unscaled-mixed"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no loss of a window of several micro-steps was scaled"
needs = ["microbatches"]
explains = ["ACC701"]
summary = "some micro-steps of a window went backward without the loss scale of the others"
why = '''
The gathered gradient is divided by the loss scale once. A micro-step whose loss was not multiplied by it
before its backward is divided all the same, and is as good as gone. Its tokens were read, counted and
logged, and they move the model by 1/65536 of what they should.

The total weight looks right, because weights are measured without the scale.
'''
example = '''
A window of four micro-steps with a scale of 65536. The last one takes another branch and calls
loss.backward() instead of scaler.scale(loss).backward(). After unscaling, this quarter of the batch counts
1/65536 = 0.0000153 of the rest. The update is that of three micro-steps, divided by four.
'''
fix = '''
Scale every loss that reaches the same parameters.

Hand-written loop: Call scaler.scale(loss).backward() in every branch: the last micro-step, the tail of an
  epoch, auxiliary losses with a backward of their own.
DDP: The same.
FSDP: The same.
Trainer: Call the inherited training_step.
Accelerate: Call accelerator.backward(loss), never loss.backward().
Lightning: Call self.manual_backward(loss).
DeepSpeed: Call engine.backward(loss).
'''
not_a_fault_when = '''
A micro-step without any valid token adds nothing: an unscaled backward of zero, to keep the ranks in step,
is silent. Where the loss of an unscaled micro-step was not observed it may be such a zero: not judged.
Windows that were unscaled half-way (ACC702) are not judged here.

A scale that has itself come down to 1 is no missing scale. A loss scale of the loop's own is not seen as
one.
'''
references = [
    "pytorch/pytorch#36601",
]
*/
WITH scaled AS (
    SELECT *,
           coalesce(list_min(loss_scale), window_sums.loss_scale_min) AS lowest,
           coalesce(list_max(loss_scale), window_sums.loss_scale_max) AS highest
    FROM updates
    WHERE (microbatches > 1) IS NOT FALSE
      AND applied IS NOT FALSE
      AND closure IS NOT TRUE
      AND (
          coalesce(list_min(loss_scale), window_sums.loss_scale_min) <> 1
          OR coalesce(list_max(loss_scale), window_sums.loss_scale_max) <> 1
      ) IS NOT FALSE
),
counted AS (
    SELECT *,
           if(lowest = 1, highest, lowest) AS missed,
           CASE
               WHEN lowest <> highest AND loss_scale IS NOT NULL THEN list_zip(loss_scale, valid_tokens)
           END AS steps,
           len(list_filter(steps, lambda x: x[1] = 1 AND x[2] <> 0)) AS unscaled,
           -- An unscaled micro-step of unknown loss may add nothing.
           len(list_filter(steps, lambda x: x[1] IS NULL OR (x[1] = 1 AND x[2] IS NULL))) AS doubtful,
           CASE
               WHEN steps IS NOT NULL
               THEN unscaled > 0
                   AND len(list_filter(steps, lambda x: x[1] <> 1 AND x[2] IS DISTINCT FROM 0)) > 0
               WHEN window_sums.valid_tokens_min > 0 THEN TRUE
           END AS mixed
    FROM scaled
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN lowest = highest AND list_count(loss_scale) < len(loss_scale) THEN NULL
           WHEN lowest = highest OR (lowest <> 1 AND highest <> 1 AND steps IS NULL) THEN FALSE
           -- Unscaled half-way: ACC702.
           WHEN regexp_matches(regexp_replace(word, '^.*Z', ''), 'U.*[bB]') THEN NULL
           -- The scale itself has come down to 1.
           WHEN mixed THEN (grad_scale IS DISTINCT FROM 1)
           WHEN doubtful = 0 THEN FALSE
       END AS fault,
       unscaled::DOUBLE AS observed,
       0.0 AS expected,
       CASE
           WHEN mixed
           THEN format(
               '{} of {} micro-steps went backward without the loss scale of {:.6g}: '
               || 'divided by it like the others, they count {:.3g} of what they should',
               coalesce(unscaled::VARCHAR, 'some'),
               microbatches,
               missed,
               1 / missed
           )
       END AS message
FROM counted
