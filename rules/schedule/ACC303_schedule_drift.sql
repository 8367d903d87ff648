/*
code = "ACC303"
name = "schedule-drift"
severity = "error"
since = "0.1.0"
scope = "run"
scope_is_empty = "no scheduler moved with most of the updates, three times or more"
needs = ["scheduler_step", "optimizer_update_id"]
summary = "the scheduler's position moves away from the number of updates"
why = '''
A schedule that is stepped with the updates stays a fixed number of steps away from them. Where the distance
grows, the schedule misses some updates or counts others twice. It never reaches its end, or reaches it
early, and the run's rates are not those that its numbers say.

The cause is often a condition that differs a little from the one that steps the optimizer: a short last
window, a remainder, an epoch's end.
'''
example = '''
Three epochs of 8 micro-steps, 3 micro-steps an update: windows of 3, 3 and 2, nine updates in all. The
scheduler is stepped where the number of the micro-step divides by 3, so it misses the windows of 2.

    updates      1  2  3  4  5  6  7  8  9
    scheduler    1  2  2  3  4  4  5  6  6

It moves 2 steps in every 3 updates. After 30,000 updates a schedule of 30,000 stands at 20,000, and a
linear decay still trains at a third of its peak.
'''
fix = '''
Step the scheduler under the very condition that steps the optimizer.

Hand-written loop: Put scheduler.step() directly after optimizer.step(), in the same branch, the short last
  window included.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Leave the scheduler to it.
Accelerate: Prepare the scheduler and call step() beside the optimizer's. It then steps num_processes times
  for each update.
Lightning: Use interval "step" with frequency 1. Other frequencies count batches and miss short windows.
DeepSpeed: Let the engine step the scheduler.
'''
not_a_fault_when = '''
The rule looks at how the distance changes, never at its size. A scheduler made before the optimizer's first
step, a fast-forward at resume and a single extra step stay silent. A position that goes back is a new
schedule. Under 1 % of the horizon, or of the run, it is a warning.

Skipped attempts are left out, whether the scheduler moved on them (ACC302) or not, and so are attempts
before which the loop cleared a whole window without a step.

A scheduler that is stepped once an epoch, once a validation or every few updates does not move with most of
the updates: out of scope. What happens before its first move and after its last (a schedule that has ended)
is left out.
'''
references = [
    "Lightning-AI/pytorch-lightning#19774",
    "deepset-ai/FARM#46",
    "tracel-ai/burn#5695",
    "huggingface/accelerate#2926",
]

[params]
share = 0.01  # the share of the horizon, or of the run, from which on it is an error
*/
WITH contracts AS (
    SELECT run_id,
           launch,
           -- A scheduler given late is not on the run line.
           coalesce(max(scheduler_steps_per_update), 1) AS contract,
           max(planned_updates) AS planned
    FROM runs
    GROUP BY ALL
),
moves AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           optimizer_update_id AS update_id,
           scheduler_step_max - lag(scheduler_step_max) OVER attempts AS moved,
           optimizer_update_id - lag(optimizer_update_id) OVER attempts AS updates,
           attempt_id - lag(attempt_id) OVER attempts AS attempts,
           discarded_microbatches >= coalesce(accumulation_steps, microbatches) AS skipped_by_loop,
           contains(word, '|')
               OR coalesce(lead(epoch_changed) OVER attempts, FALSE)
               OR (run_id, launch, attempt_id) IN (
                   SELECT (run_id, launch, attempt_id)
                   FROM marks
                   WHERE kind IN ('end_of_data', 'epoch_end')
               ) AS at_epoch_end
    FROM windows
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
moving AS (
    SELECT *,
           min(attempt_id) FILTER (moved <> 0) OVER launches AS first_move,
           max(attempt_id) FILTER (moved <> 0) OVER launches AS last_move
    FROM moves
    WINDOW launches AS (PARTITION BY run_id, launch, optimizer)
),
distances AS (
    SELECT *,
           moved - contract * updates AS gained
    FROM moving
    LEFT JOIN contracts USING (run_id, launch)
    -- Pairs with a skip between tell nothing, and a position that goes back is another schedule.
    WHERE attempts = updates
      AND skipped_by_loop IS NOT TRUE
      AND moved >= 0
      -- The first move is where the distance is measured from.
      AND attempt_id > first_move
      AND attempt_id <= last_move
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           any_value(contract) AS contract,
           sum(moved)::DOUBLE AS moved,
           sum(updates)::DOUBLE AS updates,
           sum(gained) AS drift,
           sum(abs(gained)) AS wandered,
           count(*) FILTER (gained <> 0) AS places,
           min(update_id) FILTER (gained <> 0) AS first_update,
           max(update_id) AS last_update,
           coalesce(any_value(planned), max(update_id)) AS horizon
    FROM distances
    GROUP BY ALL
    HAVING count(*) >= 3
       AND count(*) FILTER (moved > 0) > 0.5 * count(*)
       AND NOT bool_and(at_epoch_end) FILTER (moved > 0)
)
SELECT run_id,
       launch,
       optimizer,
       NULL AS attempt_id,
       NULL AS rank,
       places >= 2 AND abs(drift) >= 2 AND 2 * abs(drift) >= wandered AS fault,
       moved / updates AS observed,
       contract AS expected,
       format(
           'the scheduler moved {:g} steps in {:g} updates, {:.3f} each where {:g} belongs to one: '
           || '{:g} {} by update {}, {:.2g} % of {} updates, from update {} on',
           moved,
           updates,
           moved / updates,
           contract,
           abs(drift),
           CASE WHEN drift > 0 THEN 'ahead' ELSE 'behind' END,
           last_update,
           100 * abs(drift) / contract / horizon,
           horizon,
           first_update
       ) AS message,
       CASE WHEN abs(drift) < $share * contract * horizon THEN 'warning' ELSE 'error' END AS severity
FROM launches
