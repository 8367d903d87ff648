/*
code = "ACC704"
name = "skip-storm"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "no loss scale took part in a step, and no log counted skipped steps"
needs = ["optimizer_update_id or optimizer_step_skipped"]
summary = "more steps were skipped for overflow than a settling loss scale explains"
why = '''
A scaler begins with a scale that is too large. It skips a step and halves the scale until the gradients
fit, and tries a larger one from time to time. Those skips are its work.

Skips that go on at the smallest scale, or without the scale falling, do not come from the scale: the
gradients themselves are not finite, or the scaler is not told. Every skipped step reads, computes and
throws away a batch. The run may stand still for hours while its loss is logged as if nothing were wrong.
'''
example = '''
Healthy: a scale of 65536 comes down to 256 in 8 skips, and 3,000 updates follow with one skip after each
growth.

A storm: from update 3,050 on a layer returns NaN. 8 skips bring the scale from 256 to 1, and then every
step is skipped.
'''
fix = '''
Look at the first skipped step that the scale does not explain: its loss and its batch.

Hand-written loop: Check the losses for NaN. Run the part that overflows in 32 bit or bf16, or lower the
  rate. Call scaler.update() after every step, and give it no scale by hand.
DDP: The same. A NaN on one rank skips all.
FSDP: As for DDP.
Trainer: Use bf16 where the device has it.
Accelerate: Use bf16 where the device has it.
Lightning: Use precision="bf16-mixed".
DeepSpeed: Watch the loss scale in its log; min_loss_scale is a floor and no cure. Under ZeRO with
  torch_autocast in fp16 the scale never falls: use bf16.
'''
not_a_fault_when = '''
Skips that halve the scale each time, however many, are a scaler that settles, and a single skip after each
growth is one that tries, as long as no more than one attempt in five is lost to it. Hysteresis lets a few
skips pass before the scale falls: four in a row, and four for each growth, are granted. A bad batch now and
then, up to one attempt in fifty, is silent, also under a fixed scale. In the record of this program nothing
is judged without a scale.

A log of another program that counts its skips (DeepSpeed, Megatron, fairseq) is judged from record to
record. Where it tells the scale, skips that lower it are explained. Where it does not, two things alone are
called a storm: a hundred skips on end, more than any scale needs to settle, or more than one attempt in
five, long after the start.
'''
references = [
    "deepspeedai/DeepSpeed#931",
    "NVIDIA/apex#318",
    "ymcui/Chinese-LLaMA-Alpaca#534",
    "zai-org/CogVideo#233",
]

[params]
floor = 1.0  # at this loss scale or below it, skips no longer come from the scale
streak = 3  # how many skips in a row at the floor are a storm
hysteresis = 4  # how many skips in a row, and for each growth, may leave the scale as it is
rate = 0.02  # the share of attempts up to which skips that the scale does not explain are silent
share = 0.2  # the share of skipped attempts from which on even explained skips cost too much
endless = 100  # so many skips on end are a storm where no scale is logged
*/
-- What another program counted, from record to record.
WITH counters AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           attempt_id - lag(attempt_id, 1, coalesce(resumed_from_update, 0)) OVER in_order AS tried,
           tried - (optimizer_update_id - lag(optimizer_update_id, 1, coalesce(resumed_from_update, 0)) OVER in_order)
               AS skips,
           grad_scale AS scale,
           lag(grad_scale) OVER in_order AS scale_before
    FROM updates
    JOIN (SELECT run_id, launch, format, resumed_from_update FROM runs) USING (run_id, launch)
    WHERE format NOT IN ('ledger', 'logbook')
      AND optimizer_update_id IS NOT NULL
    WINDOW in_order AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
