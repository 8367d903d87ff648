/*
code = "ACC305"
name = "schedule-horizon-mismatch"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "no schedule is declared or recognised whose end could be compared with that of a run"
needs = ["learning_rate"]
summary = "the schedule is not as long as the run"
why = '''
A schedule is planned for a number of updates. Where the run is longer, its last part trains at a rate of 0,
or on a cosine at a rate that climbs again. Where the run is shorter, it ends while the rate is still high:
the low rates, in which most of the last gain is made, never come.

Both follow from a horizon that was counted in something else: micro-batches and not updates, one epoch and
not all, samples of one rank, or the plan of another run.
'''
example = '''
A linear decay over 8 epochs of 14 micro-batches, 4 micro-steps an update. It is planned for 14 * 8 = 112
steps, and the run has 4 * 8 = 32 updates. The last of them stands at position 31 of 112 and runs at 1 -
31/112 = 72 % of the peak, where nearly 0 was meant.
'''
fix = '''
Count the horizon in updates: the windows of an epoch, rounded up, times the epochs.

Hand-written loop: Use ceil(len(loader) / accumulation_steps) * epochs, and take from it what was done
  before a resume.
DDP: Use len(loader) of one rank, whose sampler has split the data already.
FSDP: As for DDP.
Trainer: Leave lr_scheduler_type to it, or build the schedule with the max_steps that it logs.
Accelerate: A prepared scheduler steps num_processes times for each update: multiply the horizon by it.
Lightning: trainer.estimated_stepping_batches is the number of updates.
DeepSpeed: total_num_steps counts updates, not micro-steps.
'''
not_a_fault_when = '''
Up to 2 % of the schedule, and up to 5 updates, are silent: 16 updates of 45,430, or a few skipped updates
that leave the schedule as many steps short. So is a last linear update at a rate of the peak divided by the
updates: that schedule is complete.

A schedule that ends at a minimum above 0 may end early on purpose, and so may one of a declared length of
its own. Warm restarts, cyclic schedules and others that are declared or known to rise again pass; where
nothing says what the schedule is, a second rise is a note.

A run that has not finished, or that ended right after an evaluation as early stopping does, is a note. The
state in an intermediate checkpoint is not judged.

The length is known where the schedule was declared, or where its rates, twenty different ones or more,
leave no doubt. A line to 0 looks like one to a minimum that was not reached: where neither was declared, it
is a note.
'''
references = [
    "huggingface/transformers#35484",
    "huggingface/diffusers#3954",
    "huggingface/diffusers#4387",
    "huggingface/accelerate#2926",
]

[params]
share = 0.02  # the share of the schedule by which its end may differ from the run's
updates = 5  # the number of updates by which they may differ in any case
floor = 0.01  # a rate below this share of the peak counts as the end of the schedule
rise = 0.05  # a rate that climbs again to this share of the peak rises
*/
WITH setups AS (
    SELECT run_id,
           launch,
           any_value(format) AS format,
           max(planned_updates) AS planned,
           max(schedule_updates) AS declared_length,
           max(schedule) AS declared_shape,
           max(recorded_every) AS every,
           max(scheduler_class) AS scheduler_class,
           max(min_learning_rate) AS lowest_rate
    FROM runs
    GROUP BY ALL
),
closes AS (
    SELECT run_id,
           launch,
           TRUE AS closed,
           bool_or(finished) AS finished,
           -- The last steps of a log need not have a record.
           coalesce(max(attempt_id) FILTER (format <> 'ledger' AND kind = 'close'), 0) AS last_step,
           -- Early stopping ends a run right after it has evaluated.
           coalesce(
               max(attempt_id) FILTER (kind = 'eval') >= max(attempt_id) FILTER (kind = 'close'), FALSE
           ) AS ends_with_evaluation
    FROM marks
    JOIN setups USING (run_id, launch)
    WHERE kind IN ('close', 'eval')
    GROUP BY run_id, launch
    HAVING bool_or(kind = 'close')
),
records AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           -- A log counts its own steps, a ledger its updates.
           CASE WHEN s.format = 'ledger' THEN optimizer_update_id ELSE attempt_id END AS update_id,
           learning_rate_max AS rate
    FROM windows
    JOIN setups AS s USING (run_id, launch)
    WHERE learning_rate_max IS NOT NULL
      AND applied IS NOT FALSE
),
-- A second rise: from the highest rate so far down to next to nothing, and up again in many small steps.
falls AS (
    SELECT *,
           max(rate) OVER (until_here ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS top,
           rate - lag(rate) OVER until_here AS move
    FROM records
    WINDOW until_here AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
lowest AS (
    FROM falls
    WHERE rate <= $floor * top AND top > 0
    QUALIFY row_number() OVER (PARTITION BY run_id, launch, optimizer ORDER BY rate / top, attempt_id) = 1
),
rises AS (
    SELECT l.run_id,
           l.launch,
           l.optimizer,
           l.top,
           l.update_id AS lowest_at,
           l.rate AS lowest,
           max(f.rate) FILTER (f.attempt_id > l.attempt_id) AS again,
           max_by(f.update_id, f.rate) FILTER (f.attempt_id > l.attempt_id) AS again_at,
           max(f.move) FILTER (f.attempt_id > l.attempt_id) AS largest_step,
           count(*) FILTER (f.attempt_id <= l.attempt_id AND f.move < 0) AS steps_down,
           count(*) FILTER (f.attempt_id > l.attempt_id AND f.move > 0) AS steps_up
    FROM lowest AS l
    JOIN falls AS f USING (run_id, launch, optimizer)
    GROUP BY ALL
),
launches AS (
    SELECT r.run_id,
           r.launch,
           r.optimizer,
           greatest(max(r.update_id), coalesce(max(c.last_step), 0)) AS done,
           max(r.attempt_id) AS attempt_id,
           max_by(r.rate, r.attempt_id) AS last_rate
    FROM records AS r
    LEFT JOIN closes AS c USING (run_id, launch)
    GROUP BY r.run_id, r.launch, r.optimizer
    QUALIFY r.launch = max(r.launch) OVER (PARTITION BY r.run_id)
),
measured AS (
    SELECT l.*,
           u.* EXCLUDE (run_id, launch),
           s.fits,
           s.schedule,
           s.peak,
           s.minimum,
           s.schedule_updates AS length,
           c.closed,
           c.finished,
           c.ends_with_evaluation,
           x.lowest_at,
           x.lowest,
           x.again,
           x.again_at,
           coalesce(
               x.again >= $rise * x.top
                   AND x.largest_step <= 0.5 * (x.again - x.lowest)
                   AND least(x.steps_down, x.steps_up) >= 5,
               FALSE
           )
               AND NOT regexp_matches(coalesce(u.scheduler_class, ''), '(?i)cycl|restart|sgdr|triang|plateau')
               AND coalesce(u.declared_shape, 'cosine')
                   IN ('linear', 'cosine', 'polynomial', 'inverse_sqrt', 'wsd', 'constant') AS rises_again,
           (l.last_rate - s.minimum) / nullif(s.peak - s.minimum, 0) AS rate_left,
           coalesce(
               s.fits
                   AND l.done - s.schedule_updates > greatest($share * l.done, $updates)
                   AND s.minimum <= $floor * s.peak
                   AND u.declared_length IS DISTINCT FROM s.schedule_updates,
               FALSE
           ) AS ends_early,
           coalesce(
               s.fits
                   AND s.schedule_updates - l.done > greatest($share * s.schedule_updates, $updates)
                   -- Where no end is told, it may lie as far behind the last record.
                   AND (c.finished OR s.schedule_updates - l.done >= coalesce(u.every, 1))
                   AND rate_left > $floor,
               FALSE
           ) AS ends_far,
           -- A line may as well be one to a minimum above 0, and end there.
           s.schedule = 'linear' AND u.lowest_rate IS NULL
               AND (s.schedule_updates IS DISTINCT FROM coalesce(u.declared_length, u.planned)) AS end_assumed
    FROM launches AS l
    JOIN setups AS u USING (run_id, launch)
    LEFT JOIN schedules AS s USING (run_id, launch, optimizer)
    LEFT JOIN closes AS c USING (run_id, launch)
    LEFT JOIN rises AS x USING (run_id, launch, optimizer)
),
judged AS (
    SELECT *,
           CASE
               WHEN rises_again OR ends_early THEN TRUE
               ELSE ends_far
           END AS fault
    FROM measured
    WHERE rises_again
       OR ends_early
       -- Without an end a ledger is still written, and a state is a checkpoint's.
       OR (fits AND (closed OR format NOT IN ('ledger', 'trainer_state') OR NOT ends_far))
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       CASE WHEN rises_again THEN again ELSE done END::DOUBLE AS observed,
       CASE WHEN rises_again THEN lowest ELSE length END::DOUBLE AS expected,
       CASE
           WHEN rises_again
           THEN format(
               'the rate rose again: {:.4g} at update {:,}, where it had come down to {:.4g} '
               || 'at update {:,}{}',
               again,
               again_at,
               lowest,
               lowest_at,
               CASE
                   WHEN declared_shape IS NULL AND coalesce(scheduler_class, 'LambdaLR') = 'LambdaLR'
                   THEN '; a cycle on purpose looks the same'
                   ELSE ''
               END
           )
           WHEN ends_early
           THEN format(
               'the {} schedule ended at update {:,} of {:,}: the last {:,} ran at a rate of {:.4g}',
               schedule,
               length,
               done,
               done - length,
               last_rate
           )
           ELSE format(
               '{} {:,} updates of a {} schedule of {:,}{}: its last rate, {:.4g}, is {:.3g} % of the peak{}',
               CASE WHEN finished THEN 'the run ended after' ELSE 'the record ends after' END,
               done,
               schedule,
               length,
               CASE WHEN end_assumed THEN ', if it falls to 0' ELSE '' END,
               last_rate,
               100 * last_rate / peak,
               CASE
                   WHEN finished AND ends_with_evaluation
                   THEN '; it ended with an evaluation, as early stopping does'
                   ELSE ''
               END
           )
       END AS message,
       CASE
           WHEN rises_again
           THEN CASE
               WHEN declared_shape IS NULL AND coalesce(scheduler_class, 'LambdaLR') = 'LambdaLR' THEN 'note'
               ELSE 'warning'
           END
           WHEN ends_early OR (finished AND NOT end_assumed AND NOT ends_with_evaluation) THEN 'warning'
           ELSE 'note'
       END AS severity
FROM judged
