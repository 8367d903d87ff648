/*
code = "ACC905"
name = "equivalent-batch-shrunk"
severity = "note"
since = "0.1.0"
scope = "run"
scope_is_empty = "no update with a valid token was applied"
needs = ["loss_weight", "loss_weight_sq", "valid_tokens", "weight_uniform"]
summary = "tokens weigh so unequally that an update learns from far fewer of them than it holds"
why = '''
Where some tokens weigh much more than others, an update's gradient is about as noisy as one of fewer tokens
that all weigh the same. That number is Kish's: the square of the sum of the weights over the sum of their
squares.

It says in one figure what unequal denominators cost: the rest of the batch was computed, read from disk and
reduced over the ranks for little.
'''
example = '''
Two micro-steps of 1 and 9 tokens, each a mean divided by 2. The weights are 1/2 once and 1/18 nine times.
Their sum is 1, and the sum of their squares 1/4 + 9/324 = 0.278. The batch of 10 tokens is worth 1/0.278 =
3.6 of them, a share of 0.36.
'''
fix = '''
Give every token of a window the same weight: divide by the window's valid tokens over all ranks. Or make
the micro-steps equally long: pack the sequences, or sort them by length within a window.

Hand-written loop: Sum the token losses and divide by the count of the window.
DDP: Count over all data ranks, and multiply by their number.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Use a loss that divides by num_items_in_batch.
Accelerate: Gather the window's count, as its guide on accumulation shows.
Lightning: Use manual optimization, with sums divided by the window's count.
DeepSpeed: Divide by the window's tokens and call backward(loss, scale_wrt_gas=False).
'''
not_a_fault_when = '''
Weights that are unequal on purpose, such as a coefficient for each data set or a mean for each sequence,
cost the same share; then the figure is the price of the choice. A share of 0.8 and more is not mentioned.
Rules about denominators (ACC102, ACC103, ACC106) say where the inequality comes from.

Where positions within a micro-step weigh differently on purpose (class weights, a mask of weights) the
number of tokens is no measure. Where loss_unit is declared to be "sample" and rows have several positions,
it is not the unit. Neither is judged.
'''
references = ["huggingface/transformers#34191", "verl-project/verl#5625"]

[params]
share = 0.8  # the share of its tokens from which on a batch is worth enough
*/
WITH per_row AS (
    -- A loss of samples, in which positions were counted.
    SELECT run_id, launch, optimizer, bool_or(window_valid_tokens > window_samples) AS several_a_row
    FROM updates
    WHERE (run_id, launch) IN (SELECT (run_id, launch) FROM windows WHERE loss_unit = 'sample')
    GROUP BY ALL
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           any_value(loss_unit) AS unit,
           count(*) FILTER (known) AS judged,
           sum(equivalent_batch) FILTER (known) AS used,
           sum(valid_tokens) FILTER (known) AS held,
           min(equivalent_batch / valid_tokens) FILTER (known) AS lowest,
           arg_min(optimizer_update_id, equivalent_batch / valid_tokens) FILTER (known) AS lowest_update
    FROM (
        SELECT *, weight_uniform IS TRUE AND equivalent_batch IS NOT NULL AND valid_tokens > 0 AS known
        FROM windows
        WHERE applied IS NOT FALSE
          AND (valid_tokens > 0) IS NOT FALSE
    )
    GROUP BY ALL
)
SELECT l.run_id,
       l.launch,
       l.optimizer,
       NULL AS attempt_id,
       NULL AS rank,
       CASE WHEN p.several_a_row IS NOT TRUE AND l.judged > 0 THEN l.used < $share * l.held END AS fault,
       l.used / l.held AS observed,
       1.0 AS expected,
       CASE
           WHEN l.judged > 0
           THEN format(
               'the {}s of an update are worth {:.2f} of as many that weigh the same: '
               || '{:.0f} of {:.0f} on average, over {} update{}; the least is {:.2f}, in update {}',
               l.unit,
               l.used / l.held,
               l.used / l.judged,
               l.held / l.judged,
               l.judged,
               CASE WHEN l.judged = 1 THEN '' ELSE 's' END,
               l.lowest,
               l.lowest_update
           )
       END AS message
FROM launches AS l
LEFT JOIN per_row AS p USING (run_id, launch, optimizer)
