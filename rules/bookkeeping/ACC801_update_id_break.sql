/*
code = "ACC801"
name = "update-id-break"
severity = "error"
since = "0.1.0"
scope = "pair"
scope_is_empty = "no attempt directly followed another"
needs = ["optimizer_update_id"]
summary = "the number of applied updates goes back or jumps inside a launch"
why = '''
optimizer_update_id counts applied updates: one more after each, unchanged after a skip. Where it goes back,
the run stands on older parameters than the record before, or a second recorder counts along. Where it
jumps, updates were made that nothing recorded.

Every figure over updates (the schedule, the tokens, the length of the run) is wrong from there.
'''
example = '''
Ids 5, 6, 7, 4, 5: after update 7 the loop loaded the checkpoint of update 3 by itself and went on. The run
ends at "update 10" after 14 updates, four of them on parameters that no longer exist.
'''
fix = '''
Let one counter live as long as the optimizer, and say where the run goes back.

Hand-written loop: Save audit.state_dict() in the checkpoint and load it with the optimizer's state. After
  an older state has been loaded inside a launch, call audit.mark("resume"). Attach once, not in every
  epoch.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Resume in a new launch, where the ids may go back.
Accelerate: Resume in a new launch, where the ids may go back.
Lightning: Resume in a new launch, where the ids may go back.
DeepSpeed: Resume in a new launch, where the ids may go back.
'''
not_a_fault_when = '''
A new launch may begin anywhere. A mark of kind resume between two attempts explains any change there.

Attempts that are missing in the record (a torn line, every k-th recorded) allow as much of a jump as
attempts are missing. Where it is unknown whether an attempt was applied, the id may move or not.
'''
references = [
    "Lightning-AI/pytorch-lightning#17958",
    "Lightning-AI/pytorch-lightning#2242",
]
*/
WITH resumes AS (
    SELECT run_id, launch, rank, attempt_id
    FROM marks
    WHERE kind = 'resume'
),
records AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           rank,
           applied,
           optimizer_update_id AS update_id,
           lag(optimizer_update_id) OVER earlier AS update_before,
           lag(attempt_id) OVER earlier AS attempt_before
    FROM updates
    WINDOW earlier AS (PARTITION BY run_id, launch, optimizer, rank ORDER BY attempt_id)
),
pairs AS (
    SELECT *,
           attempt_id - attempt_before AS gap,
           -- The lowest and the highest id that the attempts since the record before allow.
           update_before + CASE WHEN applied THEN 1 ELSE 0 END AS lowest,
           update_before + gap - CASE WHEN NOT applied THEN 1 ELSE 0 END AS highest
    FROM records AS r
    ANTI JOIN resumes AS m
        ON m.run_id = r.run_id
        AND m.launch = r.launch
        AND m.rank = r.rank
        AND m.attempt_id >= r.attempt_before
        AND m.attempt_id < r.attempt_id
    WHERE attempt_before IS NOT NULL
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       rank,
       update_id NOT BETWEEN lowest AND highest AS fault,
       update_id::DOUBLE AS observed,
       lowest::DOUBLE AS expected,
       CASE
           WHEN fault
           THEN format(
               'the update id goes from {} to {} over {}',
               update_before,
               update_id,
               CASE
                   WHEN gap > 1 THEN format('{} attempts', gap)
                   WHEN applied IS NULL THEN 'one attempt'
                   WHEN applied THEN 'one applied attempt'
                   ELSE 'one skipped attempt'
               END
           )
       END AS message
FROM pairs
