/*
code = "ACC302"
name = "schedule-advanced-on-skip"
severity = "error"
since = "0.1.0"
scope = "transaction"
scope_is_empty = "no attempt after a backward was skipped"
needs = ["events", "optimizer_step_skipped", "scheduler_step"]
explains = ["ACC303"]
summary = "the scheduler moved although the optimizer's step was skipped"
why = '''
A scaler that meets an overflow skips the step and lowers its scale. Where the scheduler is stepped all the
same, the schedule runs ahead of the updates by one for every skip. A warm-up is cut short by the skips with
which every scaler begins, and a decay ends before the last update.

What says that a step was skipped is often wrong. Optimizers with a fused kernel skip inside of it, and to
the loop, and to the flag of its framework, the step looks like any other.
'''
example = '''
A warm-up of 10 updates, and a scaler that starts at 65536 and settles at 256: its first eight attempts are
skipped. The scheduler stands at 8 when the first update is made, which runs at 0.9 of the peak instead of
0.1.

Over 100,000 updates with one overflow in 2,000 the schedule ends 50 updates early: 0.05 %, hardly worth a
word.
'''
fix = '''
Step the scheduler only where the optimizer's step was applied.

Hand-written loop: Read scale = scaler.get_scale() before scaler.step(optimizer) and scaler.update(). Then
  step the scheduler if scaler.get_scale() >= scale. This also tells the skips inside a fused kernel.
DDP: The same on every rank. The scalers agree, because the reduced gradients do.
FSDP: The same on every rank.
Trainer: It holds the scheduler for skips that it knows of. With fp16 choose an optimizer that is not fused.
Accelerate: The same: optimizer_step_was_skipped does not know of skips inside a fused kernel.
Lightning: Automatic optimization steps the scheduler on skips too. In manual optimization step it yourself.
DeepSpeed: Let the engine step the scheduler. Under torch_autocast with fp16 it does not notice a skip.
'''
not_a_fault_when = '''
A schedule that holds still on skips passes. So does one that is set back around them or set to an absolute
place, one that is stepped once an epoch or a validation, and a plateau scheduler that looks at losses. One
that counts micro-steps, samples or tokens (declared by schedule_unit, or seen to) is a matter of ACC301.

It is a warning as long as these steps are no more than 0.1 % of the declared planned_updates, or of 1,000
where none are declared: the first skips of a scaler that settles, one overflow now and then. Above that it
is an error.

An attempt at a rate of 0, or with a gradient of 0, leaves the parameters as they are without being skipped.
Where nothing but the parameters says that it was skipped, it is not judged.
'''
references = [
    "huggingface/accelerate#4242",
    "huggingface/accelerate#4243",
    "Lightning-AI/pytorch-lightning#18828",
    "Lightning-AI/pytorch-lightning#5558",
    "huggingface/transformers#11144",
]

[params]
share = 0.001  # the share of the planned updates above which it is an error
updates = 1000  # the number that stands for the planned updates where none are declared
*/
WITH contracts AS (
    SELECT run_id,
           launch,
           max(scheduler_steps_per_update) AS declared_contract,
           max(planned_updates) AS planned,
           -- Some schedules follow something else than the updates.
           coalesce(max(schedule_unit), 'updates') <> 'updates' AS counts_otherwise,
           max(scheduler_class) AS scheduler_class,
           max(scheduler_step_at_attach) AS position_at_attach
    FROM runs
    GROUP BY ALL
),
skipping AS (
    SELECT DISTINCT run_id, launch, optimizer
    FROM windows
    WHERE applied IS NOT TRUE
),
words AS (
    SELECT w.*,
           -- What follows the last backward, up to an end of the data behind the step.
           regexp_replace(regexp_replace(word, '^.*[bB]', ''), '([OX][^|]*)[|].*$', '\1') AS ending,
           length(regexp_replace(ending, '[^S]', '', 'g')) AS steps,
           length(regexp_replace(word, '[^S]', '', 'g')) AS all_steps,
           regexp_matches(word, '[bB][^Zo|]*S[^Zo|]*[bB]') AS between_backwards,
           CASE
               WHEN lag(attempt_id) OVER attempts = attempt_id - 1
               THEN scheduler_step_max - lag(scheduler_step_max) OVER attempts
               WHEN attempt_id = 1 AND optimizer = 0 THEN scheduler_step_max - position_at_attach
           END AS moved,
           coalesce(lead(epoch_changed) OVER attempts, FALSE) OR contains(word, '|') AS ends_epoch,
           c.* EXCLUDE (run_id, launch)
    FROM windows AS w
    SEMI JOIN skipping USING (run_id, launch, optimizer)
    LEFT JOIN contracts AS c USING (run_id, launch)
    WINDOW attempts AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
habits AS (
    SELECT run_id,
           launch,
           optimizer,
           coalesce(
               max(declared_contract),
               CASE WHEN count(scheduler_step_max) > 0 OR max(all_steps) > 0 THEN 1 END
           ) AS contract,
           coalesce(avg((steps > 0)::INTEGER) FILTER (applied), avg((steps > 0)::INTEGER)) > 0.5
               AS with_updates,
           coalesce(bool_and(ends_epoch) FILTER (applied AND steps > 0), FALSE) AS with_epochs,
           avg(between_backwards::INTEGER) > 0.5
               OR (avg(microbatches) > 1 AND avg(all_steps) > contract
                   AND avg(all_steps) >= 0.95 * avg(microbatches)) AS with_micro_steps,
           coalesce(avg((moved = 0)::INTEGER) FILTER (steps > 0) > 0.2, FALSE) AS set_absolutely
    FROM words
    GROUP BY ALL
),
evidence AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           min(skip_evidence) AS skip_evidence,
           -- Nothing moves at a rate of 0, or with a gradient of 0, without any skip.
           bool_or(skip_evidence = 'state_step' AND (learning_rate = 0 OR grad_norm_after_clip = 0))
               AS doubtful
    FROM updates
    WHERE applied IS NOT TRUE
    GROUP BY ALL
),
judged AS (
    SELECT w.*,
           h.contract,
           e.skip_evidence,
           least(w.steps, coalesce(w.moved, w.steps)) AS advance,
           CASE
               WHEN w.applied IS NULL OR w.word IS NULL OR h.contract IS NULL THEN NULL
               WHEN advance <= 0 OR w.counts_otherwise THEN FALSE
               WHEN w.optimizer = 0 AND w.scheduler_class = 'ReduceLROnPlateau' THEN FALSE
               WHEN NOT h.with_updates OR h.with_epochs OR h.with_micro_steps OR h.set_absolutely THEN FALSE
               WHEN e.doubtful THEN NULL
               ELSE TRUE
           END AS fault
    FROM words AS w
    JOIN habits AS h USING (run_id, launch, optimizer)
    LEFT JOIN evidence AS e USING (run_id, launch, optimizer, attempt_id)
    WHERE w.applied IS NOT TRUE
      AND regexp_matches(w.word, '[bB]') IS NOT FALSE
),
summed AS (
    SELECT *,
           sum(CASE WHEN fault THEN advance / contract ELSE 0 END) OVER (PARTITION BY run_id, optimizer)
               AS ahead,
           coalesce(max(planned) OVER (PARTITION BY run_id), $updates) AS horizon
    FROM judged
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       CASE WHEN ahead > $share * horizon THEN 'error' ELSE 'warning' END AS severity,
       advance::DOUBLE AS observed,
       0.0 AS expected,
       CASE
           WHEN fault
           THEN format(
               'the attempt was skipped{} and the scheduler moved by {}{}: '
               || 'on skips it has run {:g} ahead in all, {:.2g} % of {}',
               coalesce(format(' ({})', skip_evidence), ''),
               advance,
               coalesce(format(' to position {}', scheduler_step_max), ''),
               ahead,
               100 * ahead / horizon,
               CASE
                   WHEN max(planned) OVER (PARTITION BY run_id) IS NULL
                   THEN format('{:g} updates (no length is declared)', horizon)
                   ELSE format('the {:g} updates that are declared', horizon)
               END
           )
       END AS message
FROM summed
