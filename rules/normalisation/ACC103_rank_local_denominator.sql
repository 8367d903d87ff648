/*
code = "ACC103"
name = "rank-local-denominator"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "one rank alone had tokens of its own"
needs = ["valid_tokens", "loss_weight", "weight_uniform", "grad_rescale"]
explains = ["ACC104"]
summary = "each rank divided by its own token count, so tokens weigh by the rank they fell on"
why = '''
Each rank divides its loss by the tokens that it holds itself, and the gradients are then averaged over the
ranks. Inside a rank all tokens weigh the same, but a rank with few valid tokens gives each of them more
weight than a rank with many.

The total weight is 1 and every rank's loss looks right. How much a token counts depends on the rank on
which it fell, and the result changes with the number of ranks.
'''
example = '''
Two ranks hold 1 and 9 valid tokens, and each takes the mean over its own. Rank 0's token weighs 1, each of
rank 1's 1/9, before DDP halves both: nine times as much.

With a gradient of 3 for rank 0's token and of 1 for each of the others, the average is (3 + 1) / 2 = 2.0.
The mean over the ten tokens is (3 + 9) / 10 = 1.2.
'''
fix = '''
Divide by the number of valid tokens of the window over all ranks that read different data.

Hand-written loop: Sum the token losses, all_reduce the count over the data ranks, and divide by it.
DDP: Multiply by the number of data ranks as well, because DDP averages their gradients.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Leave average_tokens_across_devices on, as it is in current releases.
Accelerate: Gather the token count of the window and use it as its guide on accumulation shows.
Lightning: all_reduce the count in training_step, and multiply by the number of ranks.
DeepSpeed: As for DDP: the engine averages over the data ranks too.

Count the shards of context and sequence parallel ranks too, and each tensor parallel group once.
'''
not_a_fault_when = '''
Ranks with equal token counts pass, and so do ranks that divide by the count of all. A rank without a valid
token is legal and left out. Gradients that each rank multiplies by a factor of its own before they are
reduced are compared with that factor.

Ranks whose gradients are never added up (local SGD, independent runs, a reduction inside the optimizer's
step that was not declared by gradient_divisor) rightly divide by their own counts: a difference between
them is not judged.

Not judged either: positions that weigh differently on purpose, rows of several positions where loss_unit is
declared to be "sample", and ranks that agree while others are missing from the record.

Ranks that are meant to weigh differently, such as a mixture of data sets with one coefficient per rank,
look the same: ignore the rule there.
'''
references = [
    "pytorch/torchtitan#1842",
    "pytorch/torchtitan#2206",
    "PrimeIntellect-ai/prime-rl#2562",
    "NVIDIA/Megatron-LM#7452",
]

[params]
spread = 0.01  # by how much the weight of a token must differ between ranks
*/
WITH summed AS (
    SELECT run_id, launch, optimizer, attempt_id, rank, grad_rescale, window_sums AS sums
    FROM updates
    WHERE window_sums IS NOT NULL
      AND tokens_rank IS NOT FALSE
),
per_rank AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           (
               list_count(valid_tokens) = len(valid_tokens)
               AND (
                   (weight_min > 0 AND weights_uniform AND window_loss_weight IS NOT NULL)
                   OR len(list_filter(
                       list_zip(valid_tokens, loss_weight, weight_uniform),
                       lambda x: x[1] <> 0 AND (x[2] IS NULL OR x[3] IS NOT TRUE)
                   )) = 0
               )
               AND (grad_rescale IS NOT NULL OR window_valid_tokens = 0)
           ) IS TRUE AS known,
           loss_unit = 'sample' AND len(list_filter(list_zip(valid_tokens, samples), lambda x: x[1] > x[2])) > 0
               AS several_a_row,
           CASE
               WHEN weight_min > 0 THEN [weight_min, weight_max]
               ELSE list_filter(
                   list_transform(list_zip(valid_tokens, loss_weight), lambda x: abs(x[2] / nullif(x[1], 0))),
                   lambda w: w <> 0
               )
           END AS weights,
           list_min(weights) * abs(grad_rescale) AS lowest,
           list_max(weights) * abs(grad_rescale) AS highest
    FROM updates
    WHERE window_sums IS NULL
      AND tokens_rank IS NOT FALSE
      AND (len(valid_tokens) > 0) IS NOT FALSE
    UNION ALL BY NAME
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           sums.weight_uniform IS TRUE AND sums.loss_weight IS NOT NULL AND grad_rescale IS NOT NULL
               AND (sums.token_weight_min > 0 OR sums.valid_tokens = 0) AS known,
           sums.valid_tokens > sums.samples AS several_a_row,
           sums.token_weight_min * abs(grad_rescale) AS lowest,
           sums.token_weight_max * abs(grad_rescale) AS highest
    FROM summed
),
ranks AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           bool_and(known) AS known,
           bool_or(several_a_row) AS several_a_row,
           max(highest / lowest) AS inside,
           max(highest) / min(lowest) AS between_ranks,
           arg_max(rank, highest) AS heavy,
           arg_min(rank, lowest) AS light
    FROM per_rank
    GROUP BY ALL
),
judged AS (
    SELECT w.*,
           r.known,
           r.several_a_row,
           r.inside,
           r.between_ranks,
           r.heavy,
           r.light,
           -- Whether the ranks' gradients are added up in this window; unknown where nothing tells.
           CASE
               WHEN contains(w.word, 'A') OR w.wrapper IS NULL THEN TRUE
               WHEN w.wrapper = 'none' THEN w.gradient_divisor IS NOT NULL
               WHEN w.wrapper = 'ddp' AND (w.pipeline_size > 1) IS NOT TRUE THEN contains(w.word, 'F')
               ELSE contains(w.word, 'B')
           END AS added_up,
           1 + greatest($spread, 3 * coalesce(w.tolerance, 0.01)) AS allowed
    FROM windows AS w
    LEFT JOIN ranks AS r USING (run_id, launch, optimizer, attempt_id)
    WHERE (w.token_ranks > 1) IS NOT FALSE
      AND w.applied IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN known IS NOT TRUE THEN NULL
           -- Positions were counted, and the loss is declared to be one of samples.
           WHEN loss_unit = 'sample' AND several_a_row THEN NULL
           WHEN inside > allowed THEN FALSE
           WHEN between_ranks > allowed THEN CASE WHEN added_up THEN TRUE END
           WHEN complete THEN FALSE
       END AS fault,
       between_ranks AS observed,
       1.0 AS expected,
       format(
           'a {} on rank {} counts {:.2f} times one on rank {}{}',
           loss_unit,
           heavy,
           between_ranks,
           light,
           CASE
               WHEN weight_cause NOT IN ('right', 'tail')
               THEN format('; the total weight is {:.3f} besides', total_weight)
               ELSE ''
           END
       ) AS message
FROM judged
