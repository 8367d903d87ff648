/*
code = "ACC206"
name = "window-straddles-epochs"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "every step ran a closure, or no window held two micro-steps"
needs = ["events", "microbatches", "epoch"]
explains = ["ACC104", "ACC106", "ACC204", "ACC504", "ACC802"]
summary = "a window began in one epoch and ended in the next"
why = '''
The data ended inside a window, its gradients were kept, and the first batches of the next epoch were added
to them.

Where the loop counts its batches anew in every epoch, such a window holds the rest of one epoch and a whole
window of the next, divided by the usual number: it is too heavy. Where the count goes on over epochs the
update is right. Only what happens between the epochs (an evaluation, a checkpoint, a step of a schedule)
finds old gradients waiting.
'''
example = '''
Epochs of 6 batches, a step whenever (i + 1) % 4 == 0, and no clear between the epochs. Batches 5 and 6 of
the first epoch stay, and the first step of the second epoch adds batches 1 to 4 to them. Six losses divided
by 4 weigh 6/4 = 1.5. From the second epoch on this is every update, because each epoch has one.
'''
fix = '''
End the window with the data, or clear what is left, or count over epochs throughout.

Hand-written loop: Add or i + 1 == len(loader) to the step's condition, and divide by what the window holds.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Give the dataset a length. Without one the rest of an epoch leaks into the next.
Accelerate: Leave sync_with_dataloader on, or turn it off and count over epochs yourself.
Lightning: Automatic optimization ends a window with the data. In manual optimization count by hand.
DeepSpeed: The engine counts over epochs: let nothing else decide where a window ends.
'''
not_a_fault_when = '''
A rest that is cleared when the data ends was dropped: that is ACC205. A loader that fetches ahead sees its
end some batches early: the window straddles only where the next pass over the data had begun before it
ended.

It is a note where the window has its usual number of micro-steps and weighs 1, as in a loop over an endless
stream or under an engine that counts over epochs: nothing is wrong with the update. It is a warning where
the weights are unknown, or right with more micro-steps than usual. It is an error where they are wrong,
compared with the launch's whole windows within an epoch.

Steps that run a closure are left out. A loop whose data the hooks do not watch has no epochs.
'''
references = [
    "WalkingMeatAxolotl/AnimaLoraStudio#305",
    "timoschick/pet#25",
]
*/
WITH ends AS (
    -- Where the data ended or a new pass began, inside an optimizer's transaction.
    SELECT DISTINCT run_id, launch, coalesce(optimizer, 0) AS optimizer, attempt_id + 1 AS attempt_id, rank,
           micro_step_id, epoch, kind
    FROM marks
    WHERE kind IN ('end_of_data', 'epoch_end')
      AND micro_step_id IS NOT NULL
),
placed AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           bool_or(
               e.micro_step_id > u.micro_step_id - u.microbatches
               AND e.micro_step_id < u.micro_step_id
               -- The end alone may have been seen ahead: then no new pass has begun.
               AND (e.kind = 'epoch_end' OR e.epoch < u.epoch OR u.epoch IS NULL)
           ) AS straddles,
           max(e.micro_step_id - u.micro_step_id + u.microbatches) FILTER (
               e.micro_step_id > u.micro_step_id - u.microbatches AND e.micro_step_id < u.micro_step_id
           ) AS of_the_old
    FROM ends AS e
    JOIN updates AS u USING (run_id, launch, optimizer, attempt_id, rank)
    GROUP BY ALL
),
windows_of_epochs AS (
    SELECT w.*,
           p.of_the_old,
           CASE
               WHEN p.straddles IS NOT NULL THEN p.straddles
               WHEN NOT contains(w.word, '|') THEN FALSE
               WHEN NOT regexp_matches(w.word, '[bB][^Z]*\|[^Z]*[bB][^Z]*$') THEN FALSE
               WHEN w.word IS NOT NULL THEN coalesce(w.epoch_changed, w.epoch > 1, TRUE)
           END AS straddles
    FROM windows AS w
    LEFT JOIN placed AS p USING (run_id, launch, optimizer, attempt_id)
    WHERE w.closure IS NOT TRUE
      AND (w.microbatches > 1) IS NOT FALSE
      -- A skipped attempt did nothing with them.
      AND w.applied IS NOT FALSE
),
-- What the launch's whole windows within an epoch weigh: 1, or a coefficient that all share.
usual AS (
    SELECT run_id, launch, optimizer, median(total_weight) AS usual_weight
    FROM windows_of_epochs
    SEMI JOIN (SELECT run_id, launch, optimizer FROM windows_of_epochs WHERE straddles)
        USING (run_id, launch, optimizer)
    WHERE NOT straddles
      AND microbatches = accumulation_steps
      AND applied
    GROUP BY ALL
),
weighed AS (
    SELECT w.*,
           coalesce(u.usual_weight, 1.0) AS meant_weight,
           abs(w.total_weight / meant_weight - 1) > w.tolerance AS wrong
    FROM windows_of_epochs AS w
    LEFT JOIN usual AS u USING (run_id, launch, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       -- Without epochs nothing tells where the data ended.
       CASE WHEN straddles OR data_watched THEN straddles END AS fault,
       CASE
           WHEN wrong THEN 'error'
           WHEN NOT wrong AND (microbatches > accumulation_steps) IS NOT TRUE THEN 'note'
           ELSE 'warning'
       END AS severity,
       total_weight AS observed,
       meant_weight AS expected,
       CASE
           WHEN straddles
           THEN format(
               'the data ended{} and began again inside the window: {}',
               coalesce(format(' after {} of {} micro-steps', of_the_old, microbatches), ''),
               CASE
                   WHEN wrong
                   THEN format(
                       'it weighs {:.3f}{}',
                       total_weight,
                       CASE
                           WHEN abs(meant_weight - 1) <= tolerance THEN ' of an update'
                           ELSE format(' where whole ones within an epoch weigh {:.3f}', meant_weight)
                       END
                   )
                   WHEN total_weight IS NULL THEN 'what it weighs is not known'
                   ELSE format('it weighs {:.3f}, as a window should', total_weight)
               END
           )
       END AS message
FROM weighed
