/*
code = "ACC306"
name = "rate-break-at-resume"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no launch continued an earlier one"
needs = ["learning_rate"]
summary = "a resumed launch does not go on with the learning rate at which the run stood"
why = '''
A resumed run is meant to go on with its schedule. It gets another one where the checkpoint lacks the
scheduler, or holds it one step too early, or where the scheduler is built anew from rates that it had set
already. The schedule then starts over, stays one update behind for ever, or decays twice.

The loss may show a bump or nothing at all, and what was meant to be one training is two.
'''
example = '''
A linear decay: the first four updates run at 7e-6, 6e-6, 5e-6 and 4e-6. The run is resumed after the
second. With a scheduler that was saved before its step, the third update uses 6e-6 once more, and all that
follow are one update late.

Decayed twice: at half its length a decay stands at 1/2 of the peak. A scheduler that is built anew at that
point takes the rate that it finds for its peak: 1/2 * 1/2 = 1/4 of the peak.
'''
fix = '''
Save and load the scheduler's state beside the optimizer's, after both have stepped, and build the scheduler
before loading. A second stage on purpose is declared: audit.declare(peak_learning_rate=...,
planned_updates=...).

Hand-written loop: Build the scheduler on a new optimizer at its initial rate, then call load_state_dict.
  last_epoch of the constructor is the last step made, not the next, and needs initial_lr in the groups.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Use resume_from_checkpoint with the same number of steps: another max_steps is another schedule.
Accelerate: Prepare and register the scheduler, so that save_state and load_state know of it.
Lightning: Resume with ckpt_path. A checkpoint that is taken before the end of an epoch holds an epoch's
  schedule before its step.
DeepSpeed: Give the scheduler to initialize(), or save a scheduler of your own in client_state.
'''
not_a_fault_when = '''
The first rate of a launch is compared with the one that the scheduler had ready after the last update
before it, or with the rate at which an earlier launch did the same update. So a warm restart, or a step of
the schedule that is just due, passes. Only the first parameter group is compared.

A second stage is no break: peak_learning_rate, planned_updates, warmup_updates or min_learning_rate are
declared differently, the class of scheduler or optimizer is another one, or optimizer and schedule both
begin anew.

Not judged, unless updates were done again: a schedule that had come to its end, rates that the loop sets by
hand, schedules that are stepped before each update, and a jump together with another number of ranks or
micro-steps.

It is a warning where nothing explains a jump, because it may be a second stage that was not declared. It is
a warning too where the shift is less than 0.1 % of the peak, or where a scheduler is one step off while the
rate is right so far.

In a log the rates themselves tell the positions, where a schedule is declared or recognised. Steps that may
have been skipped between two records are no break. A launch that follows another schedule without saying so
is a warning.
'''
references = [
    "huggingface/transformers#34053",
    "pytorch/pytorch#60265",
    "ultralytics/yolov5#292",
    "huggingface/nanotron#233",
    "deepspeedai/DeepSpeed#3875",
    "Lightning-AI/pytorch-lightning#4655",
]

[params]
tolerance = 1e-6  # by how much two equal rates may differ
small = 0.001  # a shift below this share of the peak is a warning
*/
WITH setups AS (
    SELECT run_id,
           launch,
           max(peak_learning_rate) AS peak_learning_rate,
           [max(peak_learning_rate), max(planned_updates), max(warmup_updates), max(min_learning_rate)]
               AS declared,
           max(min_learning_rate) AS lowest_rate,
           max(scheduler_class) AS scheduler_class,
           any_value(optimizers) AS optimizers,
           [max(world_size), max(accumulation_steps)] AS sizes,
           max(resumed_from_update) AS resumed_from_update,
           max(scheduler_step_at_attach) AS position_at_attach,
           coalesce(max(scheduler_steps_per_update), 1) AS contract
    FROM runs
    WHERE run_id IN (SELECT run_id FROM runs WHERE launch > 1)
      AND format = 'ledger'
    GROUP BY ALL
),
-- One rank speaks for all (ACC603 compares them), and updates that were done again speak twice.
records AS (
    SELECT run_id, launch, optimizer, attempt_id, optimizer_update_id, applied, word, learning_rate,
           scheduler_rate, scheduler_step, optimizer_state_step, accumulation_steps, redone,
           length(regexp_replace(regexp_replace(word, '^[^bB]*', ''), '[^S]', '', 'g')) AS steps,
           -- Whether the record before foretold this rate.
           CASE
               WHEN lag(attempt_id) OVER records = attempt_id - 1
               THEN abs(learning_rate - lag(scheduler_rate) OVER records)
                        <= $tolerance * greatest(abs(learning_rate), abs(lag(scheduler_rate) OVER records))
                    AND (applied IS FALSE OR steps >= lag(steps) OVER records)
               ELSE steps > 0 AND NOT contains(word, 'R')
           END AS foretells,
           first_value(learning_rate) OVER until_here AS first_rate,
           max(learning_rate) OVER until_here AS highest_rate,
           min(learning_rate) OVER until_here AS lowest_so_far
    FROM (
        SELECT *, FALSE AS redone FROM updates
        UNION ALL BY NAME
        SELECT *, TRUE AS redone FROM superseded
    )
    SEMI JOIN setups USING (run_id, launch)
    WINDOW records AS (PARTITION BY run_id, launch, optimizer, rank ORDER BY attempt_id),
           until_here AS (PARTITION BY run_id, optimizer ORDER BY launch, attempt_id)
    QUALIFY rank = min(rank) OVER (PARTITION BY run_id, launch, optimizer)
),
starts AS (
    SELECT r.*,
           s.* EXCLUDE (run_id, launch),
           CASE
               WHEN r.attempt_id = 1
               THEN greatest(
                   r.optimizer_update_id - (r.applied IS NOT FALSE)::BIGINT,
                   coalesce(s.resumed_from_update, 0)
               )
           END AS done
    FROM records AS r
    JOIN setups AS s USING (run_id, launch)
    WHERE r.launch > 1
      AND NOT r.redone
    QUALIFY row_number() OVER (PARTITION BY r.run_id, r.launch, r.optimizer ORDER BY r.attempt_id) = 1
),
resumes AS (
    SELECT n.*,
           o.launch AS launch_before,
           o.learning_rate AS rate_before,
           o.scheduler_step AS position_before,
           CASE
               WHEN o.foretells THEN o.scheduler_rate
               -- Without a schedule a rate that never moved will stay.
               WHEN o.scheduler_step IS NULL AND o.lowest_so_far = o.highest_rate
                    AND n.learning_rate = o.highest_rate
               THEN o.highest_rate
           END AS foretold,
           o.first_rate AS first_rate_before,
           coalesce(p.peak_learning_rate, o.highest_rate) AS peak,
           len(list_filter(
               list_zip(n.declared, p.declared), lambda x: x[1] IS NOT NULL AND x[1] IS DISTINCT FROM x[2]
           )) > 0
               OR coalesce(n.scheduler_class <> p.scheduler_class, FALSE)
               OR coalesce(
                   n.optimizers[n.optimizer + 1]['class'] <> p.optimizers[n.optimizer + 1]['class'], FALSE
               ) AS new_stage,
           (n.sizes IS DISTINCT FROM p.sizes) AS resized
    FROM starts AS n
    LEFT JOIN records AS o
        ON o.run_id = n.run_id
       AND o.optimizer = n.optimizer
       AND o.launch < n.launch
       AND CASE
               WHEN n.done > 0 THEN o.optimizer_update_id = n.done
               -- The updates are not counted on: the schedule's position tells where it goes on.
               WHEN n.done = 0 AND n.optimizer = 0 AND n.position_at_attach > 0
               THEN o.scheduler_step = n.position_at_attach
               ELSE FALSE
           END
    LEFT JOIN setups AS p ON p.run_id = o.run_id AND p.launch = o.launch
    QUALIFY row_number() OVER (
        PARTITION BY n.run_id, n.launch, n.optimizer
        -- A checkpoint may have been taken before or after attempts that were skipped.
        ORDER BY o.redone ASC, o.launch DESC,
                 (o.foretells AND abs(o.scheduler_rate - n.learning_rate)
                     <= $tolerance * greatest(abs(o.scheduler_rate), abs(n.learning_rate))) IS TRUE DESC,
                 o.attempt_id DESC
    ) = 1
),
-- The same updates in the launch that was continued, as far as they were done again.
again AS (
    SELECT n.run_id,
           n.launch,
           n.optimizer,
           min_by(o.learning_rate, o.optimizer_update_id) FILTER (o.optimizer_update_id = n.done + 1)
               AS redone_rate,
           min_by(
               {'attempt': r.attempt_id, 'update_id': r.optimizer_update_id, 'rate': r.learning_rate,
                'meant': o.learning_rate},
               r.optimizer_update_id
           ) FILTER (
               abs(r.learning_rate - o.learning_rate)
                   > $tolerance * greatest(abs(r.learning_rate), abs(o.learning_rate))
           ) AS first_off
    FROM resumes AS n
    JOIN records AS o
        ON o.run_id = n.run_id AND o.launch = n.launch_before AND o.optimizer = n.optimizer
       AND o.redone AND o.applied AND o.optimizer_update_id > n.done
    JOIN records AS r
        ON r.run_id = n.run_id AND r.launch = n.launch AND r.optimizer = n.optimizer
       AND NOT r.redone AND r.applied AND r.optimizer_update_id = o.optimizer_update_id
    GROUP BY ALL
),
-- What the schedule gave at each position, before and after.
places AS (
    SELECT n.run_id,
           n.launch,
           n.optimizer,
           any_value(o.scheduler_rate) FILTER (o.scheduler_step = n.scheduler_step - n.steps)
               AS rate_at_start,
           count(DISTINCT r.scheduler_rate) FILTER (o.scheduler_step = r.scheduler_step) AS positions_met,
           min(r.scheduler_rate / o.scheduler_rate) FILTER (o.scheduler_step = r.scheduler_step)
               AS lowest_share,
           max(r.scheduler_rate / o.scheduler_rate) FILTER (o.scheduler_step = r.scheduler_step) AS share
    FROM resumes AS n
    JOIN records AS r
        ON r.run_id = n.run_id AND r.launch = n.launch AND r.optimizer = n.optimizer
    JOIN (
        SELECT run_id, launch, optimizer, scheduler_step, scheduler_rate
        FROM records
        UNION
        SELECT run_id, launch, optimizer, 0, learning_rate
        FROM records
        WHERE attempt_id = 1
          AND scheduler_step = steps
    ) AS o
        ON o.run_id = n.run_id AND o.launch = n.launch_before AND o.optimizer = n.optimizer
       AND (o.scheduler_step = r.scheduler_step OR o.scheduler_step = n.scheduler_step - n.steps)
    WHERE n.scheduler_step - n.steps <> n.position_before
    GROUP BY ALL
),
measured AS (
    SELECT n.*,
           coalesce(a.redone_rate, n.foretold) AS meant,
           a.first_off,
           p.share,
           p.positions_met > 1 AND p.share - p.lowest_share <= $tolerance * p.share
               AND CASE
                       WHEN abs(p.share - 1) <= $tolerance
                       THEN abs(p.rate_at_start - n.foretold)
                                > $tolerance * greatest(abs(p.rate_at_start), abs(n.foretold))
                       -- An exponential decay goes on from any position alike.
                       ELSE abs(n.scheduler_rate / n.learning_rate - n.foretold / n.rate_before) > $tolerance
                   END AS replays,
           greatest(abs(learning_rate), abs(meant)) * $tolerance AS slack,
           abs(learning_rate - meant) > slack AS breaks,
           scheduler_step - steps - position_before AS shift,
           CASE
               WHEN NOT breaks THEN NULL
               WHEN abs(learning_rate - rate_before) <= slack THEN 'late'
               WHEN abs(learning_rate - meant - (meant - rate_before)) <= 0.05 * abs(meant - rate_before)
               THEN 'early'
               WHEN abs(learning_rate - first_rate_before) <= slack THEN 'restart'
               WHEN abs(learning_rate - peak) <= slack THEN 'peak'
               WHEN abs(learning_rate - meant * meant / peak) <= 0.001 * abs(learning_rate) AND meant < peak
               THEN 'twice'
               WHEN shift > 0 AND shift <= contract THEN 'early'
               ELSE 'jump'
           END AS kind
    FROM resumes AS n
    LEFT JOIN again AS a USING (run_id, launch, optimizer)
    LEFT JOIN places AS p USING (run_id, launch, optimizer)
),
judged AS (
    SELECT *,
           -- The optimizer's own count began at 1: it is a new one.
           optimizer_state_step = 1 AND done >= 1 AS new_optimizer,
           CASE
               WHEN new_stage OR (new_optimizer AND coalesce(scheduler_step = steps, TRUE)) THEN FALSE
               WHEN launch_before IS NULL THEN NULL
               WHEN breaks IS NOT TRUE AND first_off IS NULL AND replays
               THEN CASE WHEN meant > greatest($small * peak, coalesce(lowest_rate, 0)) THEN TRUE END
               WHEN breaks AND kind IN ('restart', 'peak', 'jump')
               THEN CASE
                   WHEN meant <= greatest($small * peak, coalesce(lowest_rate, 0)) THEN NULL
                   WHEN kind = 'jump' AND resized THEN NULL
                   ELSE TRUE
               END
               WHEN breaks OR first_off IS NOT NULL THEN TRUE
               WHEN NOT breaks THEN coalesce(shift <> 0 AND abs(shift) <= contract, FALSE)
           END AS fault
    FROM measured
),
-- Logs: where each launch stood at its end and at its beginning, by the rates.
plans AS (
    SELECT run_id,
           launch,
           max(resumed_from_update) AS done,
           [max(peak_learning_rate), max(planned_updates), max(warmup_updates), max(min_learning_rate)]
               AS declared
    FROM runs
    WHERE format <> 'ledger'
    GROUP BY ALL
),
told AS (
    SELECT p.run_id,
           p.launch,
           p.optimizer,
           p.attempt_id,
           p.position,
           p.lag,
           s.schedule,
           s.schedule_updates AS length,
           s.peak,
           s.warmup_updates AS warmup,
           l.done,
           l.declared
    FROM positions AS p
    JOIN schedules AS s USING (run_id, launch, optimizer)
    JOIN plans AS l USING (run_id, launch)
    WHERE p.position IS NOT NULL
),
logged AS (
    SELECT n.*,
           n.lag - o.lag AS shift,
           -- Steps between both may have been skipped.
           n.attempt_id - o.attempt_id AS apart,
           (n.declared IS DISTINCT FROM o.declared) AS new_stage,
           (
               (n.schedule, n.length, n.peak, n.warmup)
               IS DISTINCT FROM (o.schedule, o.length, o.peak, o.warmup)
           ) AS another,
           o.schedule AS schedule_before,
           o.length AS length_before,
           o.peak AS peak_before
    FROM (
        FROM told
        WHERE launch > 1
        QUALIFY row_number() OVER (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id) = 1
    ) AS n
    JOIN told AS o
        ON o.run_id = n.run_id AND o.launch = n.launch - 1 AND o.optimizer = n.optimizer
       AND o.attempt_id <= n.done
    QUALIFY row_number() OVER (PARTITION BY n.run_id, n.launch, n.optimizer ORDER BY o.attempt_id DESC) = 1
)
SELECT run_id,
       launch,
       optimizer,
       CASE WHEN breaks OR first_off IS NULL THEN attempt_id ELSE first_off.attempt END AS attempt_id,
       NULL AS rank,
       fault,
       CASE
           WHEN kind = 'jump' THEN 'warning'
           WHEN kind = 'restart' AND optimizer_state_step IS NULL THEN 'warning'
           WHEN breaks
           THEN CASE WHEN abs(learning_rate - meant) >= $small * peak THEN 'error' ELSE 'warning' END
           WHEN first_off IS NOT NULL
           THEN CASE
               WHEN replays OR abs(first_off.rate - first_off.meant) >= $small * peak THEN 'error'
               ELSE 'warning'
           END
           -- A second stage, scaled down, would look like this.
           WHEN replays AND abs(share - 1) <= $tolerance AND optimizer_state_step IS NOT NULL THEN 'error'
           ELSE 'warning'
       END AS severity,
       -- Rates, or positions where the rate itself was right.
       CASE
           WHEN breaks THEN learning_rate
           WHEN first_off IS NOT NULL THEN first_off.rate
           ELSE scheduler_step - steps
       END AS observed,
       CASE
           WHEN breaks THEN meant
           WHEN first_off IS NOT NULL THEN first_off.meant
           ELSE position_before
       END AS expected,
       CASE
           WHEN fault AND breaks
           THEN format(
               'resumed after update {} at a rate of {:.6g} where {:.6g} was due: {}',
               CASE WHEN done > 0 THEN done::VARCHAR ELSE format('at position {}', position_before) END,
               learning_rate,
               meant,
               CASE kind
                   WHEN 'late'
                   THEN 'the rate of the update before once more, so the schedule is one step late'
                   WHEN 'early' THEN 'one step was passed over, so the schedule is one step early'
                   WHEN 'restart' THEN 'the rate of the run''s first update, so the schedule has begun again'
                   WHEN 'peak' THEN 'the highest rate of the run again'
                   WHEN 'twice'
                   THEN format(
                       'the schedule was applied twice, to a rate that it had set to {:.3g} of the peak '
                       || 'already',
                       meant / peak
                   )
                   ELSE format(
                       '{:.3g} times as much; a second stage that is not declared looks the same',
                       learning_rate / nullif(meant, 0)
                   )
               END
           )
           WHEN fault AND first_off IS NOT NULL
           THEN format(
               'resumed after update {}; update {} was done again at a rate of {:.6g} '
               || 'where the launch before had {:.6g}',
               done,
               first_off.update_id,
               first_off.rate,
               first_off.meant
           )
           WHEN fault AND replays
           THEN format(
               'resumed after update {} at the right rate, {:.6g}, with the scheduler at position {} '
               || 'where it stood at {}: the rates that follow are {} that the run had there before',
               done,
               learning_rate,
               scheduler_step - steps,
               position_before,
               CASE WHEN abs(share - 1) <= $tolerance THEN 'those' ELSE format('{:.3g} of those', share) END
           )
           WHEN fault
           THEN format(
               'resumed after update {} at the right rate, {:.6g}, with the scheduler at position {} '
               || 'where it stood at {}: what follows is {} early or late',
               done,
               learning_rate,
               scheduler_step - steps,
               position_before,
               CASE WHEN abs(shift) = 1 THEN '1 step' ELSE format('{} steps', abs(shift)) END
           )
       END AS message
FROM judged
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       CASE
           WHEN new_stage THEN FALSE
           WHEN another THEN TRUE
           WHEN shift < 0 OR shift > apart THEN TRUE
           WHEN shift = 0 THEN FALSE
       END AS fault,
       CASE WHEN another THEN 'warning' ELSE 'error' END AS severity,
       position AS observed,
       position + shift AS expected,
       CASE
           WHEN another
           THEN format(
               'resumed after step {:,} with another schedule, {}{} from {:.6g}, where it was {}{} from '
               || '{:.6g}; a second stage that is not declared looks the same',
               done,
               schedule,
               coalesce(format(' of {:,} updates', length), ''),
               peak,
               schedule_before,
               coalesce(format(' of {:,} updates', length_before), ''),
               peak_before
           )
           ELSE format(
               'resumed after step {:,}; by its rate at step {:,} the schedule stands at {:,} where {:,} '
               || 'was due: {:,} {}',
               done,
               attempt_id,
               position,
               position + shift,
               abs(shift),
               CASE
                   WHEN shift < 0 THEN 'too far'
                   WHEN position <= attempt_id - done + 1 THEN 'back, so it has begun again'
                   ELSE 'back'
               END
           )
       END AS message
FROM logged
