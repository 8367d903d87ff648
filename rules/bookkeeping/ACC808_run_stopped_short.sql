/*
code = "ACC808"
name = "run-stopped-short"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "nothing says that the run has ended"
needs = ["planned_updates"]
explains = ["ACC305"]
summary = "the run did fewer updates or epochs than were planned"
why = '''
A run that came to its end before its plan leaves the schedule unfinished and part of the data unseen, and
it says so nowhere: the loop ended, the model was saved.

The plan and the loop count differently. One rounds the windows of an epoch up and the other down, a data
set shrank, a sampler ran dry on one rank, or windows run across the ends of epochs. A log that ends before
its plan may also be of a run that was stopped, that failed without a word, or that goes on elsewhere.
'''
example = '''
An epoch of 1,907 micro-batches has 476 windows of 4, and three micro-batches more. The plan for 25 epochs
is 25 * 476 = 11,900 updates. The windows run across the ends of epochs, so these updates take 11,900 * 4 =
47,600 of the 25 * 1,907 = 47,675 micro-batches. The run ends at epoch 24.96 and not at 25.
'''
fix = '''
Count the plan as the loop counts: the micro-batches of an epoch by the accumulation count, rounded up where
the last window may be short, and down where it is dropped. Where a run was stopped on purpose there is
nothing to do.

Hand-written loop: Declare planned_updates from the number of windows that the loop will really make.
DDP: Give every rank equally many batches.
FSDP: Give every rank equally many batches.
Trainer: Newer versions end the window with the epoch. drop_last makes both counts equal.
Accelerate: sync_with_dataloader of the GradientAccumulationPlugin ends the window with the data.
Lightning: The last window of an epoch is stepped, and estimated_stepping_batches counts it.
DeepSpeed: Choose a number of samples that is a multiple of the global batch, or plan in samples.
'''
not_a_fault_when = '''
Skipped attempts count as done: the plan counts them too. What is less than one update, or less than the
distance of two records, is silent, and so is an epoch that is not finished because the plan is one of
updates.

It is a note where up to 1 % is missing, where nothing says that the run finished, and where the run ended
right after an evaluation, as early stopping does. The state in an intermediate checkpoint, and a ledger
that is still written, are not checked.
'''
references = [
    "huggingface/transformers#33455",
    "huggingface/transformers#31677",
    "Lightning-AI/pytorch-lightning#19684",
]

[params]
small = 0.01  # up to this missing share of the plan it is a note
*/
WITH last_launches AS (
    SELECT run_id,
           max(launch) AS launch,
           any_value(format) AS format
    FROM runs
    GROUP BY ALL
),
plans AS (
    SELECT l.run_id,
           l.launch,
           l.format,
           max(r.planned_updates) AS planned,
           max(r.planned_epochs) AS planned_epochs,
           max(r.accumulation_steps) AS accumulation,
           coalesce(max(r.schedule_unit), 'updates') = 'updates' AS in_updates,
           max(r.recorded_every) AS every,
           max(len(r.optimizers)) > 1 AS several_optimizers
    FROM last_launches AS l
    JOIN runs AS r USING (run_id, launch)
    GROUP BY ALL
),
closes AS (
    SELECT run_id,
           launch,
           TRUE AS closed,
           bool_or(finished) AS finished,
           max(attempt_id) FILTER (kind = 'close') AS attempts,
           -- Early stopping ends a run right after it has evaluated.
           coalesce(
               max(attempt_id) FILTER (kind = 'eval') >= max(attempt_id) FILTER (kind = 'close'), FALSE
           ) AS ends_with_evaluation
    FROM marks
    WHERE kind IN ('close', 'eval')
    GROUP BY run_id, launch
    HAVING bool_or(kind = 'close')
),
epochs AS (
    SELECT run_id,
           arg_max(reported_epoch, attempt_id) AS logged_epoch,
           max(attempt_id) AS epoch_at
    FROM updates
    WHERE reported_epoch IS NOT NULL
    GROUP BY ALL
),
done AS (
    SELECT run_id,
           max(last_attempt) AS last_attempt,
           max(last_update) AS last_update,
           sum(skipped) AS skipped,
           max_by(last_attempt, launch) AS last_recorded
    FROM (
        SELECT run_id,
               launch,
               max(attempt_id) AS last_attempt,
               max(optimizer_update_id) AS last_update,
               -- Those between two records as well.
               greatest(
                   count(*) FILTER (applied IS FALSE),
                   (max(attempt_id) - max(optimizer_update_id))
                   - min_by(attempt_id - optimizer_update_id - (applied IS FALSE)::BIGINT, attempt_id)
               ) AS skipped
        FROM windows
        WHERE optimizer = 0
        GROUP BY ALL
    )
    GROUP BY ALL
),
measured AS (
    SELECT p.*,
           d.last_attempt,
           c.closed,
           c.finished,
           c.ends_with_evaluation,
           -- A log counts its own steps, a ledger its updates; skipped ones were planned like others.
           CASE
               -- Attempts behind the last record are known from the end alone.
               WHEN p.format = 'ledger'
               THEN d.last_update + d.skipped + coalesce(greatest(c.attempts - d.last_recorded, 0), 0)
               -- Its plan and its log count updates alone.
               WHEN p.format = 'fairseq' THEN coalesce(d.last_update, d.last_attempt)
               ELSE greatest(d.last_attempt, coalesce(c.attempts, 0))
           END AS done,
           e.logged_epoch,
           e.epoch_at,
           e.epoch_at / nullif(e.logged_epoch, 0) AS updates_per_epoch,
           -- The last steps of a log need not have a record.
           e.logged_epoch + coalesce(greatest(done - e.epoch_at, 0) / updates_per_epoch, 0) AS epoch,
           -- Many logs round the epoch to two digits.
           CASE
               WHEN round(e.logged_epoch, 2) = e.logged_epoch THEN 0.005
               ELSE 1e-6 * e.logged_epoch
           END AS epoch_error,
           ceil(e.epoch_at * p.accumulation / (e.logged_epoch + epoch_error)) AS fewest,
           floor(e.epoch_at * p.accumulation / nullif(e.logged_epoch - epoch_error, 0)) AS most,
           CASE WHEN fewest = most AND e.logged_epoch > epoch_error THEN most::BIGINT END AS micro_batches
    FROM plans AS p
    JOIN done AS d USING (run_id)
    LEFT JOIN closes AS c USING (run_id, launch)
    LEFT JOIN epochs AS e USING (run_id)
),
judged AS (
    SELECT *,
           done < planned AS stops_short,
           -- The plan is one of epochs where its updates are so many whole windows in each.
           done >= planned
               AND planned % nullif(planned_epochs, 0) = 0
               AND planned / planned_epochs = floor(updates_per_epoch + 1e-9)
               AND (planned_epochs - epoch - epoch_error) * updates_per_epoch >= 1 AS misses_epochs,
           CASE
               WHEN planned IS NULL OR done IS NULL OR NOT in_updates OR several_optimizers THEN NULL
               WHEN coalesce(misses_epochs, FALSE) AND finished IS NOT FALSE THEN TRUE
               WHEN done >= planned THEN FALSE
               -- The last steps of a run fall between two records.
               WHEN finished IS NOT FALSE AND done % every = 0 AND planned - done < every THEN FALSE
               ELSE TRUE
           END AS fault
    FROM measured
    -- Without an end a ledger is still written, a state is a checkpoint's, and a logbook quotes some lines.
    WHERE closed
       OR format NOT IN ('ledger', 'trainer_state', 'logbook')
       OR done >= planned
)
SELECT run_id,
       launch,
       0 AS optimizer,
       last_attempt AS attempt_id,
       NULL AS rank,
       fault,
       CASE WHEN stops_short THEN done ELSE epoch END::DOUBLE AS observed,
       CASE WHEN stops_short THEN planned ELSE planned_epochs END::DOUBLE AS expected,
       CASE
           WHEN NOT fault THEN NULL
           WHEN stops_short
           THEN format(
               '{} {:,} of {:,} updates{}{}',
               CASE
                   WHEN finished THEN 'the run finished with'
                   WHEN finished IS FALSE THEN 'the run broke off at'
                   ELSE 'the record ends at'
               END,
               done,
               planned,
               CASE
                   WHEN logged_epoch IS NULL THEN ''
                   WHEN epoch_at = done THEN format(', epoch {:.4g}', logged_epoch)
                   ELSE format(', epoch {:.4g} at {:,}', logged_epoch, epoch_at)
               END,
               CASE
                   WHEN finished AND ends_with_evaluation
                   THEN '; it ended with an evaluation, as early stopping does'
                   ELSE ''
               END
           )
           ELSE format(
               '{:.2f} of {:g} epochs{}',
               epoch,
               planned_epochs,
               CASE
                   WHEN micro_batches % accumulation <> 0
                   THEN format(
                       ': {:,} micro-batches are no multiple of {}, and {:,} updates of {} take {:,} of {:,}',
                       micro_batches,
                       accumulation,
                       done,
                       accumulation,
                       done * accumulation,
                       (planned_epochs * micro_batches)::BIGINT
                   )
                   ELSE format(
                       ': an epoch has {:.2f} updates, and the plan counts {:.0f}',
                       updates_per_epoch,
                       floor(updates_per_epoch)
                   )
               END
           )
       END AS message,
       CASE
           WHEN finished AND stops_short AND NOT ends_with_evaluation AND done < (1 - $small) * planned
           THEN 'warning'
           WHEN finished AND misses_epochs AND epoch < (1 - $small) * planned_epochs THEN 'warning'
           ELSE 'note'
       END AS severity
FROM judged
