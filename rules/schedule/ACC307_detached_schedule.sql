/*
code = "ACC307"
name = "detached-schedule"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no update directly followed a scheduler step, and no log declares how its rate moves"
needs = ["learning_rate"]
summary = "the schedule moves, and the optimizer that steps keeps its rate"
why = '''
A scheduler writes its rates into the parameter groups that it was given. Where a wrapper has copied or
replaced these groups, or another optimizer was built after the scheduler, the scheduler and its logs move
while the optimizer that really steps keeps the rate with which it began: no warm-up, no decay.
'''
example = '''
A decay by 0.9 for each update, from 0.001. After three updates the scheduler says 0.001 * 0.9^3 = 0.000729
and logs it. The inner optimizer still steps at 0.001, 1.37 times as much, and after 22 updates 10 times as
much.
'''
fix = '''
Build the scheduler on the optimizer that really steps, after all wrapping and loading.

Hand-written loop: Create the optimizer, wrap it, load its state, and then create the scheduler on the
  result. After a new optimizer make a new scheduler.
DDP: Create both after wrapping the model.
FSDP: Create the optimizer after sharding, and the scheduler after the optimizer.
Trainer: Return optimizer and scheduler together from create_optimizer_and_scheduler.
Accelerate: Prepare both in the same call.
Lightning: Return both from configure_optimizers.
DeepSpeed: Pass the scheduler, or a function that builds it, to initialize().
'''
not_a_fault_when = '''
An update is compared only where nothing else touched the rate: no scheduler step or rate set by hand before
this step, and no rate set by hand since the last scheduler step.

A rate that differs but moves, that followed the schedule earlier in this launch, or that was once changed
right after a step, is set by hand after the schedule (a lower bound, a dampened warm-up, a constant): not
judged. A bound that holds the rate from the first update on looks the same as a detached schedule: declare
min_learning_rate, and the bound is known.

A log holds no position of the scheduler. There a schedule must be declared whose rate would have changed
four times over by the last record, while the log's never did. That is a warning, because what was declared
may be another run's.
'''
references = [
    "microsoft/dp-transformers#43",
    "microsoft/rat-sql#45",
    "pytorch/ignite#545",
    "Lightning-AI/pytorch-lightning#12812",
]

[params]
tolerance = 1e-6  # by how much two equal rates may differ
times = 4  # how many times over the declared rate must change in a log
*/
WITH bounds AS (
    SELECT run_id,
           launch,
           max(min_learning_rate) AS lowest_rate
    FROM runs
    GROUP BY ALL
),
records AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           learning_rate,
           lag(attempt_id) OVER records AS attempt_before,
           lag(learning_rate) OVER records AS rate_before,
           lag(scheduler_rate) OVER records AS schedule_before,
           lag(scheduler_step) OVER records AS position_before,
           regexp_matches(word, '^[^OX]*[SR]') AS touched,
           max(CASE WHEN contains(word, 'S') THEN attempt_id END) OVER earlier AS last_step,
           coalesce(max(CASE WHEN contains(word, 'R') THEN attempt_id END) OVER earlier, 0) AS last_by_hand,
           coalesce(bool_or(regexp_matches(word, '[OX].*R')) OVER earlier, FALSE) AS overridden
    FROM updates
    WINDOW records AS (PARTITION BY run_id, launch, optimizer, rank ORDER BY attempt_id),
           earlier AS (records ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
pairs AS (
    SELECT *,
           abs(learning_rate - schedule_before)
               > $tolerance * greatest(abs(learning_rate), abs(schedule_before)) AS differs,
           abs(learning_rate - rate_before) <= $tolerance * abs(rate_before) AS stays
    FROM records
    LEFT JOIN bounds USING (run_id, launch)
    WHERE (attempt_before = attempt_id - 1) IS NOT FALSE
      AND attempt_before IS NOT NULL
      AND touched IS NOT TRUE
      AND last_step > last_by_hand
),
judged AS (
    SELECT *,
           coalesce(
               bool_or(NOT differs AND NOT stays) OVER (
                   PARTITION BY run_id, launch, optimizer, rank
                   ORDER BY attempt_id
               ),
               FALSE
           ) AS followed,
           coalesce(learning_rate <= lowest_rate * (1 + $tolerance), FALSE) AS bounded
    FROM pairs
),
-- What a log declares, and the share of the peak that a schedule of that shape has at each of its steps.
declared AS (
    SELECT run_id,
           launch,
           any_value(schedule) AS schedule,
           max(coalesce(schedule_updates, planned_updates)) AS length,
           coalesce(max(warmup_updates), 0) AS warmup,
           coalesce(max(schedule_power), 1) AS power,
           coalesce(max(min_learning_rate), 0) AS lowest_rate
    FROM runs
    WHERE format <> 'ledger'
      AND schedule IN ('linear', 'cosine', 'polynomial', 'inverse_sqrt')
    GROUP BY ALL
),
shares AS (
    SELECT w.run_id,
           w.launch,
           w.optimizer,
           w.attempt_id,
           w.learning_rate_max AS rate,
           d.* EXCLUDE (run_id, launch),
           greatest(0, least(1, (d.length - w.attempt_id) / nullif(d.length - d.warmup, 0))) AS left_over,
           CASE
               WHEN w.attempt_id < d.warmup THEN w.attempt_id / d.warmup
               WHEN d.schedule = 'inverse_sqrt' THEN sqrt(nullif(d.warmup, 0) / w.attempt_id)
               WHEN d.schedule = 'cosine' THEN (1 - cos(pi() * left_over)) / 2
               WHEN d.schedule = 'polynomial' THEN left_over ** d.power
               ELSE left_over
           END AS share
    FROM windows AS w
    JOIN declared AS d USING (run_id, launch)
    WHERE w.learning_rate_max IS NOT NULL
),
logged AS (
    SELECT run_id,
           launch,
           optimizer,
           max(attempt_id) AS attempt_id,
           count(*) AS records,
           min(rate) AS lowest,
           max(rate) AS highest,
           min(share) AS smallest,
           max(share) AS largest,
           max_by(share, attempt_id) AS last_share,
           any_value(schedule) AS schedule,
           any_value(length) AS length,
           any_value(lowest_rate) AS lowest_rate
    FROM shares
    GROUP BY run_id, launch, optimizer
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       CASE
           WHEN NOT differs OR bounded THEN FALSE
           WHEN differs AND stays AND NOT followed AND NOT overridden THEN TRUE
       END AS fault,
       learning_rate AS observed,
       schedule_before AS expected,
       format(
           'the optimizer stepped at {:.6g}, the rate of the attempt before, where the scheduler at position {} '
           || 'says {:.6g}; nothing in the record set the rate by hand',
           learning_rate,
           coalesce(position_before::VARCHAR, 'unknown'),
           schedule_before
       ) AS message,
       'error' AS severity
FROM judged
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN highest > lowest THEN FALSE
           WHEN records >= 3 AND largest > $times * smallest AND highest > lowest_rate * (1 + $tolerance)
           THEN TRUE
       END AS fault,
       highest AS observed,
       NULL AS expected,
       format(
           'the rate is {:.6g} in all {:,} records up to step {:,}, where the declared {} schedule{} '
           || 'falls to {:.3g} % of its peak by then; what was declared may be another run''s',
           highest,
           records,
           attempt_id,
           schedule,
           coalesce(format(' of {:,} updates', length), ''),
           100 * last_share
       ) AS message,
       'warning' AS severity
FROM logged
