/*
code = "ACC604"
name = "gradient-disagreement"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "the ledger holds no attempt of several ranks that DDP or the loop itself reduced"
needs = ["events", "wrapper", "probe_gradient"]
explains = ["ACC605"]
summary = "gradients differ between ranks after they were reduced"
why = '''
After a reduction every rank holds the same gradient, bit for bit. Where slices of it still differ, some of
what was accumulated never took part: a parameter that the reducer does not know, a backward after the
reduction, a gradient that a rank changed by itself.

The replicas take different steps, and only one of them is saved.
'''
example = '''
Two ranks, windows of 2 micro-steps. A branch of the model is used in the first micro-step only, and an old
release reduced only what the last backward had used. The branch's gradients stay 1 on rank 0 and 2 on rank
1, instead of 1.5 on both. At a rate of 0.1 this part of the replicas is 0.1 apart after one update, while
the rest agrees.
'''
fix = '''
Let every gradient go through the reduction, once, after the last backward has added to it.

Hand-written loop: Reduce all parameters that the optimizer steps.
DDP: Keep parameters inside the wrapped module and take none out with _ddp_params_and_buffers_to_ignore.
  Change gradients only after the last backward, equally on all ranks.
FSDP: Not judged: its ranks hold different shards.
Trainer: Look for hooks that change gradients on one rank, and for parameters that were added after the
  model was wrapped.
Accelerate: As for Trainer: nothing is added to the model after prepare().
Lightning: As for Trainer: nothing is added to the model after configure_model().
DeepSpeed: Not judged: the engine keeps the gradients in buffers of its own.
'''
not_a_fault_when = '''
Attempts whose last micro-step was not reduced belong to ACC501 and ACC502. Where a communication hook
reduces, nothing is judged, because the divisor of the gradient is unknown. Ranks that no wrapper and no
collective of the loop brings together are out of scope, and where parameters are averaged instead of
gradients (local SGD) nothing is judged. Norms are compared among ranks that name the same parameter: an
optimizer that is divided over the ranks sees other gradients on each.

Parameters that each rank holds for itself on purpose, such as the experts of an expert parallel layer
inside DDP, make the norms differ while the probed slice agrees: ignore the rule there.
'''
references = [
    "pytorch/pytorch#69031",
    "mosaicml/composer#9",
]

[params]
tolerance = 1e-4  # by how much slices or norms must differ, as a share of the largest
*/
WITH launches AS (
    SELECT run_id, launch, optimizer, averages_parameters AS averaged
    FROM windows
    GROUP BY ALL
),
words AS (
    SELECT word,
           regexp_replace(word, '^.*Z', '') AS kept,
           regexp_matches(kept, 'A[^bB]*[OX]') AS by_hand,
           contains(regexp_extract(kept, '([^bB]*[FfD][^bB]*)[bB][^FfD]*$', 1), 'F') AS by_wrapper,
           regexp_matches(kept, 'B[^bB]*$') AS by_schedule,
           -- A clip after the reduction hides from the later norm what the earlier one shows, and a clip on
           -- one rank alone shows in the later one.
           CASE
               WHEN by_hand THEN regexp_matches(kept, 'A[^bB]*C[^bBA]*[OX]')
               ELSE regexp_matches(kept, 'C[^bB]*[OX]')
           END AS clipped
    FROM (SELECT DISTINCT word FROM updates)
),
norms AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           parameter_part,
           bool_and(
               CASE
                   WHEN parameter_part IS NULL THEN NULL
                   WHEN by_hand THEN TRUE
                   WHEN wrapper = 'ddp' AND pipeline_size > 1 THEN by_schedule AND gradient_divisor IS NOT NULL
                   WHEN wrapper = 'ddp' AND by_wrapper AND gradient_divisor IS NULL THEN NULL
                   WHEN wrapper = 'ddp' THEN by_wrapper
                   WHEN wrapper IS NULL THEN NULL
                   ELSE FALSE
               END
           ) AS reduced,
           -- Ranks that step different parameters have norms of different gradients.
           (min(probe_parameter) IS NOT DISTINCT FROM max(probe_parameter)) AS same,
           count(grad_norm_before_clip) FILTER (clipped AND grad_norm_before_scope = 'global') AS clip_norms,
           min(grad_norm_before_clip) FILTER (clipped AND grad_norm_before_scope = 'global') AS clip_low,
           max(grad_norm_before_clip) FILTER (clipped AND grad_norm_before_scope = 'global') AS clip_high,
           count(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'global') AS step_norms,
           min(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'global') AS step_low,
           max(grad_norm_after_clip) FILTER (grad_norm_after_scope = 'global') AS step_high,
           -- Apart by a window: a rank that threw one away is compared in another of its windows.
           max(micro_step_id) - min(micro_step_id) AS apart,
           apart >= max(microbatches) AS shifted
    FROM updates
    LEFT JOIN words USING (word)
    WHERE applied IS NOT FALSE
      AND (token_ranks > 1) IS NOT FALSE
    GROUP BY ALL
    HAVING count(*) > 1
),
apart_by AS (
    SELECT *,
           CASE WHEN clip_norms > 1 THEN coalesce(1 - clip_low / nullif(clip_high, 0), 0) END AS clip_spread,
           CASE WHEN step_norms > 1 THEN coalesce(1 - step_low / nullif(step_high, 0), 0) END AS step_spread
    FROM norms
),
spread_norms AS (
    SELECT *,
           CASE WHEN same THEN greatest(clip_spread, step_spread) END AS norm_spread,
           CASE WHEN norm_spread = clip_spread THEN clip_low ELSE step_low END AS lowest,
           CASE WHEN norm_spread = clip_spread THEN clip_high ELSE step_high END AS highest
    FROM apart_by
),
spreads AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           bool_and(reduced) AS reduced,
           max(norm_spread) AS norm_spread,
           arg_max(lowest, norm_spread) AS lowest,
           arg_max(highest, norm_spread) AS highest,
           any_value(probe_spread) AS probe_spread,
           max(apart) FILTER (WHERE shifted) AS apart
    FROM spread_norms
    LEFT JOIN windows USING (run_id, launch, optimizer, attempt_id)
    GROUP BY ALL
    HAVING bool_and(reduced) IS NOT FALSE
),
judged AS (
    SELECT *,
           greatest(probe_spread, norm_spread) AS spread,
           CASE WHEN reduced AND NOT averaged THEN spread > $tolerance END AS fault
    FROM spreads
    JOIN launches USING (run_id, launch, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       spread AS observed,
       0.0 AS expected,
       CASE
           WHEN fault
           THEN CASE
                   WHEN probe_spread > $tolerance
                   THEN format(
                       'slices of the reduced gradient differ by {:.3g} % between ranks', 100 * probe_spread
                   )
                   ELSE format(
                       'the norms of the reduced gradient are {:.6g} to {:.6g}, {:.3g} % apart{}',
                       lowest,
                       highest,
                       100 * norm_spread,
                       CASE WHEN probe_spread IS NOT NULL THEN ', while the probed slice agrees' ELSE '' END
                   )
               END
               || coalesce(format('; the ranks are {} micro-steps apart in this attempt', apart), '')
       END AS message
FROM judged
