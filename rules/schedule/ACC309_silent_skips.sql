/*
code = "ACC309"
name = "silent-skips"
severity = "note"
since = "0.1.0"
scope = "run"
scope_is_empty = "no schedule is declared or recognised whose rates tell positions"
needs = ["learning_rate"]
summary = "the logged rates show a schedule that moved fewer steps than the log counts"
why = '''
A scaler that meets an overflow skips the optimizer's step. Trainers then hold the schedule and count the
step all the same, and few logs say a word of it.

The rate still tells. A schedule with known numbers has each rate at one position. Where the log's counter
runs ahead of that position, updates are missing. They cost little when they are few. They explain why the
last rate is not the planned one, why a resumed run is off by some steps, and when the loss scale was
searching.
'''
example = '''
A cosine from 1e-4 to 0 over 11,900 steps, logged every ten.

    step 4,000    the rate of position 4,000
    step 4,010    the rate of position 4,009: one skip since step 4,000
    step 11,900   the rate of position 11,896: four skips in all

The run made 11,896 updates and not 11,900, and its last rate is 2.8e-11 and not 0.
'''
fix = '''
Where the skips are few or early, do nothing: a scaler finds its scale so. Where not, log the loss scale.

Hand-written loop: Log the scale beside the rate, and count an update only where the step was applied.
DDP: The same. All ranks skip together.
FSDP: As for DDP.
Trainer: global_step counts skipped steps. bf16 has no overflows of this kind.
Accelerate: accelerator.optimizer_step_was_skipped says so for each step.
Lightning: The precision plugin's scaler holds the scale.
DeepSpeed: Its own log counts skipped steps. Where it does, they are known and not told here.
'''
not_a_fault_when = '''
A distance of 0 or 1 that stays is a version's habit: some write the rate that was used, some the next one.
A ledger of this program tells every skip itself and is not looked at. Skips that a log tells itself
(DeepSpeed's skipped, Megatron's skipped iterations, fairseq's overflows) are taken off first.

What is proved is that the schedule moved less than the counter. A scaler's skip looks so, and so does a
scheduler that was not stepped for another reason. Where the rate is flat, or printed with too few digits to
tell two positions apart, only two records are known between which it happened.

A schedule that was neither declared nor recognised without doubt, or that counts something else than
updates, is not judged.
'''
references = [
    "huggingface/transformers#11144",
    "huggingface/accelerate#139",
    "deepspeedai/DeepSpeed#931",
]

[params]
listed = 6  # how many places the message lists
*/
WITH told AS (
    SELECT p.run_id,
           p.launch,
           p.optimizer,
           p.attempt_id,
           p.position,
           p.lag - coalesce(w.attempt_id - w.optimizer_update_id, 0) AS behind
    FROM positions AS p
    JOIN windows AS w USING (run_id, launch, optimizer, attempt_id)
    WHERE p.lag IS NOT NULL
),
moves AS (
    SELECT *,
           -- What a resumed launch inherits was told of the launch before.
           coalesce(lag(behind) OVER whole_run, 0) AS behind_before,
           coalesce(lag(attempt_id) OVER whole_run, 0) AS attempt_before,
           behind - behind_before AS lost
    FROM told
    WINDOW whole_run AS (PARTITION BY run_id, optimizer ORDER BY launch, attempt_id)
),
skips AS (
    SELECT run_id,
           launch,
           optimizer,
           sum(lost) FILTER (lost > 0) AS skipped,
           min(attempt_id) FILTER (lost > 0) AS attempt_id,
           count(*) FILTER (lost > 0) AS places,
           list(
               format(
                   '{}{}',
                   CASE WHEN lost > 1 THEN format('{:,} ', lost::BIGINT) ELSE '' END,
                   CASE
                       WHEN attempt_before = 0 THEN format('by {:,}', attempt_id)
                       ELSE format('between {:,} and {:,}', attempt_before, attempt_id)
                   END
               )
               ORDER BY attempt_id
           ) FILTER (lost > 0) AS told_at,
           -- A log that begins two or more steps behind may also write the rate that was used.
           bool_or(attempt_before = 0 AND lost > 1) AS habit_unknown,
           max(attempt_id) AS last_attempt,
           max_by(position, attempt_id) AS last_position
    FROM moves
    GROUP BY ALL
)
SELECT k.run_id,
       k.launch,
       k.optimizer,
       k.attempt_id,
       NULL AS rank,
       coalesce(k.skipped > 0, FALSE) AS fault,
       k.skipped::DOUBLE AS observed,
       0.0 AS expected,
       CASE
           WHEN k.skipped > 0
           THEN format(
               '{:,} {}: {}{}; the schedule moved less than the counter by as much, as it does where a '
               || 'scaler skips: at step {:,} the {} schedule{} stands at {:,}{}',
               k.skipped::BIGINT,
               CASE WHEN k.skipped = 1 THEN 'skip' ELSE 'skips' END,
               array_to_string(list_slice(k.told_at, 1, $listed::BIGINT), ', '),
               CASE
                   WHEN k.places > $listed
                   THEN format(' and in {:,} more places', (k.places - $listed)::BIGINT)
                   ELSE ''
               END,
               k.last_attempt,
               s.schedule,
               coalesce(format(' of {:,} steps', s.schedule_updates), ''),
               k.last_position,
               CASE
                   WHEN k.habit_unknown
                   THEN '; one fewer if the log writes the rate that was used and not the next one'
                   ELSE ''
               END
           )
       END AS message
FROM skips AS k
JOIN schedules AS s USING (run_id, launch, optimizer)
