/*
code = "ACC606"
name = "window-size-disagreement"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that reduce together"
needs = ["microbatches", "wrapper"]
summary = "ranks accumulated different numbers of micro-steps for the same update"
why = '''
An update joins the windows of all ranks. Where these hold different numbers of micro-steps, and each rank
divides by its own number or all by the same, a token's weight depends on the rank on which it fell.

With a denominator over all ranks the numbers are right whatever the sizes, and the rule only notes that
they differ.
'''
example = '''
Rank 0 accumulates 4 micro-steps of 100 tokens; rank 1, at the end of its data, 2. Each takes the mean over
its own window: rank 0's tokens weigh 1/400, rank 1's 1/200, twice as much. Divided by the 600 tokens of
both ranks all of them weigh the same.
'''
fix = '''
Divide by the number of valid tokens over all ranks, or give every rank windows of one size.

Hand-written loop: Sum the token losses, and all_reduce the count.
DDP: The same, times the number of data ranks, because DDP averages.
FSDP: As for DDP, or set the gradient divide factor to 1.
Trainer: Leave average_tokens_across_devices on.
Accelerate: Leave even_batches on, or gather the window's count.
Lightning: Give every rank equally many batches, or use manual optimization with a gathered count.
DeepSpeed: Give every rank equally many batches.
'''
not_a_fault_when = '''
Windows that are filled up to a number of tokens differ in micro-steps on purpose. Where the recorded
weights show that every token counts the same, and all together weigh 1, it is a note. Where weights are
unknown or wrong, it is a warning. Only ranks of the same pipeline stage are compared. Ranks that do not
reduce together are out of scope, and ranks whose layout is unknown are not judged.
'''
references = [
    "pytorch/torchtitan#1842",
]
*/
WITH sizes AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           coalesce(pipeline_rank, 0) AS stage,
           -- Where the layout is unknown, so is which ranks belong together.
           CASE
               WHEN bool_and(token_ranks IS NOT NULL) THEN bool_or(wrapper <> 'none' OR contains(word, 'A'))
           END AS synchronised,
           count(microbatches) AS known,
           min(microbatches) AS smallest,
           max(microbatches) AS largest
    FROM updates
    GROUP BY ALL
    HAVING count(*) > 1
),
extremes AS (
    SELECT s.run_id,
           s.launch,
           s.optimizer,
           s.attempt_id,
           s.stage,
           min(u.rank) FILTER (u.microbatches = s.smallest) AS small_rank,
           min(u.rank) FILTER (u.microbatches = s.largest) AS large_rank
    FROM updates AS u
    JOIN sizes AS s
        ON s.run_id = u.run_id
        AND s.launch = u.launch
        AND s.optimizer = u.optimizer
        AND s.attempt_id = u.attempt_id
        AND s.stage = coalesce(u.pipeline_rank, 0)
    WHERE s.smallest < s.largest
    GROUP BY ALL
),
judged AS (
    SELECT s.*,
           e.small_rank,
           e.large_rank,
           w.weight_cause = 'right'
               AND w.distortion_min >= 1 - 3 * w.tolerance
               AND w.distortion_max <= 1 + 3 * w.tolerance AS right_weights,
           w.distortion_max / nullif(w.distortion_min, 0) AS heavier
    FROM sizes AS s
    LEFT JOIN extremes AS e USING (run_id, launch, optimizer, attempt_id, stage)
    LEFT JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
    WHERE synchronised IS NOT FALSE
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE WHEN synchronised AND known > 1 THEN smallest < largest END AS fault,
       smallest::DOUBLE AS observed,
       largest::DOUBLE AS expected,
       CASE
           WHEN smallest < largest
           THEN format(
               'rank {} accumulated {} micro-steps and rank {} {}: {}',
               large_rank,
               largest,
               small_rank,
               smallest,
               CASE
                   WHEN right_weights THEN 'every token counts the same all the same'
                   WHEN heavier > 1 THEN format('tokens weigh up to {:.2f} times as much as others', heavier)
                   ELSE 'the record does not tell how much their tokens weigh'
               END
           )
       END AS message,
       CASE WHEN right_weights THEN 'note' ELSE 'warning' END AS severity
FROM judged
