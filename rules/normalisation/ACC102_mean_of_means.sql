/*
code = "ACC102"
name = "mean-of-means"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no rank had two micro-steps with valid tokens in one window"
needs = ["valid_tokens", "loss_weight", "weight_uniform"]
explains = ["ACC104"]
summary = "each micro-step was averaged over its own tokens, so tokens weigh unequally"
why = '''
The mean over a window is the sum of all its token losses divided by the number of its tokens. The mean of
the micro-steps' means is another number as soon as their token counts differ: a token in a short micro-step
counts more than one in a long micro-step.

The total weight is still 1 and the loss looks right; only the weights of the tokens show it. Accumulating 4
micro-steps is then not the same training as one batch of that size, and short sequences pull harder than
long ones.
'''
example = '''
Two micro-steps of 1 and 9 valid tokens, each a mean divided by 2. The single token weighs 1/2. Each of the
nine weighs 1/9/2 = 1/18, nine times less.

Let the gradient of the single token be (3, 0) and that of each of the nine (0, 1). The update's gradient is
(1.5, 0.5), with a norm of 1.581. The mean over the ten tokens is (0.3, 0.9), with a norm of 0.949.
'''
fix = '''
Divide the summed token losses of a window by the window's number of valid tokens.

Hand-written loop: Fetch the window's batches, count labels != -100 after the shift, use reduction="sum" and
  divide by that count. Or sum first, and divide the gradients by the count before the step.
DDP: Count over all data ranks (all_reduce), and multiply by their number.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Use a model whose forward takes num_items_in_batch and divides by it, or a compute_loss_func that
  does. Where the total weight is wrong as well, the forward takes **kwargs and ignores it: set
  accepts_loss_kwargs = False on the model.
Accelerate: Use the sum * gradient_accumulation_steps * num_processes / gathered tokens, as its guide on
  accumulation shows.
Lightning: Use manual optimization, or batches with equal numbers of tokens.
DeepSpeed: Divide by the window's tokens and call backward(loss, scale_wrt_gas=False).
'''
not_a_fault_when = '''
The token counts are equal, as with packed sequences, or differ by no more than 1 %. A micro-step or a rank
without a valid token is legal and left out.

Positions weigh differently on purpose (class weights, a mask of weights): not judged.

The loss is meant per sample, each counting once whatever its length. Where every micro-step holds one
sequence this looks the same as the fault. Give attach loss_unit="sample": rows of several positions are
then not judged.
'''
references = [
    "huggingface/transformers#34191",
    "unslothai/unsloth#1134",
    "meta-pytorch/torchtune#1878",
    "verl-project/verl#5625",
    "mosaicml/composer#3677",
    "ml-explore/mlx-lm#1413",
]

[params]
spread = 0.01  # by how much weights and token counts must differ
*/
WITH scope AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           sums,
           microbatches,
           regexp_matches(word, '[FfD]') IS FALSE AS forwards_unseen,
           coalesce(weights_uniform, sums.weight_uniform) IS TRUE
               AND coalesce(window_loss_weight, sums.loss_weight) IS NOT NULL AS known,
           -- Equal weights of unequal micro-steps give unequal weights of tokens.
           coalesce(weight_min, sums.token_weight_min) AS lightest,
           coalesce(weight_max, sums.token_weight_max) - lightest > $spread * abs(lightest) AS differs
    FROM (SELECT *, window_sums AS sums FROM updates)
    WHERE tokens_rank IS NOT FALSE
      AND applied IS NOT FALSE
      AND (microbatches > 1) IS NOT FALSE
      AND CASE
              WHEN valid_tokens IS NULL THEN TRUE
              WHEN list_min(valid_tokens) > 0 AND list_min(loss_weight) > 0 THEN TRUE
              ELSE (len(list_filter(
                       list_zip(valid_tokens, loss_weight), lambda x: (x[1] > 0 AND x[2] <> 0) IS NOT FALSE
                   )) > 1) IS NOT FALSE
          END
),
differing AS (
    SELECT s.*,
           w.loss_unit,
           w.tolerance,
           w.weight_cause,
           w.total_weight,
           -- Without forwards each backward is taken for a micro-step, and may be a term of one.
           forwards_unseen AND s.microbatches > w.accumulation_steps AS perhaps_terms
    FROM scope AS s
    JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
    WHERE s.known
      AND s.differs
),
per_rank AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           bool_or(n > samples) AS several_a_row,
           min(abs(loss_weight)) AS least_weight,
           max(abs(loss_weight)) AS most_weight,
           min(n) AS fewest,
           max(n) AS most
    FROM microbatches
    SEMI JOIN differing USING (run_id, launch, optimizer, attempt_id, rank)
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
           -- An empty micro-step hides the smallest of the others.
           CASE
               WHEN sums.valid_tokens_min > 0 AND sums.loss_weight_min > 0 THEN sums.loss_weight_min
           END AS least_weight,
           sums.loss_weight_max AS most_weight,
           sums.valid_tokens_min AS fewest,
           sums.valid_tokens_max AS most
    FROM differing
    WHERE sums IS NOT NULL
)
SELECT s.run_id,
       s.launch,
       s.optimizer,
       s.attempt_id,
       s.rank,
       CASE
           WHEN NOT s.known THEN NULL
           WHEN d.rank IS NULL THEN FALSE
           -- Positions were counted, and the loss is declared to be one of samples.
           WHEN d.loss_unit = 'sample' AND r.several_a_row THEN NULL
           WHEN d.perhaps_terms THEN NULL
           ELSE r.most_weight <= r.least_weight * (1 + $spread)
                -- In 16 bit the weights themselves are rounded: ask for more than rounding explains.
                AND r.most > r.fewest * (1 + greatest($spread, 3 * coalesce(d.tolerance, 0.01)))
       END AS fault,
       r.most / r.fewest AS observed,
       1.0 AS expected,
       format(
           'micro-steps of {:.15g} to {:.15g} valid {}s weigh {:.3f} each: '
           || 'a {} of the shortest counts {:.2f} times one of the longest{}',
           r.fewest,
           r.most,
           d.loss_unit,
           r.most_weight,
           d.loss_unit,
           r.most / r.fewest,
           CASE
               WHEN d.weight_cause NOT IN ('right', 'tail')
               THEN format('; the total weight is {:.3f} besides', d.total_weight)
               ELSE ''
           END
       ) AS message
FROM scope AS s
LEFT JOIN differing AS d USING (run_id, launch, optimizer, attempt_id, rank)
LEFT JOIN per_rank AS r USING (run_id, launch, optimizer, attempt_id, rank)
