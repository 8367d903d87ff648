/*
code = "ACC106"
name = "mixed-denominators"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no rank had two micro-steps with valid tokens in one window"
needs = ["valid_tokens", "loss_weight", "weight_uniform"]
explains = ["ACC104"]
summary = "the micro-steps of a window divided by different denominators, so tokens weigh unequally"
why = '''
Within one rank a token should weigh the same in whichever micro-step it stands. Where it does not, the
micro-steps were divided by different numbers: by their rows, by their positions with the padding, by the
tokens seen so far, or one by the window's count and another by its own.

The total weight may still be 1 and the logged loss looks normal, while some of the data counts several
times as much as the rest. The commonest form, a mean over each micro-step's own tokens, has a rule of its
own: ACC102.
'''
example = '''
Two micro-steps: one of 2 rows with 100 tokens, one of 6 rows with 60 tokens. Each takes the mean over its
tokens and is weighted by its share of the 8 rows.

    first    2/8 / 100 = 0.0025 for each token
    second   6/8 /  60 = 0.0125 for each token, five times as much

The total is 0.25 + 0.75 = 1, so nothing else shows it.
'''
fix = '''
Divide every micro-step of a window by the same number: the valid tokens of the whole window.

Hand-written loop: Count the labels of all micro-steps first, use reduction="sum", and divide by that count.
DDP: Count over all data ranks, and multiply by their number.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Divide by num_items_in_batch in every branch of a compute_loss of your own.
Accelerate: Gather the token count of the window and use it for each micro-step.
Lightning: Use manual optimization, with sums divided by the window's tokens.
DeepSpeed: Divide by the window's tokens and call backward(loss, scale_wrt_gas=False).
'''
not_a_fault_when = '''
Micro-steps of equal total weight and unequal length are ACC102. Weights that differ exactly as the loss
scale does are a matter of the scaler. Micro-steps without a valid token, or whose loss was multiplied by 0,
are left out.

Positions that weigh differently on purpose (class weights, a mask of weights, a policy gradient) are not
judged, and neither are rows of several positions where loss_unit is declared to be "sample".

A coefficient for each kind of micro-step (several tasks or data sets in one window) looks the same in a
short record. Where the same few ratios come back window after window, and no denominator that was recorded
fits, it is a note.
'''
references = [
    "verl-project/verl#5625",
    "mosaicml/composer#2241",
    "ml-explore/mlx-lm#1413",
    "karpathy/nanoGPT#605",
]

[params]
spread = 0.01  # by how much the weight of a token must differ between micro-steps
recurring = 3  # how often each ratio comes back on average where they are taken for coefficients
*/
WITH scope AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           sums,
           coalesce(weights_uniform, sums.weight_uniform) IS TRUE
               AND coalesce(window_loss_weight, sums.loss_weight) IS NOT NULL AS known,
           coalesce(weight_min, sums.token_weight_min) AS lightest,
           coalesce(weight_max, sums.token_weight_max) AS heaviest,
           heaviest - lightest > $spread * abs(lightest) AS differs
    FROM (SELECT *, window_sums AS sums FROM updates)
    WHERE tokens_rank IS NOT FALSE
      AND applied IS NOT FALSE
      AND (microbatches > 1) IS NOT FALSE
),
differing AS (
    SELECT s.*,
           w.loss_unit,
           w.total_weight,
           w.weight_cause,
           1 + greatest($spread, 3 * coalesce(w.tolerance, 0.01)) AS allowed
    FROM scope AS s
    JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
    WHERE s.known
      AND s.differs
),
micro_steps AS (
    SELECT *,
           sum(n) OVER (PARTITION BY run_id, launch, optimizer, attempt_id, rank ORDER BY micro_step) AS seen
    FROM microbatches
    SEMI JOIN differing USING (run_id, launch, optimizer, attempt_id, rank)
),
weighed AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           bool_or(n > samples) AS several_a_row,
           max(abs(w)) / min(abs(w)) AS ratio,
           max(abs(loss_weight)) / min(abs(loss_weight)) AS totals,
           max(abs(w) * loss_scale) / min(abs(w) * loss_scale) AS scaled,
           arg_max(format('{} ({:.15g} ', micro_step, n), abs(w)) AS heavy,
           arg_min(format('{} ({:.15g} ', micro_step, n), abs(w)) AS light,
           -- What the micro-steps weigh like: divided by it, their weights are the same.
           [
               {'name': 'their rows',
                'ratio': max(abs(loss_weight) / samples) / min(abs(loss_weight) / samples)},
               {'name': 'their positions, padding included',
                'ratio': max(abs(loss_weight) / input_positions) / min(abs(loss_weight) / input_positions)},
               {'name': 'their positions under the attention mask',
                'ratio': max(abs(loss_weight) / attended_positions)
                    / min(abs(loss_weight) / attended_positions)},
               -- Two micro-steps meet these by chance.
               {'name': 'their tokens over all tokens so far',
                'ratio': CASE WHEN count(*) > 2 THEN max(abs(w) * seen) / min(abs(w) * seen) END},
               {'name': 'their tokens over their place in the window',
                'ratio': CASE WHEN count(*) > 2 THEN max(abs(w) * micro_step) / min(abs(w) * micro_step) END}
           ] AS likely
    FROM micro_steps
    WHERE n > 0
      AND loss_weight <> 0
    GROUP BY ALL
    UNION ALL BY NAME
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           sums.valid_tokens > sums.samples AS several_a_row,
           CASE WHEN lightest > 0 AND sums.loss_scale_min = sums.loss_scale_max THEN heaviest / lightest END
               AS ratio,
           CASE WHEN sums.valid_tokens_min > 0 THEN sums.loss_weight_max / sums.loss_weight_min END AS totals
    FROM differing
    WHERE sums IS NOT NULL
),
compared AS (
    SELECT d.*,
           w.* EXCLUDE (run_id, launch, optimizer, attempt_id, rank),
           list_filter(w.likely, lambda one: one.ratio <= d.allowed)[1].name AS like_what,
           CASE
               -- Positions were counted, and the loss is declared to be one of samples.
               WHEN d.loss_unit = 'sample' AND w.several_a_row THEN NULL
               -- Equal totals are means of means; weights that differ as the scale does are the scaler's.
               ELSE w.ratio > d.allowed AND w.totals > 1 + $spread AND (w.scaled <= d.allowed) IS NOT TRUE
           END AS fault
    FROM differing AS d
    LEFT JOIN weighed AS w USING (run_id, launch, optimizer, attempt_id, rank)
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           rank,
           -- Coefficients give the same few ratios again and again, denominators follow the data.
           count(*) >= $recurring * least(
               count(DISTINCT round(ln(ratio) / ln(allowed))),
               count(DISTINCT floor(ln(ratio) / ln(allowed)))
           ) AS recurs
    FROM compared
    WHERE fault
    GROUP BY ALL
)
SELECT s.run_id,
       s.launch,
       s.optimizer,
       s.attempt_id,
       s.rank,
       CASE
           WHEN s.known AND s.differs THEN c.fault
           WHEN s.known THEN FALSE
       END AS fault,
       CASE WHEN l.recurs AND c.like_what IS NULL THEN 'note' ELSE 'warning' END AS severity,
       c.ratio AS observed,
       1.0 AS expected,
       format(
           'a {} of {} counts {:.2f} times one of {}{}{}',
           c.loss_unit,
           coalesce(format('micro-step {}{}s)', c.heavy, c.loss_unit), 'one micro-step'),
           c.ratio,
           coalesce(format('micro-step {}{}s)', c.light, c.loss_unit), 'another'),
           CASE
               WHEN c.like_what IS NOT NULL THEN format(': the micro-steps weigh like {}', c.like_what)
               WHEN l.recurs
               THEN '; a few ratios come back throughout: '
                    || 'a coefficient for each kind of micro-step looks the same'
               ELSE ''
           END,
           CASE
               WHEN c.weight_cause NOT IN ('right', 'tail')
               THEN format('; the total weight is {:.3f} besides', c.total_weight)
               ELSE ''
           END
       ) AS message
FROM scope AS s
LEFT JOIN compared AS c USING (run_id, launch, optimizer, attempt_id, rank)
LEFT JOIN launches AS l USING (run_id, launch, optimizer, rank)
