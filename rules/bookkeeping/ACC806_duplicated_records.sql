/*
code = "ACC806"
name = "duplicated-records"
severity = "warning"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no attempt was recorded"
needs = ["attempt_id"]
explains = ["ACC801"]
summary = "an attempt was recorded more than once"
why = '''
The auditor joins records by rank and attempt and keeps the first of each. A second one means that the
ledger was written twice: two processes believe that they are the same rank, two recorders sit on one
optimizer, or a file was copied into the folder. What the second one says is left out of every figure, and
it may be the one that is true.

In a log of another program, a step that stands twice means that two processes, or two engines of one, wrote
into the same file: its curve is two curves.
'''
example = '''
A folder holds rank 0's file and a copy of it from a backup: 400 records for 200 attempts. Read twice, a run
of 372,000 tokens would have trained on 744,000. Two jobs that both write as rank 0 into one folder give the
same count, with other times and other losses.
'''
fix = '''
Give each run a folder of its own and each rank one recorder. Move copies of ledgers out of the run's
folder. In logs of other programs, let one process write each file.

Hand-written loop: Attach once for each optimizer, and take log_dir from the job, not from a constant.
DDP: Start all ranks by one launcher, so that rank and launch differ.
FSDP: As for DDP.
Trainer: Add the callback once.
Accelerate: Attach once, to the prepared optimizer.
Lightning: Add the callback once.
DeepSpeed: Attach once, to the engine.
'''
not_a_fault_when = '''
Updates that a later launch does again, because it resumed from a checkpoint before the end, are recorded
twice and truly happened twice. The later ones count, and the finding is a note. Several ranks write one
record each for the same attempt: these are no duplicates.

A log that repeats a step now and then, on the very next line, sums it up once more at the end of an epoch:
it is silent. So is a logbook that quotes several trials of one step.
'''
references = [
    "huggingface/accelerate#3552",
]
*/
WITH formats AS (
    SELECT DISTINCT run_id, launch, format
    FROM runs
),
again AS (
    SELECT d.run_id,
           d.launch,
           d.optimizer,
           d.attempt_id,
           d.rank,
           1 + count(*) AS records,
           bool_and(d.time = u.time AND d.seq IS NOT DISTINCT FROM u.seq) AS copies,
           bool_and(d.file = u.file) AS same_file,
           arg_min(d.file, d.line ORDER BY d.file) AS other_file,
           min(d.line) AS other_line,
           bool_and(d.learning_rate IS NOT DISTINCT FROM u.learning_rate) AS same_rate,
           same_rate
               AND bool_and(d.reported_loss IS NOT DISTINCT FROM u.reported_loss)
               AND bool_and(d.grad_norm_before_clip IS NOT DISTINCT FROM u.grad_norm_before_clip) AS same_values
    FROM duplicates AS d
    JOIN updates AS u USING (run_id, launch, optimizer, attempt_id, rank)
    GROUP BY ALL
),
-- The lines of foreign logs, in their order.
logged AS (
    SELECT *,
           lag(attempt_id) OVER (PARTITION BY run_id, optimizer, file ORDER BY line, place) AS step_above
    FROM (
        SELECT run_id, optimizer, attempt_id, file, line, place, TRUE AS counts FROM updates
        UNION ALL
        SELECT run_id, optimizer, attempt_id, file, line, place, FALSE AS counts FROM duplicates
    )
    WHERE run_id IN (SELECT run_id FROM formats WHERE format NOT IN ('ledger', 'logbook'))
),
logs AS (
    SELECT run_id,
           optimizer,
           steps,
           backwards,
           doubled,
           -- Twice on end, now and then: a summary of an epoch.
           doubled <= 0.1 * steps AND backwards = 0 AS is_summary,
           CASE
               WHEN same_values >= 0.9 * doubled THEN 'copies'
               WHEN same_rate <= 0.1 * doubled THEN 'engines'
               WHEN backwards > 0.1 * steps OR repeated > 0.5 * steps THEN 'writers'
               ELSE 'restart'
           END AS cause
    FROM (
        SELECT run_id,
               optimizer,
               count(*) FILTER (counts) AS steps,
               count(*) FILTER (attempt_id < step_above) AS backwards,
               count(*) FILTER (attempt_id = step_above) AS repeated
        FROM logged
        GROUP BY ALL
    )
    JOIN (
        SELECT run_id,
               optimizer,
               count(*) AS doubled,
               count(*) FILTER (same_values) AS same_values,
               count(*) FILTER (same_rate) AS same_rate
        FROM again
        GROUP BY ALL
    ) USING (run_id, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       a.records IS NOT NULL AND is_summary IS NOT TRUE AND format <> 'logbook' AS fault,
       coalesce(a.records, 1)::DOUBLE AS observed,
       1.0 AS expected,
       CASE
           WHEN cause IS NOT NULL
           THEN format(
               '{} of {} steps stand more than once in this log, with {}; this one again on line {}',
               doubled,
               steps,
               CASE cause
                   WHEN 'copies' THEN 'the same values: several processes logged the same, or it was copied'
                   WHEN 'engines' THEN 'other rates: two engines, or two trainings, wrote it'
                   WHEN 'writers' THEN 'other losses: two processes wrote it'
                   ELSE format('other losses, and it goes back {} times: a training was started again', backwards)
               END,
               a.other_line
           )
           ELSE format(
               'rank {} recorded this attempt {} times ({}); the first is kept, the other is line {} of {}',
               rank,
               a.records,
               CASE
                   WHEN a.copies THEN 'the lines are copies'
                   WHEN a.same_file THEN 'two recorders wrote into one file'
                   ELSE 'two writers used the same rank and launch'
               END,
               a.other_line,
               a.other_file
           )
       END AS message,
       CASE WHEN cause = 'restart' THEN 'note' ELSE 'warning' END AS severity
FROM updates AS u
JOIN formats USING (run_id, launch)
LEFT JOIN again AS a USING (run_id, launch, optimizer, attempt_id, rank)
LEFT JOIN logs USING (run_id, optimizer)
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       TRUE AS fault,
       2.0 AS observed,
       1.0 AS expected,
       format(
           '{} {} was made in launch {} and again in a later one, which resumed from before it{}',
           CASE WHEN counts_updates THEN 'update' ELSE 'step' END,
           number,
           launch,
           CASE
               WHEN first_again < last_again
               THEN format(
                   '; in all it made {} {} to {} again',
                   CASE WHEN counts_updates THEN 'updates' ELSE 'steps' END,
                   first_again,
                   last_again
               )
               ELSE ''
           END
       ) AS message,
       'note' AS severity
FROM (
    SELECT *,
           -- A foreign log is told by its own steps, as far as it knows any.
           format = 'ledger' AS counts_updates,
           CASE WHEN counts_updates THEN optimizer_update_id ELSE attempt_id END AS number,
           min(number) OVER redone AS first_again,
           max(number) OVER redone AS last_again
    FROM superseded
    JOIN formats USING (run_id, launch)
    WHERE format <> 'logbook'
    WINDOW redone AS (PARTITION BY run_id, launch, optimizer)
)
