/*
code = "ACC802"
name = "token-count-mismatch"
severity = "warning"
since = "0.1.0"
scope = "pair"
scope_is_empty = "the loop reported no token count for an update"
needs = ["valid_tokens", "weight_uniform"]
summary = "the tokens that the loop reports are not the tokens whose loss was counted"
why = '''
Loops report how many tokens an update was made of, and often divide by that number. The hooks count the
positions whose loss really reached the gradient.

Where the two differ, throughput, loss over tokens and data budgets are wrong. Where the loop divides by its
number, so is the gradient: ACC104 and ACC110 say that.
'''
example = '''
Two ranks with 460 and 472 valid tokens. Rank 0 reports its own 460 as the tokens of the update. After
10,000 such updates the log says 4.6 million tokens, where the model was trained on 9.32 million.
'''
fix = '''
Count the labels that are not at the ignored index, after the shift, over all data ranks, once per window.

Hand-written loop: Sum the counts of the window's micro-steps and all_reduce them. Count each tensor,
  context or sequence parallel group once.
DDP: As in a hand-written loop.
FSDP: As in a hand-written loop.
Trainer: num_items_in_batch is that number where average_tokens_across_devices is on.
Accelerate: Gather the counts.
Lightning: Use self.log(..., sync_dist=True, reduce_fx="sum").
DeepSpeed: all_reduce the count over the data ranks.
'''
not_a_fault_when = '''
A count that equals the input or attended positions, of all ranks or of one, means something else: ACC807
says so. A count that lags by one window agrees with the window before.

Not judged: windows from which micro-steps were thrown away, because a loop's running count may hold them;
windows in which ranks are missing; and launches in which positions weigh differently anywhere, where the
count may be a sum of weights.
'''
references = [
    "huggingface/transformers#34567",
    "unslothai/unsloth-zoo#873",
    "pytorch/torchtitan#4192",
    "NVIDIA-NeMo/Speech#3738",
]
*/
WITH positions AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           list(window_valid_tokens) AS own_valid,
           list(window_input_positions) AS own_input,
           list(window_attended_positions) AS own_attended
    FROM updates
    GROUP BY ALL
),
counted AS (
    SELECT w.*,
           p.own_valid,
           p.own_input,
           p.own_attended,
           lag(valid_tokens) OVER attempts AS valid_before,
           -- Where all of a window are of one class, its class weight stands in the counted number all the same.
           bool_or(weight_uniform IS FALSE) OVER (PARTITION BY run_id, launch, optimizer) AS weighs_classes,
           CASE
               WHEN lag(attempt_id) OVER attempts = attempt_id - 1
               THEN cumulative_train_tokens - lag(cumulative_train_tokens) OVER attempts
           END AS added
    FROM windows AS w
    LEFT JOIN positions AS p USING (run_id, launch, optimizer, attempt_id)
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
reports AS (
    SELECT *, global_valid_tokens_in_update AS reported, 'for this update' AS kind
    FROM counted
    UNION ALL
    SELECT *, added AS reported, 'by its running count' AS kind
    FROM counted
),
judged AS (
    SELECT *,
           abs(reported - valid_tokens) <= 0.5
               OR coalesce(abs(reported - valid_before) <= 0.5, FALSE) AS agrees,
           coalesce(
               abs(reported - input_positions) <= 0.5
                   OR abs(reported - attended_positions) <= 0.5
                   OR len(list_filter(own_input || own_attended, lambda x: abs(x - reported) <= 0.5)) > 0,
               FALSE
           ) AS other_meaning,
           len(list_filter(own_valid, lambda x: abs(x - reported) <= 0.5)) > 0 AS one_rank
    FROM reports
    WHERE reported IS NOT NULL
      AND applied IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN weight_uniform
               AND NOT weighs_classes
               AND discarded_microbatches = 0
               AND abs(valid_tokens - round(valid_tokens)) <= 1e-6
           THEN NOT agrees AND NOT other_meaning
       END AS fault,
       reported AS observed,
       valid_tokens AS expected,
       format(
           'the loop reports {:.12g} tokens {}, and {:.0f} were counted{}{}',
           reported,
           kind,
           valid_tokens,
           CASE
               WHEN valid_tokens > 0 THEN format(': the report is {:.3g} times that', reported / valid_tokens)
               ELSE ''
           END,
           CASE WHEN one_rank AND ranks > 1 THEN ', the count of one rank' ELSE '' END
       ) AS message
FROM judged
