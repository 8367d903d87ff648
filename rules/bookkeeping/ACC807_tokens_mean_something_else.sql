/*
code = "ACC807"
name = "tokens-mean-something-else"
severity = "note"
since = "0.1.0"
scope = "pair"
scope_is_empty = "the loop reported no token count for an update"
needs = ["valid_tokens", "input_positions"]
summary = "the loop's token count is that of input positions, not of tokens with a loss"
why = '''
"Tokens" may be positions of the input, positions that are attended to, or positions that have a loss.
Padding and prompts make them differ by a third or more. Each is a sound measure of something. Compared with
one another, or used as a denominator for another, they mislead.
'''
example = '''
Four rows are padded to 64 positions: 256 positions of input, of which 200 are attended to and 130 have a
loss. A counter of input positions reports 256/130 = 1.97 times the tokens that were learned from.
'''
fix = '''
Name what is counted, and count tokens with a loss where these are meant.

Hand-written loop: (labels != -100).sum() after the shift is the number of tokens with a loss.
  input_ids.numel() counts padding too.
DDP: Sum over the data ranks.
FSDP: Sum over the data ranks.
Trainer: num_input_tokens_seen counts input positions; include_num_input_tokens_seen="non_padding" leaves
  padding out. num_items_in_batch counts labels.
Accelerate: It counts nothing by itself: look at the loop's own counter.
Lightning: It counts nothing by itself: look at the loop's own counter.
DeepSpeed: It counts nothing by itself: look at the loop's own counter.
'''
not_a_fault_when = '''
The count is what the loop wants to report, as throughput is rightly measured in input positions: then this
note says what the number is. Where nothing is padded or masked all readings are equal, and the rule is
silent. Windows whose valid tokens are unknown are not judged.
'''
references = [
    "huggingface/transformers#29889",
    "huggingface/transformers#32469",
    "huggingface/transformers#35529",
    "unslothai/unsloth-zoo#873",
    "pytorch/torchtitan#4192",
]
*/
WITH positions AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           list(window_input_positions) AS own_input,
           list(window_attended_positions) AS own_attended
    FROM updates
    GROUP BY ALL
),
counted AS (
    SELECT w.*,
           p.own_input,
           p.own_attended,
           lag(valid_tokens) OVER attempts AS valid_before,
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
           CASE
               WHEN abs(reported - input_positions) <= 0.5 THEN 'input positions over all ranks'
               WHEN abs(reported - attended_positions) <= 0.5 THEN 'attended positions over all ranks'
               WHEN len(list_filter(own_input, lambda x: abs(x - reported) <= 0.5)) > 0
               THEN 'input positions of one rank'
               WHEN len(list_filter(own_attended, lambda x: abs(x - reported) <= 0.5)) > 0
               THEN 'attended positions of one rank'
           END AS meaning
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
           WHEN agrees OR (NOT agrees AND meaning IS NOT NULL) THEN NOT agrees
           WHEN NOT agrees AND input_positions IS NOT NULL THEN FALSE
       END AS fault,
       reported AS observed,
       valid_tokens AS expected,
       format(
           'the loop reports {:.0f} tokens {}: these are {}, where {:.0f} tokens have a loss',
           reported,
           kind,
           meaning,
           valid_tokens
       ) AS message
FROM judged
