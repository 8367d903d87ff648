/*
code = "ACC310"
name = "weight-decay-break"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "no attempt was recorded"
needs = ["weight_decays"]
summary = "the weight decay changed at a resume, or for one update alone"
why = '''
The weight decay lies in the optimizer's parameter groups beside the rate, and is lost and restored with
them. A resumed run whose groups come from the code and not from the checkpoint, or the other way round,
decays what it did not before, biases and norms among it, or nothing at all. A schedule that is restored in
the wrong order gives the first update after a resume the decay of the constructor.

The loss shows it late: the balance of weights and gradients shifts over thousands of updates.
'''
example = '''
Two groups with decays of 0.1 and 0, the second for biases and norms. The resumed script sets both to 0.1.
At a rate of 3e-4 the norms now shrink by a factor of 1 - 3e-4 * 0.1 in each update: by half in 23,000
updates.
'''
fix = '''
Build the groups as before, then load the optimizer's state, and change a decay on purpose only after
loading. A schedule of your own restores all that it has before it writes into the groups.

Hand-written loop: Let the same function make the groups in both launches. load_state_dict brings their
  decays.
DDP: The same on every rank.
FSDP: Load through the state-dict utilities, which match groups by parameter names.
Trainer: Resume with the same weight_decay: the checkpoint's groups win.
Accelerate: load_state brings the groups back.
Lightning: configure_optimizers must give the same groups in the same order.
DeepSpeed: load_optimizer_states=False takes the groups of the configuration.
'''
not_a_fault_when = '''
A decay that follows a schedule moves a little with each update, over a resume too. What is looked for is a
change five times as large as the one before it. A change that lasts is a milestone inside a launch. One
update that differs is a fault once or twice in a launch; where it comes back (a decay that is applied every
so many updates) it is a habit.

A second stage is no break: other declared numbers, another class of optimizer or scheduler, a new
optimizer. One that is not declared looks the same as a break.

Where the number of groups or their order has changed, and for single updates where not every attempt is
recorded, the rule does not judge.
'''
references = ["NVIDIA/Megatron-LM#7468", "NVIDIA-NeMo/Automodel#3882"]

[params]
jump = 5  # how many times as large as the change before it a change must be
habit = 3  # so many single updates that differ in a launch are a habit
*/
WITH launches AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           min(u.rank) AS rank,
           count(u.weight_decays) > 0 AS known,
           max(r.recorded_every) > 1 AS with_gaps
    FROM updates AS u
    LEFT JOIN (SELECT run_id, launch, max(recorded_every) AS recorded_every FROM runs GROUP BY ALL) AS r
        USING (run_id, launch)
    GROUP BY ALL
),
setups AS (
    SELECT run_id,
           launch,
           [max(peak_learning_rate), max(planned_updates), max(warmup_updates), max(min_learning_rate)]
               AS declared,
           max(scheduler_class) AS scheduler_class,
           any_value(optimizers) AS optimizers
    FROM runs
    GROUP BY ALL
),
stages AS (
    SELECT n.run_id,
           n.launch,
           len(list_filter(
               list_zip(n.declared, o.declared), lambda x: x[1] IS NOT NULL AND x[1] IS DISTINCT FROM x[2]
           )) > 0
               OR coalesce(n.scheduler_class <> o.scheduler_class, FALSE)
               OR coalesce(
                   list_transform(n.optimizers, lambda one: one['class'])
                       <> list_transform(o.optimizers, lambda one: one['class']),
                   FALSE
               ) AS new_stage
    FROM setups AS n
    JOIN setups AS o ON o.run_id = n.run_id AND o.launch = n.launch - 1
),
-- Most runs keep their decays throughout: there is nothing to look at.
varied AS (
    SELECT run_id, optimizer
    FROM updates
    GROUP BY ALL
    HAVING min(hash(weight_decays)) <> max(hash(weight_decays))
),
neighbours AS (
    SELECT u.run_id,
           u.launch,
           u.optimizer,
           u.attempt_id,
           u.weight_decays AS here,
           u.launch > lag(u.launch) OVER whole AS resumed,
           u.optimizer_state_step = 1 AS new_optimizer,
           lag(u.weight_decays) OVER whole AS before,
           lag(u.weight_decays, 2) OVER whole AS long_before,
           lead(u.weight_decays) OVER whole AS after,
           lead(u.weight_decays, 2) OVER whole AS long_after,
           lag(u.attempt_id) OVER whole = u.attempt_id - 1 AND NOT resumed
               AND lead(u.attempt_id) OVER whole = u.attempt_id + 1 AS in_a_row
    FROM updates AS u
    SEMI JOIN varied USING (run_id, optimizer)
    SEMI JOIN launches USING (run_id, launch, optimizer, rank)
    WINDOW whole AS (PARTITION BY u.run_id, u.optimizer ORDER BY u.launch, u.attempt_id)
),
moves AS (
    SELECT *,
           CASE
               WHEN len(here) = len(before)
               THEN list_sum(list_transform(list_zip(here, before), lambda x: abs(x[1] - x[2])))
           END AS moved,
           CASE
               WHEN len(before) = len(long_before)
               THEN list_sum(list_transform(list_zip(before, long_before), lambda x: abs(x[1] - x[2])))
           END AS moved_before,
           CASE
               WHEN len(here) = len(after)
               THEN list_sum(list_transform(list_zip(here, after), lambda x: abs(x[1] - x[2])))
           END AS moved_back,
           CASE
               WHEN len(after) = len(long_after)
               THEN list_sum(list_transform(list_zip(after, long_after), lambda x: abs(x[1] - x[2])))
           END AS moved_after,
           CASE
               WHEN len(before) = len(after)
               THEN list_sum(list_transform(list_zip(before, after), lambda x: abs(x[1] - x[2])))
           END AS moved_on,
           moved > $jump * coalesce(moved_before, 0) AS jumps,
           moved_back > $jump * coalesce(moved_after, moved_before, 0) AND 2 * moved_on < moved AS returns
    FROM neighbours
),
judged AS (
    SELECT m.*,
           CASE
               WHEN resumed
               THEN CASE
                   WHEN s.new_stage OR new_optimizer THEN FALSE
                   WHEN len(here) <> len(before) THEN NULL
                   WHEN here <> before AND list_sort(here) = list_sort(before) THEN NULL
                   ELSE jumps
               END
               WHEN in_a_row
               THEN jumps AND returns
                    AND count(*) FILTER (in_a_row AND jumps AND returns)
                        OVER (PARTITION BY m.run_id, m.launch, m.optimizer) < $habit
           END AS fault
    FROM moves AS m
    LEFT JOIN stages AS s ON m.resumed AND s.run_id = m.run_id AND s.launch = m.launch
),
breaks AS (
    SELECT *
    FROM judged
    WHERE fault
       OR (resumed AND fault IS NULL)
)
SELECT l.run_id,
       l.launch,
       l.optimizer,
       b.attempt_id,
       NULL AS rank,
       CASE
           WHEN b.attempt_id IS NOT NULL THEN b.fault
           WHEN l.known AND NOT coalesce(l.with_gaps, FALSE) THEN FALSE
       END AS fault,
       list_filter(list_zip(b.here, b.before), lambda x: x[1] <> x[2])[1][1] AS observed,
       list_filter(list_zip(b.here, b.before), lambda x: x[1] <> x[2])[1][2] AS expected,
       CASE
           WHEN b.fault
           THEN format(
               '{} a weight decay of {} where it was {} before{}',
               CASE WHEN b.resumed THEN 'resumed with' ELSE 'one update with' END,
               b.here::VARCHAR,
               b.before::VARCHAR,
               CASE
                   WHEN b.returns AND b.resumed
                   THEN format(', for this one update: then it is {}', b.after::VARCHAR)
                   WHEN b.returns THEN format(', and {} after it', b.after::VARCHAR)
                   WHEN b.resumed THEN '; a second stage that is not declared looks the same'
                   ELSE ''
               END
           )
       END AS message
FROM launches AS l
LEFT JOIN breaks AS b USING (run_id, launch, optimizer)
