/*
code = "ACC108"
name = "norm-tracks-tokens"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "the weights are recorded, or fewer than 50 updates have a norm and a number of tokens that varies"
needs = ["grad_norm_after_clip or grad_norm_before_clip", "global_valid_tokens_in_update or reported_tokens"]
summary = "the gradient norm follows the number of tokens in the update, as if nothing divided by it"
why = '''
A mean over the tokens of an update has a gradient about as long for many tokens as for few. A sum, or a
division by a constant, has one that grows with them: an update of twice the tokens moves the parameters
about twice as far. The rate that suits one length of text is then wrong for the next.

The weights would show this directly. Here none was recorded, as in most logs, but the norms tell it.
'''
example = '''
Updates of 6,200 to 11,800 tokens have norms of 3.1 to 5.9: 1.9 times the tokens, 1.9 times the norm. Their
logarithms correlate at 0.97, and the changes from one update to the next at 0.96. With a mean the norms
would stay near 4.2, a little longer for few tokens.
'''
fix = '''
Divide by the valid tokens of the whole update, over all ranks.

Hand-written loop: Sum the losses of the tokens, and divide by the count of the window before the backward.
DDP: Count over all data ranks, and multiply by their number to undo the average.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Use a loss that divides by num_items_in_batch.
Accelerate: Gather the window's count, as its guide on accumulation shows.
Lightning: Use manual optimization, with sums divided by the window's count.
DeepSpeed: Divide by the window's tokens and call backward(loss, scale_wrt_gas=False).
'''
not_a_fault_when = '''
This is a correlation and no measurement. Where the weights are recorded, ACC101 to ACC107 judge them and
this rule says nothing.

The token counts must spread by a fifth. Norms and tokens must go together over the run and also from each
record to the next. So a batch or a sequence length that grows on purpose, beside a norm that grows for its
own reasons, is not taken for it. A norm that was measured after a clip had capped it shows nothing.

Longer sequences that are harder by themselves could look the same, and so could a norm that was logged
before a later division.
'''
references = [
    "radixark/miles#3231",
    "verl-project/verl#2857",
]

[params]
correlation = 0.9  # how strongly norms and tokens must go together, over the run and from record to record
spread = 1.2  # the ratio of many tokens to few (the 95th to the 5th percentile) that is needed
updates = 50  # how many updates are needed
*/
WITH counted AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           ln(coalesce(valid_tokens, global_valid_tokens_in_update, reported_tokens)) AS tokens,
           ln(coalesce(grad_norm_before_max, grad_norm_max)) AS norm
    FROM windows
    WHERE applied IS NOT FALSE
      AND coalesce(valid_tokens, global_valid_tokens_in_update, reported_tokens) > 0
      AND coalesce(grad_norm_before_max, grad_norm_max) > 0
      AND run_id NOT IN (SELECT run_id FROM windows WHERE loss_weight IS NOT NULL)
),
steps AS (
    SELECT *,
           tokens - lag(tokens) OVER in_order AS more_tokens,
           norm - lag(norm) OVER in_order AS more_norm
    FROM counted
    WINDOW in_order AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
-- A tail of a few tokens, or one spike, would make a correlation alone.
central AS (
    SELECT *
    FROM steps
    WINDOW of_launch AS (PARTITION BY run_id, launch, optimizer)
    QUALIFY tokens BETWEEN quantile_cont(tokens, 0.05) OVER of_launch AND quantile_cont(tokens, 0.95) OVER of_launch
),
fitted AS (
    SELECT run_id,
           launch,
           optimizer,
           count(*) AS updates,
           exp(quantile_cont(tokens, 0.05)) AS few,
           exp(quantile_cont(tokens, 0.95)) AS many,
           corr(norm, tokens) AS correlation,
           -- From record to record the tokens must go up and down.
           CASE WHEN stddev_pop(more_tokens) > 0.02 THEN corr(more_norm, more_tokens) END AS of_steps,
           regr_slope(norm, tokens) AS power
    FROM central
    GROUP BY ALL
    HAVING count(*) >= 0.9 * $updates
       AND few * $spread <= many
)
SELECT run_id,
       launch,
       optimizer,
       NULL AS attempt_id,
       NULL AS rank,
       -- NaN, where nothing varies, is greater than all.
       isfinite(correlation + of_steps)
           AND least(correlation, of_steps) > $correlation
           AND power > 0.5 AS fault,
       correlation AS observed,
       NULL::DOUBLE AS expected,
       format(
           'over {} updates of {:.0f} to {:.0f} tokens the gradient norm grows as their number to the power {:.2f}: '
           || 'the logarithms correlate at {:.2f}, and at {:.2f} from one record to the next',
           updates,
           few,
           many,
           power,
           correlation,
           of_steps
       ) AS message
FROM fitted
