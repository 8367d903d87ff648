/*
code = "ACC903"
name = "batch-size-changed"
severity = "note"
since = "0.1.0"
scope = "run"
scope_is_empty = "fewer than 40 whole windows have a size"
needs = ["samples or global_valid_tokens_in_update or reported_tokens or reported_samples"]
summary = "from some update on, an update takes more or fewer samples or tokens than before"
why = '''
A run that is started again on another number of devices, or with another length of the sequences, often
goes on with another batch. Nobody meant it: the product of batch size, accumulation count and ranks is
nowhere written down.

The rate was chosen for the first batch. A schedule in updates now sees other data. A step in the loss
curve, or in its noise, has a cause that is not in the model.
'''
example = '''
Launch 1 ran on 64 ranks with 4 samples and 2 micro-steps an update: 64 * 4 * 2 = 512 samples an update.
Launch 2 goes on at update 8,001 on 48 ranks with the same numbers: 384 samples. From there on each update
sees a quarter less data, at the same rate.
'''
fix = '''
Decide what an update is to hold, and derive the accumulation count from it at each start.

Hand-written loop: Use samples // (batch_size * world_size), and refuse what does not divide.
DDP: The same.
FSDP: The same.
Trainer: Set gradient_accumulation_steps by the number of devices.
Accelerate: Set gradient_accumulation_steps by the number of processes.
Lightning: Set accumulate_grad_batches by the number of devices.
DeepSpeed: Give train_batch_size and the micro batch alone, and let it derive the third number.
'''
not_a_fault_when = '''
A plan is none: a ramp (Megatron's rampup-batch-size, a warm-up of the batch) shows several sizes one after
the other and is passed over, and so is an accumulation count that the loop declares anew within a launch. A
short window at the end of an epoch is a tail and no change.

Sizes that scatter are compared by their medians. The new level must differ by a tenth and hold to the end,
with 20 records or more on both sides.

A second stage with another batch, by intention, looks the same in the record: this is a note.
'''
references = [
    "Lightning-AI/pytorch-lightning#21534",
    "NVIDIA-NeMo/NeMo#3947",
]

[params]
records = 20  # how many records must lie on both sides
ratio = 1.1  # how many times as large the larger size must be
*/
WITH whole AS (
    SELECT run_id,
           optimizer,
           launch,
           attempt_id,
           CASE WHEN accumulation_inferred IS NOT TRUE THEN accumulation_steps END AS declared,
           coalesce(samples, reported_samples) AS samples,
           coalesce(valid_tokens, global_valid_tokens_in_update, reported_tokens) AS tokens
    FROM windows
    -- A tail is no change.
    WHERE (microbatches < accumulation_steps) IS NOT TRUE
),
sizes AS (
    SELECT * EXCLUDE (samples, tokens), 'samples' AS what, samples AS size FROM whole WHERE samples > 0
    UNION ALL
    SELECT * EXCLUDE (samples, tokens), 'tokens' AS what, tokens AS size FROM whole WHERE tokens > 0
),
records AS (
    SELECT *,
           row_number() OVER (PARTITION BY run_id, optimizer, what ORDER BY launch, attempt_id) AS place,
           count(*) OVER (PARTITION BY run_id, optimizer, what) AS records
    FROM sizes
),
ends AS (
    SELECT run_id,
           optimizer,
           what,
           median(size) FILTER (place <= $records) AS first_size,
           median(size) FILTER (place > records - $records) AS last_size,
           sqrt(first_size * last_size) AS middle
    FROM records
    GROUP BY ALL
    HAVING count(*) >= 2 * $records
),
-- Where one level gives way to the other, as many records lie on the first one's side as come before.
places AS (
    SELECT run_id,
           optimizer,
           what,
           any_value(first_size) AS first_size,
           any_value(last_size) AS last_size,
           1 + count(*) FILTER ((size > middle) = (first_size > middle)) AS change
    FROM records
    JOIN ends USING (run_id, optimizer, what)
    GROUP BY ALL
),
sides AS (
    SELECT p.*,
           any_value(r.records) AS records,
           min(r.launch) FILTER (place = change) AS launch,
           min(r.launch) FILTER (place = change - 1) AS launch_before,
           min(r.attempt_id) FILTER (place = change) AS attempt,
           -- Every size keeps to its side, but for one in twenty.
           avg(((size > sqrt(first_size * last_size)) = (first_size > last_size))::INTEGER)
               FILTER (place < change) AS kept_before,
           avg(((size > sqrt(first_size * last_size)) = (last_size > first_size))::INTEGER)
               FILTER (place >= change) AS kept_after,
           median(size) FILTER (place BETWEEN change - $records AND change - 1) AS just_before,
           median(size) FILTER (place BETWEEN change AND change + $records - 1) AS just_after,
           median(declared) FILTER (place < change) AS declared_before,
           median(declared) FILTER (place >= change) AS declared_after
    FROM places AS p
    JOIN records AS r USING (run_id, optimizer, what)
    GROUP BY ALL
),
judged AS (
    SELECT *,
           last_size / first_size AS ratio,
           coalesce(
               greatest(ratio, 1 / ratio) >= $ratio
                   AND change > $records
                   AND change <= records - $records + 1
                   AND least(kept_before, kept_after) >= 0.95
                   -- A ramp has other sizes in between.
                   AND just_before / first_size BETWEEN 1 / $ratio AND $ratio
                   AND just_after / last_size BETWEEN 1 / $ratio AND $ratio
                   AND (launch = launch_before AND abs(ln(declared_after / declared_before / ratio)) < 0.1) IS NOT TRUE,
               FALSE
           ) AS changed
    FROM sides
)
SELECT run_id,
       coalesce(launch, 1) AS launch,
       optimizer,
       CASE WHEN changed THEN attempt END AS attempt_id,
       NULL AS rank,
       changed AS fault,
       last_size::DOUBLE AS observed,
       first_size::DOUBLE AS expected,
       format(
           'from here on an update takes {:.0f} {} instead of {:.0f}, in {} records up to the end{}',
           last_size,
           what,
           first_size,
           records - change + 1,
           CASE WHEN launch > launch_before THEN format('; launch {} begins here', launch) ELSE '' END
       ) AS message
FROM judged
-- More samples have more tokens.
QUALIFY row_number() OVER (PARTITION BY run_id, optimizer ORDER BY changed DESC, what ASC) = 1
