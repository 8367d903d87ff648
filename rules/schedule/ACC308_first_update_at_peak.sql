/*
code = "ACC308"
name = "first-update-at-peak"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "no warm-up of several updates was declared for the first update of a run"
needs = ["warmup_updates", "learning_rate"]
summary = "the first update ran at the peak rate although a warm-up was declared"
why = '''
A warm-up keeps the first updates small while Adam's second moments and the loss are still wild. Where the
scheduler is created after the first step, or takes effect only with its own first step, the very first
update runs at the rate with which the optimizer was built, its peak. Only then the warm-up begins. Where a
schedule lacks its warm-up, or a loaded optimizer brings its old rate along, all of them do.

One such update at the start can cost a run a good part of what the warm-up was for.
'''
example = '''
A peak of 1e-3 and a warm-up of 100 updates: the first update should run at 1e-5 or 0. It runs at 1e-3, a
hundred times as much, and the second at 2e-5. Adam's first step moves each parameter by about its rate. So
the first update alone moves them about as far as the next 13 together, whose rates add up to 1.04e-3.
'''
fix = '''
Have the scheduler in place, with its first rate set, before the first step.

Hand-written loop: Build the scheduler before the loop (torch's set the first rate when they are made), or
  set the group's lr before the first step where you compute it yourself.
DDP: The same, on the optimizer that really steps.
FSDP: As for DDP.
Trainer: Set warmup_steps or warmup_ratio, together with a scheduler that has a warm-up ("constant" has
  none).
Accelerate: Prepare the scheduler together with its optimizer.
Lightning: Use interval "step", and not "epoch", for a warm-up in updates.
DeepSpeed: A scheduler in the configuration overrides the optimizer's lr, but for some only after its first
  step: build the optimizer with the first rate of the warm-up.
'''
not_a_fault_when = '''
A first update at 0, or anywhere below the peak, is a warm-up. A warm-up of a single update has nothing to
show. A group that rises while another stands still is a warm-up too.

Where the peak was not declared, the highest rate up to the end of the warm-up stands for it. A run that has
not come that far is not judged unless a lower rate came after the first.

A warm-up that is declared later than the first update belongs to another stage. One that is counted in
something else than updates, or declared for several optimizers at once, is not judged.

In a log the first record stands for the first update, where it lies in the first half of the declared
warm-up. Some logs write the rate that was used and some the next one, and a warm-up of a few steps may be
over by the first record.
'''
references = [
    "deepspeedai/DeepSpeed#7303",
    "bmaltais/kohya_ss#735",
    "jiaweizzhao/GaLore#62",
]

[params]
tolerance = 0.01  # by how much a rate may differ from the peak and still be it
*/
WITH declarations AS (
    -- What was declared for the first update; later declarations are another stage's.
    SELECT run_id,
           launch,
           arg_min(TRY_CAST(name ->> '$.warmup_updates' AS BIGINT), place) AS warmup,
           arg_min(coalesce(attempt_id, 0), place) FILTER (name ->> '$.warmup_updates' IS NOT NULL)
               AS warmup_from,
           arg_min(TRY_CAST(name ->> '$.peak_learning_rate' AS DOUBLE), place) AS peak,
           arg_min(coalesce(attempt_id, 0), place) FILTER (name ->> '$.peak_learning_rate' IS NOT NULL)
               AS peak_from
    FROM (SELECT * FROM marks WHERE kind = 'declare' AND json_valid(name))
    GROUP BY ALL
),
setups AS (
    SELECT r.run_id,
           r.launch,
           any_value(r.format) = 'ledger' AS is_ledger,
           CASE
               WHEN max(d.warmup_from) IS NULL THEN max(r.warmup_updates)
               WHEN max(d.warmup_from) = 0 THEN max(d.warmup)
           END AS warmup,
           CASE
               WHEN max(d.peak_from) IS NULL THEN max(r.peak_learning_rate)
               WHEN max(d.peak_from) = 0 THEN max(d.peak)
           END AS peak,
           coalesce(max(r.schedule_unit), 'updates') = 'updates' AS in_updates,
           max(len(r.optimizers)) > 1 AS several_optimizers
    FROM runs AS r
    LEFT JOIN declarations AS d USING (run_id, launch)
    WHERE r.launch = 1
      AND r.resumed_from_update IS NULL
    GROUP BY ALL
),
first_updates AS (
    SELECT u.run_id, u.launch, u.optimizer, u.attempt_id, u.rank, u.learning_rate, u.learning_rates,
           s.warmup, s.peak, s.in_updates, s.several_optimizers, s.is_ledger
    FROM updates AS u
    JOIN setups AS s USING (run_id, launch)
    -- A log may write every tenth step alone, or the rate of the step after it.
    WHERE CASE WHEN s.is_ledger THEN u.optimizer_update_id = 1 ELSE u.attempt_id + 1 <= s.warmup / 2 END
      AND u.applied IS NOT FALSE
      AND s.warmup > 1
    QUALIFY row_number() OVER (PARTITION BY u.run_id, u.launch, u.optimizer ORDER BY u.attempt_id, u.rank) = 1
),
warmups AS (
    SELECT f.run_id,
           f.launch,
           f.optimizer,
           max(CASE WHEN f.is_ledger THEN u.optimizer_update_id ELSE u.attempt_id END) AS seen,
           min_by(u.learning_rate, u.attempt_id) AS next_rate,
           min(u.learning_rate) < f.learning_rate * (1 - $tolerance) AS falls,
           coalesce(
               bool_or(list_bool_or(list_transform(
                   list_zip(u.learning_rates, f.learning_rates), lambda x: x[1] > x[2] * (1 + $tolerance)
               ))),
               max(u.learning_rate) > f.learning_rate * (1 + $tolerance)
           ) AS rises
    FROM first_updates AS f
    JOIN updates AS u
        ON u.run_id = f.run_id AND u.launch = f.launch AND u.optimizer = f.optimizer AND u.rank = f.rank
       AND u.attempt_id > f.attempt_id
       AND CASE WHEN f.is_ledger THEN u.optimizer_update_id ELSE u.attempt_id END BETWEEN 2 AND f.warmup + 1
    GROUP BY f.run_id, f.launch, f.optimizer, f.learning_rate
),
judged AS (
    SELECT f.*,
           w.next_rate,
           w.seen,
           w.seen > f.warmup AS over,
           CASE
               WHEN f.several_optimizers OR NOT f.in_updates OR f.learning_rate IS NULL THEN NULL
               WHEN f.learning_rate = 0 OR w.rises OR f.learning_rate < f.peak * (1 - $tolerance) THEN FALSE
               WHEN over OR w.falls THEN TRUE
               WHEN f.peak IS NOT NULL AND coalesce(len(f.learning_rates), 1) = 1 THEN TRUE
           END AS fault
    FROM first_updates AS f
    LEFT JOIN warmups AS w USING (run_id, launch, optimizer)
)
SELECT run_id,
       launch,
       optimizer,
       attempt_id,
       NULL AS rank,
       fault,
       learning_rate AS observed,
       NULL::DOUBLE AS expected,
       CASE
           WHEN fault
           THEN format(
               '{} ran at {:.6g}, {}, although a warm-up of {} updates is declared{}',
               CASE
                   WHEN is_ledger OR attempt_id = 1 THEN 'the first update'
                   ELSE format('the first logged update, {:,},', attempt_id)
               END,
               learning_rate,
               CASE
                   WHEN peak IS NOT NULL THEN format('where the declared peak is {:.6g}', peak)
                   ELSE format('the highest rate up to update {}', seen)
               END,
               warmup,
               coalesce(format('; the next one ran at {:.6g}', next_rate), '')
           )
       END AS message
FROM judged
