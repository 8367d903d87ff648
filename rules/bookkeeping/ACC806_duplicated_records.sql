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
'''
example = '''
A folder holds rank 0's file and a copy of it from a backup: 400 records for 200 attempts. Read twice, the
run would have trained on 2 * 372,000 tokens. Two jobs that write as rank 0 into the same folder give the
same count, with other times and other losses.
'''
fix = '''
Give each run its own folder and each rank one recorder.

Hand-written loop: attach once for each optimizer; take log_dir from the job, not from a constant. DDP,
FSDP: start all ranks by one launcher, so that rank and launch differ. Trainer, Lightning: add the callback
once. Accelerate, DeepSpeed: attach once, to the prepared optimizer. Move copies of ledgers out of the run's
folder.
'''
not_a_fault_when = '''
Updates that a later launch does again, because it resumed from a checkpoint before the end, are recorded
twice and truly happened twice: the later ones count, and the finding is a note. Ranks write one record each
for the same attempt: these are no duplicates.
'''
references = [
    "huggingface/accelerate#3552",
]
*/
WITH again AS (
    SELECT d.run_id,
           d.launch,
           d.optimizer,
           d.attempt_id,
           d.rank,
           1 + count(*) AS records,
           bool_and(d.time = u.time AND d.seq IS NOT DISTINCT FROM u.seq) AS copies,
           bool_and(d.file = u.file) AS same_file,
           arg_min(d.file, d.line ORDER BY d.file) AS other_file,
           min(d.line) AS other_line
    FROM duplicates AS d
    JOIN updates AS u USING (run_id, launch, optimizer, attempt_id, rank)
    GROUP BY ALL
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       a.records IS NOT NULL AS fault,
       coalesce(a.records, 1)::DOUBLE AS observed,
       1.0 AS expected,
       format(
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
       ) AS message,
       'warning' AS severity
FROM updates AS u
LEFT JOIN again AS a USING (run_id, launch, optimizer, attempt_id, rank)
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
           'update {} was made in launch {} and again in a later one, which resumed from before it{}',
           optimizer_update_id,
           launch,
           CASE
               WHEN first_again < last_again
               THEN format('; in all it made updates {} to {} again', first_again, last_again)
               ELSE ''
           END
       ) AS message,
       'note' AS severity
FROM (
    SELECT *,
           min(optimizer_update_id) OVER redone AS first_again,
           max(optimizer_update_id) OVER redone AS last_again
    FROM superseded
    WINDOW redone AS (PARTITION BY run_id, launch, optimizer)
)
