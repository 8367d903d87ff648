/*
code = "ACC810"
name = "reported-loss-scaled"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the loop reported no loss for an update whose weights add up to 1"
needs = ["reported_loss", "loss", "loss_weight"]
summary = "the loss that the loop logs is a structural factor away from the loss that it trained on"
why = '''
A loop that divides its loss for the backward often logs what it divided, and one that adds up micro-steps
or ranks often logs the sum. The training is right, and the log is wrong by a constant. Curves of runs with
another accumulation count, or another number of ranks, cannot be compared, and a threshold on the loss
fires at the wrong value.
'''
example = '''
The losses of 4 micro-steps are 2.30, 2.34, 2.28 and 2.36, each divided by 4 for its backward. The loop logs
the divided loss of the last one, 2.36 / 4 = 0.59: a quarter of what it stands for. Added up undivided, the
log says 9.28; the mean is 2.32.
'''
fix = '''
Log the mean over the window's tokens: the sum of all token losses divided by the number of tokens.

Hand-written loop: Keep loss.detach() before it is divided, weigh it by its tokens, and reduce it over the
  ranks with an average, not a sum.
DDP: The same. A factor of the number of ranks that undoes the average of gradients must not get into the
  log.
FSDP: As for DDP.
Trainer: Its log is the mean since the last one. A compute_loss of your own returns the undivided value.
Accelerate: Log before accelerator.backward.
Lightning: Return the undivided loss, and log with sync_dist=True.
DeepSpeed: Log before engine.backward, which returns a divided loss.
'''
not_a_fault_when = '''
A single update proves nothing: every report of the launch must be off by the same factor, in five updates
or more. A log that is smoothed, averaged over several updates or rounded moves against the measured loss
and fits no factor. Where the loss hardly moves, it equals it. Any report between the smallest and the
largest loss of a micro-step is right, be it of the last one, of one rank or a mean of means.

Not judged: a loss with further terms, and weights that are unknown or do not add up to 1 (the rules from
ACC101 on speak of those).
'''
references = [
    "huggingface/transformers#11919",
    "huggingface/transformers#35207",
    "hiyouga/LlamaFactory#7443",
]

[params]
updates = 5  # how many reports, at least, must be off by the same factor
tolerance = 0.01  # by how much they may miss it
*/
WITH reporting AS (
    SELECT DISTINCT run_id, launch, optimizer
    FROM updates
    WHERE reported_loss IS NOT NULL
),
bounds AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           bool_or(undeclared_terms OR loss_unobserved >= 0.001) AS further_terms,
           min(list_min(loss)) AS lowest,
           max(list_max(loss)) AS highest
    FROM updates
    SEMI JOIN reporting USING (run_id, launch, optimizer)
    WHERE applied IS NOT FALSE
    GROUP BY ALL
),
reports AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.rank,
           u.reported_loss,
           w.microbatches,
           w.accumulation_steps,
           w.gradient_divisor,
           nullif(w.token_ranks, w.gradient_divisor) AS token_ranks,
           coalesce(b.further_terms, FALSE) OR w.weight_cause IS NULL OR b.lowest IS NULL AS unclear,
           -- Between the micro-steps' own losses lies whatever a loop may rightly log of a window.
           u.reported_loss >= b.lowest - $tolerance * abs(b.lowest)
               AND u.reported_loss <= b.highest + $tolerance * abs(b.highest) AS plain
    FROM updates AS u
    JOIN bounds AS b USING (run_id, launch, optimizer, attempt_id)
    JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
    WHERE u.reported_loss IS NOT NULL
      AND u.applied IS NOT FALSE
      AND (w.weight_cause = 'right') IS NOT FALSE
),
judged AS (
    SELECT run_id, launch, optimizer, rank, count(*) AS reports
    FROM reports
    WHERE NOT unclear
    GROUP BY ALL
    HAVING count(*) >= $updates
       AND NOT bool_and(plain)
),
-- The launches in which a report stands out, rank by rank.
ranks AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           tokens_rank,
           list_filter(list_zip(loss, valid_tokens), lambda step: step[2] IS DISTINCT FROM 0) AS steps,
           list_sum(list_transform(steps, lambda step: step[1] * step[2])) AS loss_sum,
           list_sum(list_transform(steps, lambda step: step[2])) AS tokens,
           list_avg(list_transform(steps, lambda step: step[1])) AS mean_of_steps,
           steps[-1][1] AS last_step
    FROM updates
    SEMI JOIN judged USING (run_id, launch, optimizer)
    WHERE applied IS NOT FALSE
),
together AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           sum(loss_sum) FILTER (tokens_rank) / nullif(sum(tokens) FILTER (tokens_rank), 0) AS all_tokens,
           avg(mean_of_steps) FILTER (tokens_rank) AS all_steps
    FROM ranks
    GROUP BY ALL
),
measures AS (
    SELECT * EXCLUDE (measure), measure.*
    FROM (
        SELECT run_id,
               launch,
               optimizer,
               rank,
               attempt_id,
               reports,
               reported_loss,
               microbatches::DOUBLE AS m,
               accumulation_steps::DOUBLE AS g,
               gradient_divisor AS w,
               token_ranks::DOUBLE AS r,
               unnest([
                   {'place': 1, 'mean': 'of all tokens', 'measured': all_tokens},
                   {'place': 2, 'mean': 'of this rank''s tokens', 'measured': loss_sum / nullif(tokens, 0)},
                   {'place': 3, 'mean': 'of all micro-steps', 'measured': all_steps},
                   {'place': 4, 'mean': 'of this rank''s micro-steps', 'measured': mean_of_steps},
                   {'place': 5, 'mean': 'of the last micro-step', 'measured': last_step}
               ]) AS measure
        FROM reports
        JOIN judged USING (run_id, launch, optimizer, rank)
        JOIN ranks USING (run_id, launch, optimizer, attempt_id, rank)
        JOIN together USING (run_id, launch, optimizer, attempt_id)
        WHERE NOT unclear
    )
),
factors AS (
    SELECT *,
           unnest(['G', 'G', '1/G', '1/G', 'W', '1/W', 'R', '1/R']) AS factor,
           unnest([m, g, 1 / m, 1 / g, w, 1 / w, r, 1 / r]) AS value
    FROM measures
),
fits AS (
    SELECT run_id,
           launch,
           optimizer,
           rank,
           reports,
           place,
           mean,
           factor,
           max(abs(reported_loss / (measured * value) - 1)) AS farthest
    FROM factors
    WHERE value <> 1
      AND abs(reported_loss / nullif(measured * value, 0) - 1) <= $tolerance
    GROUP BY ALL
    HAVING count(DISTINCT attempt_id) = reports
),
nearest AS (
    SELECT *,
           first_value(place) OVER (
               PARTITION BY run_id, launch, optimizer, rank
               ORDER BY round(farthest, 5), place
           ) AS nearest_place
    FROM fits
),
scaled AS (
    SELECT run_id,
           launch,
           optimizer,
           rank,
           reports,
           mean,
           string_agg(factor, ' or ' ORDER BY factor) AS names
    FROM nearest
    WHERE place = nearest_place
    GROUP BY ALL
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN unclear THEN NULL
           WHEN names IS NOT NULL THEN TRUE
           WHEN plain THEN FALSE
       END AS fault,
       reported_loss / nullif(all_tokens, 0) AS observed,
       1.0 AS expected,
       CASE
           WHEN names IS NOT NULL
           THEN format(
               'the logged loss is {:.6g} where {:.6g} was measured, and the tokens'' weights add up to 1: '
               'in all {} reports it is {} times the mean {}',
               reported_loss,
               all_tokens,
               reports,
               names,
               mean
           )
       END AS message
FROM reports
LEFT JOIN scaled USING (run_id, launch, optimizer, rank)
LEFT JOIN together USING (run_id, launch, optimizer, attempt_id)
