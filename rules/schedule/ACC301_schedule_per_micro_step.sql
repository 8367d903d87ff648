/*
code = "ACC301"
name = "schedule-per-micro-step"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no attempt followed a backward outside a closure"
needs = ["events", "scheduler_steps_per_update"]
explains = ["ACC303", "ACC304", "ACC305"]
summary = "the learning-rate schedule advances with the micro-steps, not with the updates"
why = '''
A scheduler that is stepped after every backward moves as often as there are micro-steps in an update.

If its numbers (warm-up, horizon) were counted in updates, the warm-up is too short by that factor, and the
rate reaches its end early in the run. What follows trains at the last rate, often 0, or climbs again on a
cosine. If its numbers were counted in micro-steps the run ends as planned, but the schedule changes
whenever the accumulation count does.
'''
example = '''
A linear decay from 0.1 to 0 over 1,000 updates, 4 micro-steps an update, and scheduler.step() after each
backward. The schedule stands at 4, 8, 12 after the first three updates, and at 1,000 after update 250.
Three quarters of the run train at a rate of 0; the mean rate is 0.0125 instead of 0.05. A warm-up of 16
updates is over after 4.
'''
fix = '''
Step the scheduler once for each update, after the optimizer's step.

Hand-written loop: Move scheduler.step() beside optimizer.step(), under the same condition.
DDP: The same. Every rank steps its own scheduler.
FSDP: As for DDP.
Trainer: Hand over a scheduler that is not prepared: it is stepped once for each update. num_training_steps
  counts updates.
Accelerate: Prepare the scheduler, so that it holds still inside accumulate(). A prepared one steps
  num_processes times for each update: multiply its horizon by that number.
Lightning: Interval "step" counts updates. In manual optimization step it where you step the optimizer.
DeepSpeed: Give the scheduler to initialize() and let the engine step it.
'''
not_a_fault_when = '''
Left out are steps before the first backward (set-up, resume) or after an attempt without one, a scheduler
that is stepped once an epoch or once a validation, and one step for each skipped attempt. As many steps are
right as the declared scheduler_steps_per_update allows; for Accelerate's prepared scheduler that is the
number of processes.

Schedulers whose numbers count micro-steps on purpose get a note, and so does every run whose length is
unknown.

It is an error in three cases. The declared planned_updates say that the schedule ends before 90 % of the
run, and the rates do not speak against it. Or the rate was seen at its end (0, or the declared minimum)
before 90 % of the recorded updates. Or the steps inside the windows are neither one for each update nor one
for each micro-step, so that the pace is wrong whichever of the two the numbers count.
'''
references = [
    "Lightning-AI/pytorch-lightning#1476",
    "huggingface/accelerate#963",
    "huggingface/transformers#23986",
    "huggingface/accelerate#2926",
    "starVLA/starVLA#210",
    "jiaweizzhao/GaLore#62",
    "tracel-ai/burn#5695",
]

[params]
share_of_run = 0.9  # a schedule that ends before this share of the run is an error
*/
WITH contracts AS (
    SELECT run_id,
           launch,
           max(scheduler_steps_per_update) AS declared_contract,
           max(planned_updates) AS planned,
           coalesce(max(schedule_unit), 'updates') = 'updates' AS counts_updates,
           coalesce(max(min_learning_rate), 0) AS lowest_rate
    FROM runs
    GROUP BY ALL
),
counted AS (
    SELECT w.*,
           c.planned,
           c.counts_updates,
           c.lowest_rate,
           -- A scheduler given late is not on the run line, but its steps are in the words.
           CASE
               WHEN c.declared_contract IS NOT NULL THEN c.declared_contract
               WHEN w.scheduler_step_max IS NOT NULL OR contains(w.word, 'S') THEN 1
           END AS contract,
           -- Steps before the first backward set the schedule up.
           length(regexp_replace(regexp_replace(word, '^[^bBOX]*', ''), '[^S]', '', 'g')) AS steps,
           -- A step beside Z, | or o ends something else: a dropped tail, an epoch, another optimizer's step.
           regexp_matches(word, '[bB][^Zo|]*S[^Zo|]*[bB]') AS between_backwards,
           discarded_microbatches // greatest(coalesce(accumulation_steps, microbatches), 1) + 1 AS windows,
           length(regexp_replace(word, '[^|]', '', 'g')) AS epochs_ended,
           learning_rate_max AS rate,
           lag(learning_rate_max) OVER attempts AS rate_before
    FROM windows AS w
    LEFT JOIN contracts AS c USING (run_id, launch)
    WHERE closure IS NOT TRUE
      AND regexp_matches(word, '[bB]') IS NOT FALSE
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
paced AS (
    SELECT *,
           avg(steps) OVER launches AS pace,
           -- Once an epoch or a validation is not with every window.
           avg((steps > 0)::INTEGER) OVER launches > 0.5 AS steady,
           -- One in every three micro-steps of four counts neither the updates nor the micro-steps.
           avg(microbatches + discarded_microbatches) OVER launches AS micro_steps,
           count(*) OVER launches > 2
               AND avg(between_backwards::INTEGER) OVER launches > 0.5
               AND min(steps) OVER launches < max(steps) OVER launches
               AND pace > 1.05 * contract
               AND pace < 0.95 * contract * micro_steps AS counts_neither,
           coalesce(scheduler_step_max, optimizer_update_id * steps) AS position,
           optimizer_update_id + (planned * contract - position) / nullif(pace, 0) AS ends_at,
           max(optimizer_update_id) OVER launches AS last_update,
           max(optimizer_update_id) FILTER (rate > lowest_rate) OVER launches AS last_moving_update,
           -- Where the last two rates fall, the update at which their line meets the lowest rate.
           last_value(
               CASE
                   WHEN rate < rate_before
                   THEN optimizer_update_id + (rate - lowest_rate) / (rate_before - rate)
               END
           ) OVER launches AS rates_end_at
    FROM counted
    WINDOW launches AS (
        PARTITION BY run_id, launch, optimizer
        ORDER BY attempt_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
),
judged AS (
    SELECT *,
           steps > contract * (windows + epochs_ended) AS too_many,
           too_many OR (between_backwards AND steady AND contract IS NOT NULL) AS fault,
           steps > contract
               AND counts_updates
               AND ends_at < $share_of_run * planned
               AND coalesce(rates_end_at < 0.8 * planned, TRUE) AS declared_short,
           steps > contract
               AND last_moving_update < $share_of_run * last_update
               AND last_moving_update < last_update - 1 AS seen_short,
           fault AND counts_updates AND counts_neither AS off_pace
    FROM paced
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       steps::DOUBLE AS observed,
       contract AS expected,
       format(
           'the scheduler took {} {} in an update of {} micro-steps where {:g} belongs to it: {}',
           steps,
           CASE WHEN steps = 1 THEN 'step' ELSE 'steps' END,
           microbatches,
           contract,
           CASE
               WHEN seen_short
               THEN format(
                   'after update {} of {} so far the rate was at its end, {:g}',
                   last_moving_update,
                   last_update,
                   lowest_rate
               )
               WHEN declared_short
               THEN format(
                   'at this pace a schedule of the declared {} updates ends at update {:.0f}',
                   planned,
                   ends_at
               )
               WHEN off_pace
               THEN format(
                   '{:.3g} in each update of {:.3g} micro-steps count neither the updates '
                   || 'nor the micro-steps',
                   pace,
                   micro_steps
               )
               WHEN too_many AND between_backwards
               THEN 'the schedule counts micro-steps and changes with the accumulation'
               WHEN too_many
               THEN 'the schedule does not count updates, and nothing declares what it counts'
               ELSE 'it was taken between two backwards, so the update already used the rate after it'
           END
       ) AS message,
       CASE WHEN declared_short OR seen_short OR off_pace THEN 'error' ELSE 'note' END AS severity
FROM judged
