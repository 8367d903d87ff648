/*
code = "ACC701"
name = "scale-changed-inside-window"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no loss of a window of several micro-steps was scaled"
needs = ["microbatches"]
summary = "the micro-steps of one window went backward with different loss scales"
why = '''
Gradients that are gathered over a window carry the loss scale of their own backward, and the sum is divided
by one number at its end. Where the scale changed in between, micro-steps of the other scale come out too
large or too small, by the ratio of the two.

Nothing fails, and the logged loss is right. How much a token counts depends on when it came.
'''
example = '''
A window of two micro-steps: a scale of 65536 in the first and of 32768 in the second, and a division by
32768 at the end. The gradient of the first counts 65536/32768 = 2 times.
'''
fix = '''
Let the scale change only between windows.

Hand-written loop: Call scaler.update() once per update, after scaler.step(). Set no scale by hand inside a
  window, and load a scaler's state before the first backward. With several losses, scale all that reach the
  same parameters with one scaler. With several optimizers, step them all and then update the scaler once.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: It does so. Look for a scaler of your own.
Accelerate: With several optimizers each prepared step updates the scaler: call backward and step for one
  after the other.
Lightning: It does so. Look for a scaler of your own.
DeepSpeed: The engine does it.
'''
not_a_fault_when = '''
A scale that grows or falls between two windows is what a scaler does. Micro-steps without any valid token
may have any scale: they add nothing. Micro-steps that were not scaled at all are ACC706, and windows that
were unscaled half-way are ACC702.
'''
references = [
    "huggingface/accelerate#439",
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
compared AS (
    SELECT *,
           CASE
               WHEN lowest <> highest AND loss_scale IS NOT NULL THEN list_zip(loss_scale, valid_tokens)
           END AS steps,
           -- Micro-steps without a valid token add nothing, and an unscaled one of unknown loss may be such.
           CASE
               WHEN steps IS NOT NULL
               THEN list_transform(
                   list_filter(steps, lambda x: x[2] <> 0 OR (x[2] IS NULL AND x[1] <> 1)),
                   lambda x: x[1]
               )
               WHEN window_sums.valid_tokens_min > 0 THEN [lowest, highest]
           END AS scales,
           list_max(scales) / list_min(scales) AS ratio,
           len(list_filter(steps, lambda x: x[1] IS NULL OR (x[2] IS NULL AND x[1] = 1))) AS doubtful
    FROM scaled
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN lowest = highest AND list_count(loss_scale) < len(loss_scale) THEN NULL
           WHEN lowest = highest THEN FALSE
           -- Unscaled half-way: ACC702.
           WHEN regexp_matches(regexp_replace(word, '^.*Z', ''), 'U.*[bB]') THEN NULL
           WHEN ratio > 1.000001 THEN TRUE
           WHEN doubtful = 0 THEN FALSE
       END AS fault,
       ratio AS observed,
       1.0 AS expected,
       CASE
           WHEN ratio > 1
           THEN format(
               'loss scales of {:.6g} to {:.6g} in one window of {} micro-steps: '
               || 'divided by one number, some count {:.6g} times as much as others',
               list_min(scales),
               list_max(scales),
               microbatches,
               ratio
           )
       END AS message
FROM compared
