/*
code = "ACC904"
name = "frozen-or-placeholder-field"
severity = "warning"
since = "0.1.0"
scope = "run"
scope_is_empty = "no field that could show it stands in 20 records"
needs = ["grad_norm_before_clip or grad_scale or cumulative_train_tokens or reported_tokens or reported_loss"]
summary = "a logged field repeats itself where it cannot, or stands for a value that nobody measured"
why = '''
A gradient norm that is the same to its last digit for a hundred records, while the loss moves, is not
measured any more. A tensor is no longer written to, a value was kept from the first update, or a gradient
is no longer computed. Whoever watches it for spikes watches nothing.

A loss scale of -1, or a token count that stays 0, is what a program prints where it has no number. A
dashboard or a sum takes it for one.
'''
example = '''
From update 310 on the norm is 1.284759 in 190 records, while the loss takes 190 different values: the loop
logs a norm that it computed once.

A log of 866 records gives total_tokens with 0 in each: counting was never switched on, and a cost per token
from this log divides by zero.
'''
fix = '''
Log what was measured in this update, or leave the field out.

Hand-written loop: Take the value that clip_grad_norm_ returned in this very update. Detach and read tensors
  when they are logged.
DDP: The same on every rank.
FSDP: The same on every rank.
Trainer: Token counts need include_num_input_tokens_seen.
Accelerate: Gather before logging.
Lightning: Log in the hook of the step, not once.
DeepSpeed: A loss scale of -1 means that there is none, as under bf16: read it as such.
'''
not_a_fault_when = '''
What may well be constant is not looked at: a rate, a static loss scale, a batch size, the norm after a
clip.

Numbers that a log rounds, or that were computed in bf16, repeat by chance. A field is frozen where 20
records on end are equal in at least four digits while another measure took ten different values. The
records around it must hardly ever repeat, or the value must have six digits that bf16 does not have. A norm
of 0.000 is rounding, or an update that was skipped.

A placeholder misleads readers and not the training: it is a note.
'''
references = [
    "hiyouga/LlamaFactory#5211",
    "huggingface/transformers#34567",
    "lm-sys/FastChat#3058",
]

[params]
records = 20  # how many records on end must be equal
others = 10  # how many different values another measure must take meanwhile
*/
WITH logged AS (
    SELECT run_id,
           launch,
           optimizer,
           attempt_id,
           grad_norm_before_max AS norm,
           coalesce(grad_norm_before_max, grad_norm_max) AS any_norm,
           coalesce(reported_loss, loss) AS any_loss,
           reported_loss,
           grad_scale_max AS scale,
           CASE WHEN valid_tokens IS NULL THEN coalesce(cumulative_train_tokens, reported_tokens) END AS tokens
    FROM windows
),
measures AS (
    SELECT run_id, launch, optimizer, attempt_id, 'gradient norm' AS what, norm AS value, any_loss AS other
    FROM logged
    WHERE norm > 0
    UNION ALL
    SELECT run_id, launch, optimizer, attempt_id, 'loss' AS what, reported_loss AS value, any_norm AS other
    FROM logged
    WHERE reported_loss > 0
),
ordered AS (
    SELECT *,
           row_number() OVER in_order AS place,
           coalesce(value = lag(value) OVER in_order, FALSE) AS repeats
    FROM measures
    WINDOW in_order AS (PARTITION BY run_id, launch, optimizer, what ORDER BY attempt_id)
),
islands AS (
    SELECT *,
           sum(if(repeats, 0, 1)) OVER (
               PARTITION BY run_id, launch, optimizer, what ORDER BY place ROWS UNBOUNDED PRECEDING
           ) AS island
    FROM ordered
),
stretches AS (
    SELECT run_id,
           launch,
           optimizer,
           what,
           island,
           min(attempt_id) AS attempt,
           min(value) AS value,
           count(*) AS length
    FROM islands
    GROUP BY ALL
),
longest AS (
    SELECT run_id,
           launch,
           optimizer,
           what,
           sum(length) - max(length) AS around,
           sum(length - 1) - (max(length) - 1) AS repeated_around,
           arg_max(island, length) AS island,
           arg_max(attempt, length) AS attempt,
           arg_max(value, length) AS value,
           max(length) AS length
    FROM stretches
    GROUP BY ALL
    HAVING sum(length) >= $records
),
-- What moved beside the values of those that are long enough.
beside AS (
    SELECT run_id, launch, optimizer, what, count(DISTINCT other) AS others
    FROM islands
    JOIN longest USING (run_id, launch, optimizer, what, island)
    WHERE length >= $records
    GROUP BY ALL
),
digits AS (
    SELECT *,
           value / 10 ** (floor(log10(value)) - 2) AS by_3_digits,
           value / 10 ** (floor(log10(value)) - 4) AS by_5_digits,
           value / 2 ** (floor(log2(value)) - 7) AS by_8_bits
    FROM longest
    LEFT JOIN beside USING (run_id, launch, optimizer, what)
),
frozen AS (
    SELECT *,
           length >= $records
               AND others >= $others
               AND abs(by_3_digits - round(by_3_digits)) > 1e-6
               AND (
                   (around >= $records AND repeated_around <= 0.05 * around)
                   OR (abs(by_5_digits - round(by_5_digits)) > 1e-6 AND abs(by_8_bits - round(by_8_bits)) > 1e-9)
               ) AS is_frozen
    FROM digits
),
placeholders AS (
    SELECT run_id,
           launch,
           optimizer,
           'loss scale' AS what,
           count(*) AS records,
           count(*) FILTER (scale < 0) AS hollow,
           arg_min(scale, attempt_id) FILTER (scale < 0) AS value,
           min(attempt_id) FILTER (scale < 0) AS attempt,
           hollow > 0 AS is_hollow
    FROM logged
    WHERE scale IS NOT NULL
    GROUP BY ALL
    UNION ALL
    SELECT run_id,
           launch,
           optimizer,
           'token count' AS what,
           count(*) AS records,
           count(*) FILTER (tokens = 0) AS hollow,
           0.0 AS value,
           min(attempt_id) AS attempt,
           hollow = records AS is_hollow
    FROM logged
    WHERE tokens IS NOT NULL
    GROUP BY ALL
    HAVING count(*) >= $others
)
SELECT run_id,
       launch,
       optimizer,
       CASE WHEN is_frozen THEN attempt END AS attempt_id,
       NULL AS rank,
       is_frozen AS fault,
       value AS observed,
       NULL::DOUBLE AS expected,
       format(
           'from here on the {} is {:.7g} in {} records on end, while {} different values of the {} stand beside it',
           what,
           value,
           length,
           others,
           CASE WHEN what = 'loss' THEN 'gradient norm' ELSE 'loss' END
       ) AS message,
       'warning' AS severity
FROM frozen
UNION ALL
SELECT run_id,
       launch,
       optimizer,
       CASE WHEN is_hollow THEN attempt END AS attempt_id,
       NULL AS rank,
       is_hollow AS fault,
       value AS observed,
       NULL::DOUBLE AS expected,
       format('the {} is {:g} in {} of {} records: a placeholder, no measure', what, value, hollow, records) AS message,
       'note' AS severity
FROM placeholders
