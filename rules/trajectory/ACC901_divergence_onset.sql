/*
code = "ACC901"
name = "divergence-onset"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "fewer than 75 updates of one stage have a loss"
needs = ["loss or reported_loss"]
summary = "from some update on the loss or the gradient norm left its own history and never came back"
why = '''
A run that diverges goes on. The loss climbs back to where it began and stays there, or is NaN, and every
hour after that is lost. A curve that is looked at once a day shows it a day late, and a mean over thousands
of updates hides it.

The update at which it began says which checkpoint is still good, and which batches and rates to look at.
'''
example = '''
A loss falls from 10.9 to 2.3 over 4,000 updates. At update 4,120 it jumps to 7.6, and none of the 600
losses after it lies below 7.1. More than half of what was learned is given back: half would be 2.3 + (10.9
- 2.3) / 2 = 6.6. The last good checkpoint is one from before update 4,120.
'''
fix = '''
Go back to a checkpoint from before the update that is named, and change something before going on.

Hand-written loop: Skip the batches around it, lower the rate, warm up longer, or clip the norm of the whole
  gradient. Look at the norms and the loss scale just before it.
DDP: The same.
FSDP: The same.
Trainer: The same, by learning_rate, warmup_steps and max_grad_norm. Use bf16 in place of fp16.
Accelerate: The same. Use bf16 in place of fp16.
Lightning: The same, by gradient_clip_val. Use bf16 in place of fp16.
DeepSpeed: Set gradient_clipping, and see that the loss scale is not at its floor.
'''
not_a_fault_when = '''
A spike that comes back is none, however high. Neither is a loss that grows a little because the data or the
length of the sequences changed. A loss that is falling again at the end is none either, unless it still lies
as far above its start as it had fallen below it. The loss must give back half of all that was learned, stay
above that in each of the last 25 records and in the last twentieth of the log, and lie six deviations above
the best level.

A norm is judged beside the loss alone: it must stay at ten times the highest norm before, while the loss is
worse than before. Fewer than 50 records before and 25 after prove nothing.

Several optimizers with losses of their own (a GAN) are not judged, for they pull against each other, and
neither are losses of both signs, as policies have them. A loss that never fell has nothing to lose.

A resumed launch goes on with the history of the launch before; updates that were done again count once. A
stage that is declared, by other rates or lengths or by another class of scheduler or optimizer, begins a
history of its own. A harder task in the same run, or a resume with other data, may look the same where
nothing declares it. Then the figures say what happened, and the cause is yours.
'''
references = [
    "bigscience-workshop/Megatron-DeepSpeed#57",
    "marin-community/marin#1390",
    "OmniSVG/OmniSVG#44",
]

[params]
before = 50  # how many records must lie before the update
after = 25  # how many records must lie after it
given_back = 0.5  # the share of what was learned that must be given back
deviations = 6  # how many deviations above the best level the loss must lie
norm_factor = 10  # how many times the highest norm before it the norm must stay
not_finite = 5  # how many losses at the end that are not finite count as divergence
*/
WITH setups AS (
    SELECT run_id,
           launch,
           [max(peak_learning_rate), max(planned_updates), max(warmup_updates), max(min_learning_rate)] AS declared,
           max(scheduler_class) AS scheduler_class,
           list_transform(any_value(optimizers), lambda one: one['class']) AS optimizer_classes
    FROM runs
    GROUP BY run_id, launch
),
turns AS (
    SELECT run_id,
           launch,
           len(list_filter(
               list_zip(declared, lag(declared) OVER in_order),
               lambda x: x[1] IS NOT NULL AND x[1] IS DISTINCT FROM x[2]
           )) > 0
           OR coalesce(scheduler_class <> lag(scheduler_class) OVER in_order, FALSE)
           OR coalesce(optimizer_classes <> lag(optimizer_classes) OVER in_order, FALSE) AS is_turn
    FROM setups
    WINDOW in_order AS (PARTITION BY run_id ORDER BY launch)
),
-- The launches of a run are one history, unless another stage is declared; what begins anew is another run.
stages AS (
    SELECT run_id, launch, sum(is_turn::INTEGER) OVER (PARTITION BY run_id ORDER BY launch) AS stage FROM turns
),
losses AS (
    SELECT run_id,
           stage,
           launch,
           optimizer,
           attempt_id,
           count(loss) OVER of_run > 0 AS is_measured,
           CASE WHEN is_measured THEN loss ELSE reported_loss END AS loss,
           coalesce(grad_norm_before_max, grad_norm_max) AS norm
    FROM windows
    JOIN stages USING (run_id, launch)
    WHERE applied IS NOT FALSE
    WINDOW of_run AS (PARTITION BY run_id, optimizer)
),
-- Optimizers that pull against each other have losses of their own.
rivals AS (
    SELECT run_id, NOT bool_and(is_one) AS are_rivals
    FROM (
        SELECT run_id, launch, max(loss) = min(loss) AS is_one
        FROM losses
        GROUP BY run_id, launch, attempt_id
    )
    GROUP BY ALL
),
records AS (
    SELECT *,
           row_number() OVER in_order AS place,
           count(*) OVER (PARTITION BY run_id, stage, optimizer) AS records,
           median(loss) OVER (in_order ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS level,
           -- A median of records before and after lies beside a loss that is falling, not above it.
           median(loss) OVER (in_order ROWS BETWEEN 5 PRECEDING AND 5 FOLLOWING) AS level_around,
           min(loss) OVER (in_order ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS lowest_after,
           min(norm) OVER (in_order ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS lowest_norm_after,
           max(norm) OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest_norm_before
    FROM losses
    WHERE loss IS NOT NULL
    WINDOW in_order AS (PARTITION BY run_id, stage, optimizer ORDER BY launch, attempt_id)
),
bests AS (
    SELECT run_id,
           stage,
           optimizer,
           median(loss) FILTER (place <= 10) AS start,
           min(level) FILTER (place BETWEEN 10 AND records - $after) AS best,
           arg_min(place, level) FILTER (place BETWEEN 10 AND records - $after) AS best_at
    FROM records
    GROUP BY ALL
    HAVING count(*) >= $before + $after
),
histories AS (
    SELECT run_id,
           stage,
           optimizer,
           any_value(records) AS records,
           greatest($after, 0.05 * any_value(records)) AS enough,
           start,
           best,
           start - best AS learned,
           -- A policy's loss says nothing of what was learned.
           min(loss) < 0 AND max(loss) > 0 AS changes_sign,
           -- How far losses lie from their level, while it fell.
           1.4826 * median(abs(loss - level_around)) FILTER (place BETWEEN 10 AND greatest(best_at, $before)) AS deviation,
           best + greatest($given_back * learned, $deviations * deviation) AS limit_of_loss
    FROM records
    JOIN bests USING (run_id, stage, optimizer)
    GROUP BY run_id, stage, optimizer, start, best, best_at
),
candidates AS (
    SELECT r.run_id,
           r.stage,
           r.optimizer,
           min(place) FILTER (lowest_after > limit_of_loss AND learned > $deviations * deviation) AS by_loss,
           min(place) FILTER (lowest_norm_after > $norm_factor * highest_norm_before) AS by_norm
    FROM records AS r
    JOIN histories AS h USING (run_id, stage, optimizer)
    WHERE place > $before
      AND place <= h.records - enough
    GROUP BY ALL
),
onsets AS (
    SELECT *,
           by_loss IS NULL AS is_norm,
           coalesce(by_loss, by_norm) AS onset
    FROM candidates
    WHERE by_loss IS NOT NULL OR by_norm IS NOT NULL
),
-- What stood before the onset, and whether the loss is coming back by now.
aftermaths AS (
    SELECT run_id,
           stage,
           optimizer,
           any_value(is_norm) AS is_norm,
           -- A loss that wanders was as high before, and crept there.
           max(place) FILTER (level < best + 0.25 * learned AND place < onset) >= any_value(onset - enough) AS was_low,
           count(*) FILTER (loss > limit_of_loss AND place BETWEEN onset - $before AND onset - $after) AS highs,
           min(launch) FILTER (place = onset) AS launch,
           min(attempt_id) FILTER (place = onset) AS attempt,
           max(level) FILTER (place = onset - 1) AS level_before,
           median(norm) FILTER (place < onset) AS norm_before,
           count(*) FILTER (place >= onset) AS followers,
           median(loss) FILTER (place >= onset) AS loss_after,
           median(norm) FILTER (place >= onset) AS norm_after,
           min(loss) FILTER (place >= onset) AS lowest_after,
           median(loss) FILTER (place BETWEEN onset AND (onset + r.records) // 2) AS first_half,
           median(loss) FILTER (place > (onset + r.records) // 2) AS second_half
    FROM records AS r
    JOIN onsets AS o USING (run_id, stage, optimizer)
    JOIN histories AS h USING (run_id, stage, optimizer)
    GROUP BY ALL
),
judged AS (
    SELECT h.*,
           a.* EXCLUDE (run_id, stage, optimizer),
           are_rivals IS TRUE OR changes_sign AS is_unclear,
           coalesce(
               -- Far above where it began, it is lost though it falls.
               (second_half >= first_half - 0.2 * (first_half - best) OR second_half > start + learned)
                   AND CASE
                       WHEN is_norm THEN loss_after > level_before + $deviations / 2 * deviation
                       ELSE was_low AND highs < 0.1 * $after
                   END,
               FALSE
           ) AS diverged
    FROM histories AS h
    LEFT JOIN aftermaths AS a USING (run_id, stage, optimizer)
    LEFT JOIN rivals AS r USING (run_id)
),
-- A trainer that hides losses that are not finite logs 0 beside such a norm.
numbers AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           coalesce(reported_loss_nonfinite OR (reported_loss = 0 AND grad_norm_before_clip_nonfinite), FALSE) AS lost,
           coalesce(reported_loss = 0, FALSE) AS is_hidden,
           max(attempt_id) FILTER (
               reported_loss IS NOT NULL AND (reported_loss = 0 AND grad_norm_before_clip_nonfinite) IS NOT TRUE
           ) OVER (PARTITION BY run_id, launch, optimizer) AS last_finite
    FROM updates
    WHERE applied IS NOT FALSE
      AND (reported_loss IS NOT NULL OR reported_loss_nonfinite)
      AND (run_id, launch) NOT IN (SELECT (run_id, launch) FROM losses WHERE is_measured)
),
endings AS (
    SELECT run_id,
           launch,
           optimizer,
           min(attempt_id) AS attempt,
           count(DISTINCT attempt_id) AS followers,
           bool_and(is_hidden) AS are_hidden
    FROM numbers
    WHERE lost
      AND attempt_id > last_finite
    GROUP BY ALL
    HAVING count(DISTINCT attempt_id) >= $not_finite
)
SELECT run_id,
       launch,
       optimizer,
       CASE WHEN diverged AND NOT is_unclear THEN attempt END AS attempt_id,
       NULL AS rank,
       CASE WHEN NOT is_unclear THEN diverged END AS fault,
       CASE WHEN is_norm THEN norm_after ELSE loss_after END AS observed,
       CASE WHEN is_norm THEN norm_before ELSE best END AS expected,
       CASE
           WHEN is_norm
           THEN format(
               'from here on the gradient norm is {:.3g} (median of {} records), {:.3g} before, '
               || 'and the loss {:.4g} after {:.4g}',
               norm_after,
               followers,
               norm_before,
               loss_after,
               level_before
           )
           ELSE format(
               'from here on the loss stays above {:.4g}, in {} records up to the end: it had fallen from {:.4g} '
               || 'to {:.4g}, and is {:.4g} since (median)',
               lowest_after,
               followers,
               start,
               best,
               loss_after
           )
       END AS message
FROM judged
WHERE (run_id, optimizer) NOT IN (SELECT (run_id, optimizer) FROM endings)
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       attempt AS attempt_id,
       NULL AS rank,
       TRUE AS fault,
       followers::DOUBLE AS observed,
       NULL AS expected,
       format(
           'from here on the loss is {}, in {} records up to the end',
           CASE WHEN are_hidden THEN 'logged as 0 beside a gradient norm that is not finite' ELSE 'not finite' END,
           followers
       ) AS message
FROM endings