stretched AS (
    SELECT *,
           -- Records that belong together: all was skipped since the one before.
           sum(if(skips < tried, 1, 0)) OVER in_sequence AS stretch,
           scale_before <= $floor AND scale <= $floor AS at_floor,
           scale >= scale_before AS without_fall
    FROM counters
    WINDOW in_sequence AS (
        PARTITION BY run_id, launch, optimizer ORDER BY attempt_id ROWS UNBOUNDED PRECEDING
    )
),
runs_of_skips AS (
    SELECT run_id,
           launch,
           optimizer,
           stretch,
           min(attempt_id - tried + 1) FILTER (skips = tried) AS first_attempt,
           min(attempt_id) FILTER (skips = tried) AS first_record,
           coalesce(sum(skips) FILTER (skips = tried), 0) AS skips,
           coalesce(sum(skips) FILTER (skips = tried AND at_floor), 0) AS at_floor,
           coalesce(sum(skips) FILTER (skips = tried AND without_fall AND scale > $floor), 0) AS without_fall,
           coalesce(bool_or(scale < scale_before) FILTER (skips = tried), FALSE) AS fell,
           min(scale) AS scale
    FROM stretched
    GROUP BY ALL
),
totals AS (
    SELECT run_id,
           launch,
           optimizer,
           sum(tried) AS attempts,
           sum(skips) AS skips,
           -- After the first record without a skip the scale has settled.
           min(attempt_id) FILTER (skips = 0) AS settled,
           bool_and(skips BETWEEN 0 AND tried) AS adds_up
    FROM counters
    GROUP BY ALL
),
later AS (
    SELECT run_id,
           launch,
           optimizer,
           sum(tried) AS later_attempts,
           sum(c.skips) AS later_skips,
           min(attempt_id) FILTER (c.skips > 0) AS later_record
    FROM counters AS c
    JOIN totals AS t USING (run_id, launch, optimizer)
    WHERE attempt_id > t.settled
    GROUP BY ALL
),
log_worst AS (
    SELECT run_id,
           launch,
           optimizer,
           max(at_floor) AS at_floor,
           min(first_attempt) FILTER (at_floor >= $streak) AS floor_since,
           min(first_record) FILTER (at_floor >= $streak) AS floor_record,
           max(without_fall) FILTER (NOT fell) AS without_fall,
           min(first_attempt) FILTER (NOT fell AND without_fall > $hysteresis) AS stuck_since,
           min(first_record) FILTER (NOT fell AND without_fall > $hysteresis) AS stuck_record,
           arg_max(scale, without_fall) FILTER (NOT fell) AS stuck_at,
           max(skips) AS longest,
           arg_max(first_attempt, skips) AS longest_since,
           arg_max(first_record, skips) AS longest_record
    FROM runs_of_skips
    GROUP BY ALL
),
from_logs AS (
    SELECT *,
           CASE
               WHEN NOT adds_up THEN NULL
               WHEN floor_since IS NOT NULL THEN 'floor'
               WHEN stuck_since IS NOT NULL THEN 'stuck'
               WHEN longest >= $endless THEN 'endless'
               WHEN later_attempts >= $endless AND later_skips > $share * later_attempts THEN 'after'
               ELSE 'none'
           END AS problem,
           -- The first record that tells of it.
           CASE problem
               WHEN 'floor' THEN floor_record
               WHEN 'stuck' THEN stuck_record
               WHEN 'endless' THEN longest_record
               WHEN 'after' THEN later_record
           END AS began
    FROM totals
    LEFT JOIN later USING (run_id, launch, optimizer)
    LEFT JOIN log_worst USING (run_id, launch, optimizer)
),
attempts AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           bool_or(NOT applied) AS skipped,
           max(grad_scale) AS scale,
           -- An update of the scaler before the step belongs to the step before.
           max(grad_scale_after) FILTER (word IS NULL OR regexp_matches(word, '[OX].*G')) AS scale_after
    FROM updates
    WHERE grad_scale > 0
      AND (run_id, launch, optimizer) NOT IN (SELECT (run_id, launch, optimizer) FROM totals)
      -- What a logbook quotes are moments.
      AND run_id NOT IN (SELECT run_id FROM runs WHERE format = 'logbook')
    GROUP BY ALL
),
scales AS (
    SELECT *,
           lag(attempt_id) OVER in_order = attempt_id - 1 AND lag(skipped) OVER in_order AS goes_on,
           scale > coalesce(lag(scale_after) OVER in_order, lag(scale) OVER in_order) OR scale_after > scale AS grew,
           coalesce(
               CASE WHEN lead(attempt_id) OVER in_order = attempt_id + 1 THEN lead(scale) OVER in_order END,
               scale_after
           ) AS following_scale
    FROM attempts
    WINDOW in_order AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
skips AS (
    SELECT *,
           count(CASE WHEN goes_on IS NOT TRUE THEN 1 END) OVER so_far AS streak,
           following_scale < scale AS fell
    FROM scales
    WHERE skipped
    WINDOW so_far AS (PARTITION BY run_id, launch, optimizer ORDER BY attempt_id)
),
streaks AS (
    SELECT run_id,
           launch,
           optimizer,
           streak,
           min(attempt_id) AS first_attempt,
           count(*) AS skips,
           count(*) FILTER (scale <= $floor) AS at_floor,
           count(*) FILTER (scale > $floor AND NOT fell) AS without_fall,
           min(attempt_id) FILTER (scale <= $floor OR NOT fell) AS first_unexplained,
           count(*) FILTER (fell) AS falls,
           min(scale) AS scale
    FROM skips
    GROUP BY ALL
),
worst AS (
    SELECT run_id,
           launch,
           optimizer,
           sum(at_floor + without_fall) AS unexplained,
           min(first_unexplained) AS unexplained_since,
           max(at_floor) AS at_floor,
           min(first_attempt) FILTER (at_floor >= $streak) AS floor_since,
           max(without_fall) FILTER (falls = 0) AS without_fall,
           min(first_attempt) FILTER (falls = 0 AND without_fall > $hysteresis) AS stuck_since,
           arg_max(scale, without_fall) FILTER (falls = 0) AS stuck_at
    FROM streaks
    GROUP BY ALL
),
launches AS (
    SELECT run_id,
           launch,
           optimizer,
           count(*) AS attempts,
           count(*) FILTER (skipped) AS skips,
           count(skipped) AS known,
           count(*) FILTER (grew) AS growths
    FROM scales
    GROUP BY ALL
),
judged AS (
    SELECT *,
           CASE
               WHEN floor_since IS NOT NULL THEN 'floor'
               WHEN stuck_since IS NOT NULL THEN 'stuck'
               WHEN unexplained > $hysteresis * (1 + growths) AND unexplained > $rate * attempts THEN 'unexplained'
               -- Tried again so often that it costs more than it brings.
               WHEN growths >= 10 AND skips > $share * attempts THEN 'often'
               WHEN known > 0 THEN 'none'
           END AS problem,
           -- A scale that is tried again too often has no beginning.
           CASE problem
               WHEN 'floor' THEN floor_since
               WHEN 'stuck' THEN stuck_since
               WHEN 'unexplained' THEN unexplained_since
           END AS began
    FROM launches
    LEFT JOIN worst USING (run_id, launch, optimizer)
    UNION ALL BY NAME
    SELECT *
    FROM from_logs
)
SELECT run_id,
       launch,
       optimizer,
       began AS attempt_id,
       NULL AS rank,
       problem <> 'none' AS fault,
       skips::DOUBLE AS observed,
       NULL::DOUBLE AS expected,
       format('{} of {} attempts were skipped', skips, attempts)
       || CASE problem
           WHEN 'floor'
           THEN format(
               ', up to {} in a row with the loss scale at {:g} or below, from attempt {} on',
               at_floor,
               $floor,
               floor_since
           )
           WHEN 'stuck'
           THEN format(
               ', up to {} in a row while the loss scale stayed at {:g}, from attempt {} on',
               without_fall,
               stuck_at,
               stuck_since
           )
           WHEN 'unexplained'
           THEN format(
               ', {} of them without lowering the loss scale; it grew {} times',
               unexplained,
               growths
           )
           WHEN 'often' THEN format('; the loss scale grew {} times', growths)
           WHEN 'endless' THEN format(', {} on end, from attempt {} on', longest, longest_since)
           WHEN 'after'
           THEN format(', {} of them in the {} attempts after the scale had settled', later_skips, later_attempts)
           ELSE ''
       END AS message
FROM judged
